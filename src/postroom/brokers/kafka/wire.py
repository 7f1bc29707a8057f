"""What librdkafka says of its connections, and its errors as ours."""

from confluent_kafka import KafkaError, KafkaException

from postroom._redact import redacted
from postroom.brokers.kafka import codes
from postroom.errors import BrokerError, BrokerUnavailable, OutcomeUnknown, RefusedForNow

_HOPELESS = frozenset(
    {
        codes.AUTHENTICATION,
        codes.SSL,
        KafkaError.SASL_AUTHENTICATION_FAILED,
        KafkaError.UNSUPPORTED_SASL_MECHANISM,
        KafkaError.CLUSTER_AUTHORIZATION_FAILED,
    }
)
"""Trying again at once does not help: a person has to do something."""
_THIS_MESSAGE = frozenset(
    {
        KafkaError.UNKNOWN_TOPIC_OR_PART,
        codes.UNKNOWN_TOPIC,
        codes.UNKNOWN_PARTITION,
        KafkaError.TOPIC_EXCEPTION,
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.MSG_SIZE_TOO_LARGE,
        KafkaError.RECORD_LIST_TOO_LARGE,
        KafkaError.INVALID_RECORD,
        KafkaError.INVALID_MSG,
        KafkaError.INVALID_TIMESTAMP,
        KafkaError.POLICY_VIOLATION,
        KafkaError.UNSUPPORTED_FOR_MESSAGE_FORMAT,
        KafkaError.UNSUPPORTED_COMPRESSION_TYPE,
    }
)
"""The broker said no to what was sent, and keeps none of it."""


class Wire:
    """Hears from a client about its connections."""

    def __init__(self) -> None:
        self.down = False
        """Whether no broker can be reached, as far as anybody has told."""
        self.said = ""
        """The last trouble."""
        self.told = 0
        """How many troubles there were."""
        self.hopeless = False

    def noted(self, error: KafkaError) -> None:
        """Take an error that belongs to no call (`error_cb`)."""
        self.told += 1
        code = error.code()
        if code == codes.ALL_BROKERS_DOWN:
            self.down = True
        else:
            self.said = redacted(error.str())
        self.hopeless = self.hopeless or code in _HOPELESS

    def answered(self) -> None:
        """Hear that a broker has answered."""
        self.down = self.hopeless = False

    def unavailable(self, place: str, what: str = "cannot be reached") -> BrokerUnavailable:
        """Return it as an error."""
        return BrokerUnavailable(f"{place} {what}{self.said and ': '}{self.said}")


def error_of(error: BaseException) -> KafkaError:
    """Return what an exception of the library carries."""
    if isinstance(error, KafkaException) and error.args and isinstance(error.args[0], KafkaError):
        return error.args[0]
    return KafkaError(codes.FAIL, repr(error))


def refuses(error: KafkaError) -> bool:
    """Say whether the broker said no to this message; it is not there."""
    return error.code() in _THIS_MESSAGE


def told(error: KafkaError) -> str:
    """Return it as text that may be printed."""
    return redacted(f"{error.name()}: {error.str()}")


def judged(error: KafkaError) -> BrokerError:
    """Return an answer to one message as one of our classes, by its code."""
    if refuses(error):
        return RefusedForNow(told(error))
    if error.code() in _HOPELESS:
        return BrokerUnavailable(told(error))
    return OutcomeUnknown(told(error))
