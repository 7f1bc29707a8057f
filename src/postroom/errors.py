"""Every error that Postroom raises.

PostroomError
├── PutRefused                  the message was not written; nothing is half done
│   ├── NoTransaction           no open transaction to join
│   ├── InvalidMessage          a field that could not make the round trip unchanged
│   └── MessageTooLarge         over the byte limit of a message or of a call
├── Undecodable                 bytes at rest or on the wire that the codec cannot read
├── UnknownType                 a type name that no handler of this consumer knows
├── StoreError
│   ├── StoreUnavailable        down, locked or read-only: wait and try again
│   └── SchemaMismatch          tables missing, older or newer than this version
├── BrokerError                 what became of one publish that was not confirmed
│   ├── BrokerUnavailable       nothing was sent; nobody's fault
│   ├── NotAttempted            not sent because an earlier message of its key was refused
│   ├── OutcomeUnknown          sent, and no answer came: may have arrived
│   ├── RefusedForNow           the broker said no to this message; may pass later
│   └── RefusedForGood          the broker can never take this message
├── DeliveryLost                the broker gave the delivery to another consumer meanwhile
└── SettingsError               settings that cannot be used
"""

_DOCS = "docs/reference/errors.md"


class PostroomError(Exception):
    """The root of all errors raised by Postroom."""

    def __str__(self) -> str:
        """Return the message, ending with the page that says more."""
        anchor = type(self).__name__.lower()
        return f"{super().__str__()} (see {_DOCS}#{anchor})"

    @property
    def reason(self) -> str:
        """The message alone, in a form that any database can store."""
        return printable(super().__str__())


def printable(text: str) -> str:
    """Return the text in a form that any database and any log can take.

    NUL and lone surrogates become backslash escapes, and very long texts are cut: recording an
    error must never fail because of what the error says.
    """
    safe = text.replace("\0", "\\x00").encode("utf-8", "backslashreplace").decode("utf-8")
    if len(safe) <= _LONGEST_REASON:
        return safe
    return f"{safe[:_LONGEST_REASON]}… ({len(safe)} characters)"


_LONGEST_REASON = 4000


class PutRefused(PostroomError):
    """The outbox did not take the message; the caller's transaction holds no trace of it."""


class NoTransaction(PutRefused):
    """The connection has no open transaction that the message could join."""


class InvalidMessage(PutRefused, ValueError):
    """A field of the message could not make the round trip unchanged."""


class MessageTooLarge(PutRefused, ValueError):
    """The message, or all messages of one call together, exceed the byte limit."""


class Undecodable(PostroomError):
    """The payload cannot be read as the type that its name stands for."""


class UnknownType(PostroomError):
    """No handler of this consumer is registered for the type name."""


class StoreError(PostroomError):
    """The database could not do what was asked."""


class StoreUnavailable(StoreError):
    """The database is down, locked or read-only; the same call may succeed later."""


class SchemaMismatch(StoreError):
    """The tables are missing or belong to another version of Postroom."""


class BrokerError(PostroomError):
    """One message was not confirmed by the broker; the subclass says whose fault it was."""


class BrokerUnavailable(BrokerError):
    """Nothing was sent: the broker is down, blocked, read-only or refuses connections."""


class NotAttempted(BrokerError):
    """Not sent, because an earlier message of the same key was not confirmed."""


class OutcomeUnknown(BrokerError):
    """The message was sent and no answer came back; the broker may or may not have it.

    `error_reply` is the broker's own error text when it ended the connection with one
    (RabbitMQ closes the channel on some messages); `timed_out` says that nothing came at all.
    """

    def __init__(
        self, reason: str, *, error_reply: str | None = None, timed_out: bool = False
    ) -> None:
        """Keep what the broker said, if it said anything."""
        super().__init__(reason)
        self.error_reply = error_reply
        self.timed_out = timed_out


class RefusedForNow(BrokerError):
    """The broker refused this one message (negative confirm, unroutable); it may pass later."""


class RefusedForGood(BrokerError):
    """The broker can never take this message (larger than its limit, cannot be encoded)."""


class DeliveryLost(PostroomError):
    """The delivery is no longer ours: its lease ended and the broker gave it to another."""


class SettingsError(PostroomError):
    """A setting is unknown, missing or has a value that cannot be used."""
