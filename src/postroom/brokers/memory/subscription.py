"""A consumer's side of the memory broker: waiting for messages, and answering them."""

import asyncio
from collections.abc import Awaitable, Callable, Collection
from datetime import timedelta
from typing import Self

from postroom._clock import LONGEST, Clock
from postroom.brokers.memory.group import Group, Pending
from postroom.errors import BrokerUnavailable, DeliveryLost
from postroom.message import Message


class Subscription:
    """Iterates over deliveries; ends when it is left, raises when the broker is closed."""

    def __init__(
        self,
        group: Group,
        topics: Collection[str],
        *,
        prefetch: int,
        clock: Clock,
        changed: Callable[[], None],
    ) -> None:
        """Take from `group`; `changed` is called when something may be ready for others."""
        self.group = group
        self.clock = clock
        self._topics = topics
        self._prefetch = prefetch
        self._changed = changed
        self._out: dict[MemoryDelivery, Pending] = {}
        self._lost: set[MemoryDelivery] = set()
        self._woken = asyncio.Event()
        self._left = False
        self._failure: BrokerUnavailable | None = None

    def __aiter__(self) -> Self:
        """Return itself."""
        return self

    async def __anext__(self) -> "MemoryDelivery":
        """Wait for the next message."""
        while True:
            if self._failure is not None:
                raise self._failure
            if self._left:
                raise StopAsyncIteration
            self._woken.clear()
            if (delivery := self._take()) is not None:
                return delivery
            await self._wait()

    def wake(self) -> None:
        """Look again."""
        self._woken.set()

    def fail(self, failure: BrokerUnavailable) -> None:
        """Give back what is out, and raise this from now on."""
        self._failure = failure
        self.give_back()
        self.wake()

    def leave(self) -> None:
        """Give back what is out, and end."""
        self._left = True
        self.give_back()
        self.wake()

    def give_back(self) -> None:
        """Let others have what is out; whoever answers it later is told that it is lost."""
        lost, self._out = self._out, {}
        self._lost.update(lost)
        for pending in lost.values():
            self.group.give_back(pending)
        self._changed()

    def end(self, delivery: "MemoryDelivery") -> Pending:
        """Take the delivery out of this consumer's hands."""
        pending = self._out.pop(delivery, None)
        self._lost.discard(delivery)
        self._changed()
        if pending is None or not self.group.has(pending):
            raise DeliveryLost("the broker has given this delivery to another consumer")
        return pending

    def _take(self) -> "MemoryDelivery | None":
        if len(self._out) + len(self._lost) >= self._prefetch:
            return None
        pending = self.group.take(self._topics, now=self.clock.now(), elapsed=micros(self.clock))
        if pending is None:
            return None
        delivery = MemoryDelivery(self, pending)
        self._out[delivery] = pending
        return delivery

    async def _wait(self) -> None:
        waits: list[asyncio.Task[object]] = [asyncio.create_task(_ended(self._woken.wait()))]
        if (due := self.group.next_delay()) is not None:
            seconds = max(due - micros(self.clock), 0) / 1_000_000
            waits.append(asyncio.create_task(_ended(self.clock.sleep(seconds))))
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
            await asyncio.gather(*waits, return_exceptions=True)


async def _ended(wait: Awaitable[object]) -> object:
    return await wait


def micros(clock: Clock) -> int:
    """Return `elapsed` in whole microseconds, whose sums are exact."""
    return round(clock.elapsed() * 1_000_000)


class MemoryDelivery:
    """One message in a consumer's hands."""

    def __init__(self, subscription: Subscription, pending: Pending) -> None:
        """Remember how often it was handed out and had failed at this moment."""
        self._subscription = subscription
        self.message: Message = pending.message
        self.attempt: int | None = pending.failed + 1
        self.redelivered = pending.handed_out > 1

    async def ack(self) -> None:
        """Tell the broker that the message is done."""
        pending = self._subscription.end(self)
        self._subscription.group.finish(pending)

    async def retry(self, delay: timedelta, reason: str) -> None:
        """Have it delivered again after the delay, counted as a failed attempt."""
        del reason  # it comes with the dead letter, if it ever is one
        pending = self._subscription.end(self)
        due = micros(self._subscription.clock) + min(delay, LONGEST) // timedelta(microseconds=1)
        self._subscription.group.delay(pending, due)

    async def release(self) -> None:
        """Give it back at once, uncounted."""
        pending = self._subscription.end(self)
        self._subscription.group.give_back(pending)

    async def reject(self, reason: str) -> None:
        """Move it to the dead letters of its group, with the reason."""
        pending = self._subscription.end(self)
        pending.failed += 1
        self._subscription.group.bury(pending, reason, self._subscription.clock.now())
