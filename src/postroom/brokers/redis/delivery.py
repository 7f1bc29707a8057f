"""One message in a consumer's hands, and the four ways to end it."""

from collections.abc import Awaitable, Callable, Coroutine
from datetime import UTC, datetime, timedelta
from typing import Any, Protocol, Self

from postroom._clock import LONGEST as LONGEST_SPAN
from postroom.brokers.redis import mapping
from postroom.brokers.redis.member import Entry, GroupGone, Trimmed
from postroom.errors import DeliveryLost, printable
from postroom.message import Message

_MILLISECOND = timedelta(milliseconds=1)


class Holder(Protocol):
    """What a delivery needs of its subscription. The calls say whether the entry was ours."""

    @property
    def over(self) -> bool:
        """Whether what was handed out is in other hands now."""
        ...

    def handed_out(self, delivery: "RedisDelivery") -> None:
        """Count it."""
        ...

    def ended(self, delivery: "RedisDelivery") -> None:
        """Count it no more."""
        ...

    async def give_back(self, delivery: "RedisDelivery") -> bool:
        """Hand it out again."""
        ...

    async def ack(self, entry: Entry) -> bool:
        """Let go of it."""
        ...

    async def delay(self, entry: Entry, attempt: int, milliseconds: int) -> bool:
        """Let it wait. Raises Trimmed."""
        ...

    async def bury(self, entry: Entry, reason: str, attempts: int) -> bool:
        """Move it to the dead letters."""
        ...


class RedisDelivery:
    """One message in a consumer's hands.

    Where an answer raises BrokerUnavailable the delivery has not ended: try again, or leave the
    subscription, which gives it back.
    """

    def __init__(self, holder: Holder, entry: Entry) -> None:
        """Read what arrived."""
        self.entry = entry
        self.message: Message = mapping.message_of(entry.topic, entry.fields)
        self.redelivered = entry.again
        self.lost = False
        """Whether another consumer has it, as far as we know."""
        self._holder = holder
        self._open = False

    @property
    def attempt(self) -> int | None:
        """1 for the first; one more for every `retry` before."""
        return self.entry.attempt

    def hand_out(self) -> Self:
        """Let it be answered."""
        self._reopen()
        return self

    def again(self) -> "RedisDelivery":
        """Return another delivery of the same."""
        other = RedisDelivery(self._holder, self.entry)
        other.redelivered = True
        return other

    def expired(self) -> Coroutine[Any, Any, None] | None:
        """Return what has to be done with it instead of handing it out, if its time is over."""
        moment = self.message.expires_at
        if moment is None or moment > datetime.now(UTC):
            return None
        self._reopen()
        return self._bury("expired", self.entry.attempt - 1)

    async def ack(self) -> None:
        """Tell the broker that the message is done."""
        await self._answer(lambda: self._holder.ack(self.entry))

    async def retry(self, delay: timedelta, reason: str) -> None:
        """Have it delivered again after the delay, counted as a failed attempt."""
        milliseconds = -(-max(min(delay, LONGEST_SPAN), timedelta(0)) // _MILLISECOND)

        async def wait() -> bool:
            attempt = self.entry.attempt + 1
            try:
                return await self._holder.delay(self.entry, attempt, milliseconds)
            except Trimmed:
                why = f"trimmed or deleted before its retry; it had failed: {printable(reason)}"
                return await self._holder.bury(self.entry, why, self.entry.attempt)

        await self._answer(wait)

    async def release(self) -> None:
        """Give it back at once, uncounted; it stays with this consumer."""
        await self._answer(lambda: self._holder.give_back(self))

    async def reject(self, reason: str) -> None:
        """Move it to the dead letters of its group, with the reason."""
        await self._bury(printable(reason), self.entry.attempt)

    async def _bury(self, reason: str, attempts: int) -> None:
        await self._answer(lambda: self._holder.bury(self.entry, reason, attempts))

    async def _answer(self, tell: Callable[[], Awaitable[bool]]) -> None:
        self._end()
        try:
            ours = await tell()
        except GroupGone as error:
            raise DeliveryLost("its stream or its group was deleted") from error
        except BaseException:
            self._reopen()
            raise
        if not ours:
            raise _lost()

    def _end(self) -> None:
        if not self._open or self.lost or self._holder.over:
            raise _lost()
        self._open = False
        self._holder.ended(self)

    def _reopen(self) -> None:
        self._open = True
        self._holder.handed_out(self)


def _lost() -> DeliveryLost:
    return DeliveryLost("another consumer of the group has taken this delivery over")
