"""One message in a consumer's hands, and the four ways to end it."""

from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import NamedTuple, Protocol

from postroom._clock import LONGEST, SystemClock
from postroom.brokers.nats.mapping import Read
from postroom.brokers.nats.wire import Arrived
from postroom.errors import DeliveryLost, printable
from postroom.message import Message

ACK, IN_PROGRESS, TERMINATE, NAK = b"+ACK", b"+WPI", b"+TERM", b"-NAK"
_CLOCK = SystemClock()
_SURE = 0.9
"""The part of the server's patience after which a message counts as lost: its clock began first."""
_TOKENS, _LONG_TOKENS = 9, 11


class Place(NamedTuple):
    """What the subject of an acknowledgement says."""

    delivered: int
    """How often the server handed the message out, this time included."""
    sequence: int
    """Its number in the stream."""
    stamp: str
    """When it was stored: with the number it names the message, also in a stream made anew."""


def place_of(reply: bytes) -> Place | None:
    """Return what the subject says; None where it is not JetStream's."""
    words = reply.decode("ascii", "replace").split(".")
    # $JS.ACK.<stream>.<consumer>.<delivered>.<sequence>..., or with domain and account before.
    at = 4 if len(words) == _TOKENS else 6 if len(words) >= _LONG_TOKENS else 0
    try:
        if not at or words[:2] != ["$JS", "ACK"]:
            return None
        return Place(int(words[at]), int(words[at + 1]), words[at + 3])
    except ValueError:
        return None


class Hands(Protocol):
    """What a delivery needs of its subscription."""

    @property
    def patience(self) -> float:
        """Seconds after which the server hands out again what it has heard nothing of."""

    @property
    def left(self) -> bool:
        """Whether the subscription was left, and gave everything back."""

    async def tell(self, delivery: "NatsDelivery", word: bytes) -> None:
        """Tell the server, and wait until it has heard. Raises BrokerUnavailable, DeliveryLost."""

    def handed_out(self, delivery: "NatsDelivery") -> None:
        """Count it."""

    def ended(self, delivery: "NatsDelivery") -> None:
        """Count it no more."""

    def give_back(self, delivery: "NatsDelivery") -> None:
        """Hand it out again, before everything that came after it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Books:
    """What is written down about a message; each raises BrokerUnavailable."""

    failed: Callable[["NatsDelivery", int, str], Awaitable[None]]
    """Note how many attempts have failed, and why the last one did."""
    forget: Callable[["NatsDelivery"], Awaitable[None]]
    """Drop that note."""
    bury: Callable[["NatsDelivery", int, str], Awaitable[None]]
    """Keep a dead letter."""


class NatsDelivery:
    """One message in a consumer's hands.

    Where an answer raises BrokerUnavailable the delivery has not ended: try again, or leave the
    subscription, which gives it back.
    """

    def __init__(self, hands: Hands, books: Books, arrived: Arrived, place: Place) -> None:
        """Read what arrived."""
        self.read = Read(arrived.subject, arrived.headers, arrived.data)
        self.message: Message = self.read.message
        self.arrived = arrived
        self.place = place
        self.failures = 0
        """Failed attempts, once they were looked up."""
        self._hands = hands
        self._books = books
        self._again = False
        self._open = False
        self._heard_at = _CLOCK.elapsed()

    @property
    def attempt(self) -> int | None:
        """1 for the first; one more for every `retry` before."""
        return self.failures + 1

    @property
    def redelivered(self) -> bool:
        """Whether it was handed out before; a copy may have been handled."""
        return self._again or self.place.delivered > 1

    @property
    def expired(self) -> bool:
        """Whether it came too late to be of use."""
        at = self.message.expires_at
        return at is not None and at <= datetime.now(UTC)

    @property
    def lost(self) -> bool:
        """Whether the server may have given it to another consumer by now.

        Told by our own clock, which also counts while the process is frozen.
        """
        return _CLOCK.elapsed() - self._heard_at > self._hands.patience * _SURE

    def touched(self) -> None:
        """Note that the server was told that we still work on it."""
        self._heard_at = _CLOCK.elapsed()

    def hand_out(self) -> "NatsDelivery":
        """Let it be answered."""
        self._open = True
        self._hands.handed_out(self)
        return self

    def again(self) -> "NatsDelivery":
        """Return another delivery of the same."""
        other = NatsDelivery(self._hands, self._books, self.arrived, self.place)
        other.failures, other._again, other._heard_at = self.failures, True, self._heard_at
        return other

    async def ack(self) -> None:
        """Tell the server that the message is done, and wait until it has heard."""
        with self._ending():
            await self._forget()
            await self._hands.tell(self, ACK)

    async def retry(self, delay: timedelta, reason: str) -> None:
        """Have it delivered again after the delay, counted as a failed attempt."""
        nanos = round(min(delay, LONGEST).total_seconds() * 1_000_000_000)
        with self._ending():
            await self._books.failed(self, self.failures + 1, printable(reason))
            await self._hands.tell(self, NAK + b' {"delay": %d}' % max(nanos, 1))

    async def release(self) -> None:
        """Give it back at once, uncounted; it stays with this consumer."""
        with self._ending():
            self._hands.give_back(self)

    async def reject(self, reason: str) -> None:
        """Move it to the dead letters of its group, with the reason."""
        await self.bury(reason, self.failures + 1)

    async def bury(self, reason: str, failures: int) -> None:
        """Keep a dead letter, and only then let go of the message."""
        with self._ending():
            await self._books.bury(self, failures, printable(reason))
            await self._forget()
            await self._hands.tell(self, TERMINATE)

    async def _forget(self) -> None:
        """Drop the count first: a message that is done needs none, one that is not may lose it."""
        if self.failures:
            await self._books.forget(self)

    @contextmanager
    def _ending(self) -> Iterator[None]:
        """End it; an answer that could not be given opens it again."""
        self._hands.ended(self)
        if not self._open or self._hands.left or self.lost:
            self._open = False
            raise DeliveryLost("the server may have given this delivery to another consumer")
        self._open = False
        try:
            yield
        except DeliveryLost:
            raise
        except BaseException:
            self._open = True
            self._hands.handed_out(self)
            raise
