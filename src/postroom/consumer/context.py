"""What a handler is given beside the event."""

import hashlib
from dataclasses import dataclass
from typing import Generic, TypeVar, Unpack

from postroom.codecs import PutOptions, encode
from postroom.connections import AsyncConnection, SyncConnection
from postroom.errors import InvalidMessage
from postroom.message import Message
from postroom.outbox import Outbox, SyncOutbox

S = TypeVar("S", bound=SyncConnection)
A = TypeVar("A", bound=AsyncConnection)

_PASSED_ON = ("traceparent", "tracestate")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Facts:
    consumer: str
    """The consumer that handles the message."""
    message: Message
    """What arrived."""
    attempt: int | None
    """1 for the first try; None where the broker does not count."""

    def idempotency_key(self, step: str) -> str:
        """Return a key for a call to the outside world, which no inbox can protect.

        The same for every delivery of this message to this consumer and every step of that
        name, whatever crashes, is redelivered or replayed; another for another step.
        """
        parts = (self.consumer, self.message.id, step)
        sized = b"".join(len(part.encode()).to_bytes(4) + part.encode() for part in parts)
        return hashlib.sha256(sized).hexdigest()[:32]

    def _caused(self, event: object, options: PutOptions) -> Message:
        if isinstance(event, Message):
            if options:
                raise InvalidMessage("a ready Message takes no options; set them on the Message")
            made = event
        else:
            made = encode(event, **options)
        cause = self.message
        headers = {name: cause.headers[name] for name in _PASSED_ON if name in cause.headers}
        headers["correlation-id"] = cause.headers.get("correlation-id", cause.id)
        headers["causation-id"] = cause.id
        return made.with_headers({**headers, **made.headers})


@dataclass(frozen=True, slots=True, kw_only=True)
class Context(_Facts, Generic[S]):
    """The open transaction and the message, for a handler that is a plain function."""

    connection: S
    """In the transaction that commits the effect together with the inbox row."""
    outbox: SyncOutbox

    def put(self, *events: object, **options: Unpack[PutOptions]) -> tuple[Message, ...]:
        """Put messages that this one caused into the same transaction.

        They carry its id as `causation-id`, and its correlation id and trace context.
        """
        caused = [self._caused(event, options) for event in events]
        return self.outbox.put(self.connection, *caused)


@dataclass(frozen=True, slots=True, kw_only=True)
class AsyncContext(_Facts, Generic[A]):
    """The open transaction and the message, for a handler that is a coroutine function."""

    connection: A
    """In the transaction that commits the effect together with the inbox row."""
    outbox: Outbox

    async def put(self, *events: object, **options: Unpack[PutOptions]) -> tuple[Message, ...]:
        """Put messages that this one caused into the same transaction.

        They carry its id as `causation-id`, and its correlation id and trace context.
        """
        caused = [self._caused(event, options) for event in events]
        return await self.outbox.put(self.connection, *caused)
