"""What travels (`Message`), what rests in the outbox (`Entry`), and names for types."""

import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from types import MappingProxyType
from typing import TypeVar
from uuid import UUID

NO_HEADERS: Mapping[str, str] = MappingProxyType({})
_NOISE = 0x0FFF_3FFF_FFFF_FFFF_FFFF
_VERSION_AND_VARIANT = 0x7000_8000_0000_0000_0000
"""What is random in the last 80 bits of a UUIDv7, and what is not."""


def new_id() -> UUID:
    """Return a UUIDv7 (RFC 9562): 48 bits of milliseconds, then random bits."""
    return UUID(int=_new_id_number())


def _new_id_text() -> str:
    """Return the text of a new id, without making a UUID of it first: that takes twice as long."""
    digits = f"{_new_id_number():032x}"
    return f"{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"


def _new_id_number() -> int:
    millis = time.time_ns() // 1_000_000 & 0xFFFF_FFFF_FFFF
    noise = int.from_bytes(os.urandom(10)) & _NOISE
    return millis << 80 | noise | _VERSION_AND_VARIANT


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """One message, as it travels from the writer to the consumers; never changes on the way."""

    type: str
    """An explicit, stable name such as `shop.order-placed`; never an import path."""
    payload: bytes
    id: str = field(default_factory=_new_id_text)
    """UUIDv7 text, made before any attempt to send; the inbox knows a copy by it."""
    content_type: str = "application/json"
    key: str | None = None
    """Messages of one key keep their order; None promises none."""
    version: int | None = None
    """The aggregate's version, for consumers that ignore stale messages."""
    headers: Mapping[str, str] = field(default_factory=lambda: NO_HEADERS)
    topic: str = ""
    """Where it goes; empty means the route of its type decides."""
    deliver_at: datetime | None = None
    """Not sent before this moment; such a message has no place in its key's order until then."""
    expires_at: datetime | None = None
    """Given up when it was not sent by this moment."""

    def with_headers(self, headers: Mapping[str, str]) -> "Message":
        """Return the same message with these headers instead of its own."""
        # Written out: `dataclasses.replace` takes four times as long, for every message sent.
        return Message(
            type=self.type,
            payload=self.payload,
            id=self.id,
            content_type=self.content_type,
            key=self.key,
            version=self.version,
            headers=headers,
            topic=self.topic,
            deliver_at=self.deliver_at,
            expires_at=self.expires_at,
        )


class State(StrEnum):
    """Where a row of the outbox is; each state has one owner who moves it on."""

    SCHEDULED = "scheduled"
    """Not due yet; has no place in the order."""
    READY = "ready"
    """To be sent; also while the relay is sending it."""
    WAITING = "waiting"
    """Refused for now; goes back to ready when its backoff is over."""
    HELD = "held"
    """Behind an earlier message of its key that is not sent yet."""
    SENT = "sent"
    """Confirmed by the broker; kept until pruned."""
    DEAD = "dead"
    """Given up, with a reason; may block its key until a person decides."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A row of the outbox: the message and what happened to it so far."""

    seq: int
    """Place in the order; a scheduled or replayed message gets a new one."""
    route: str
    lane: int
    state: State
    message: Message
    attempts: int = 0
    """Refusals so far; outages do not count."""
    blocks: bool = False
    """Whether later messages of its key must stay behind it (waiting, held, dead under park)."""
    behind: bool = False
    """Set by `Store.read`: an earlier message of its key blocks it, so it must be held."""
    unreadable: str | None = None
    """Set by `Store.read`: why the row cannot be made a message again; it can only be given up."""
    created_at: datetime | None = None
    due_at: datetime | None = None
    settled_at: datetime | None = None
    error: str | None = None
    """Why it was refused last, or why it is dead."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageType:
    """What `@message` knows about a class."""

    name: str
    aliases: tuple[str, ...] = ()
    key: str | None = None
    version: str | None = None
    topic: str = ""


T = TypeVar("T")
_STAMP = "__postroom_type__"


def message(
    name: str,
    /,
    *,
    aliases: tuple[str, ...] = (),
    key: str | None = None,
    version: str | None = None,
    topic: str = "",
) -> Callable[[type[T]], type[T]]:
    """Give a class the stable name under which its messages travel.

    `aliases` are older names that are read as this class. `key` and `version` name the fields
    that hold the ordering key and the aggregate's version.

        @message("shop.order-placed", key="order_id")
        @dataclass
        class OrderPlaced:
            order_id: str
            amount: Decimal
    """
    stamp = MessageType(name=name, aliases=aliases, key=key, version=version, topic=topic)

    def mark(cls: type[T]) -> type[T]:
        setattr(cls, _STAMP, stamp)
        return cls

    return mark


def message_type(cls: type) -> MessageType | None:
    """Return what `@message` said of this very class (a subclass needs a name of its own)."""
    stamp = cls.__dict__.get(_STAMP)
    return stamp if isinstance(stamp, MessageType) else None
