"""What the server's answer to a message means: a positive PubAck, or whose fault it was."""

import json

from postroom.brokers.nats.connection import NO_RESPONDERS
from postroom.brokers.nats.wire import Arrived
from postroom.errors import (
    BrokerError,
    BrokerUnavailable,
    OutcomeUnknown,
    RefusedForGood,
    RefusedForNow,
    printable,
)

_WRONG_STREAM = 10060
_ZERO = ord("0")
_FOR_GOOD = {
    10054: "it is larger than the stream allows (max_msg_size)",
    10097: "its headers are larger than JetStream takes",
}
_AWAY = frozenset({10008, 10023, 10028, 10039, 10047, 10076})
"""Unavailable, without resources or storage, not enabled: no message is to blame for these."""


class Unrouted(RefusedForNow):
    """Nobody listened to its subject: no stream takes it, or the stream has no leader now."""

    def __init__(self, subject: str) -> None:
        """Keep the subject: whose fault it was is found out by asking for the stream."""
        super().__init__(f"no stream takes messages of topic {subject!r} (no responders)")
        self.subject = subject


class Answers:
    """Reads the answers to messages that one stream is to take."""

    def __init__(self, stream: str) -> None:
        """Take only the word of that stream."""
        self._stream = stream
        self._positive = b'{"stream":"%b","seq":' % stream.encode()
        self._digit = len(self._positive)

    def read(self, arrived: Arrived, subject: str) -> BrokerError | None:
        """Return None where that stream has the message, else why not."""
        data = arrived.data
        # What a PubAck nearly always looks like; anything else is read with care.
        if (
            data.startswith(self._positive)
            and len(data) > self._digit
            and data[self._digit] > _ZERO
        ):
            return None
        if arrived.status == NO_RESPONDERS:
            return Unrouted(subject)
        try:
            said = json.loads(data)
        except ValueError:
            said = None
        if not isinstance(said, dict):
            return OutcomeUnknown("what answered is no JetStream: it is not a PubAck")
        error = said.get("error")
        if isinstance(error, dict):
            return self._refusal(error)
        sequence = said.get("seq")
        if said.get("stream") == self._stream and isinstance(sequence, int) and sequence > 0:
            return None
        return OutcomeUnknown(f"another stream answered: {printable(str(said.get('stream')))}")

    def _refusal(self, error: dict[str, object]) -> BrokerError:
        code, number = error.get("code"), error.get("err_code")
        words = printable(f"{error.get('description')} ({code}, {number})")
        if number in _FOR_GOOD and isinstance(number, int):
            return RefusedForGood(f"{_FOR_GOOD[number]}: {words}")
        if number in _AWAY:
            return BrokerUnavailable(f"JetStream takes nothing now: {words}")
        if number == _WRONG_STREAM:
            return RefusedForNow(
                f"another stream than {self._stream!r} takes messages of its topic: {words}"
            )
        return RefusedForNow(f"the stream refused it: {words}")
