"""A consumer's side of the embedded broker: waiting for messages, and answering them."""

import asyncio
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from datetime import timedelta
from functools import partial
from sqlite3 import Connection
from typing import Self

from postroom._clock import LONGEST, Clock, to_micros
from postroom.brokers.sqlite import delivering
from postroom.brokers.sqlite.delivering import Consumer, Handed, Taken
from postroom.brokers.sqlite.worker import Worker
from postroom.errors import BrokerUnavailable, DeliveryLost, OutcomeUnknown
from postroom.message import Message

_POLL = 0.5
"""Seconds after which the queue is looked at without any hint."""
_FEW = 4
"""With less than this part of the prefetch free, looks are not made one for each that is done."""
_PAUSE = 0.01
"""Seconds from one look to the next while there is only little room."""


class Subscription:
    """Iterates over deliveries; ends when it is left, raises when the file cannot be used."""

    def __init__(
        self, worker: Worker, consumer: Consumer, *, prefetch: int, clock: Clock, patience: float
    ) -> None:
        """Take at most `prefetch` messages at once for this consumer."""
        self.consumer = consumer
        self.clock = clock
        self._worker = worker
        self._prefetch = prefetch
        self._patience = patience
        self._loop = asyncio.get_running_loop()
        self._changed = asyncio.Event()
        self._ready: deque[Handed] = deque()
        self._out: set[EmbeddedDelivery] = set()
        self._looking: asyncio.Future[Taken] | None = None
        self._stale = True
        self._look_at = 0.0
        self._next_at: int | None = None
        self._hinted = False
        self._left = False
        self._failure: BaseException | None = None

    def __aiter__(self) -> Self:
        """Return itself."""
        return self

    async def __anext__(self) -> "EmbeddedDelivery":
        """Wait for the next message."""
        while True:
            if self._failure is not None:
                raise self._failure
            if self._left:
                raise StopAsyncIteration
            if self._ready:
                delivery = EmbeddedDelivery(self, self._ready.popleft())
                self._out.add(delivery)
                return delivery
            if self._stale and self._looking is None:
                self._look()
            await self._wait()

    def now(self) -> int:
        """Return the time in microseconds."""
        return to_micros(self.clock.now())

    def hint(self) -> None:
        """Say, from any thread, that there may be something new."""
        if self._hinted or self._stale:  # a look is due, and will see what was committed
            return
        self._hinted = True
        try:
            self._loop.call_soon_threadsafe(self._look_again)
        except RuntimeError:  # the loop was closed under a forgotten subscription
            self._left = True

    def fail(self, failure: BrokerUnavailable) -> None:
        """Raise this from now on."""
        self._failure = failure
        self._changed.set()

    def leave(self) -> Future[None]:
        """End, and give back what is out."""
        self._left = True
        self._changed.set()
        work = partial(delivering.leave, consumer=self.consumer, unseen=tuple(self._ready))
        return self._worker.write(work, patience=self._patience)

    async def settle(
        self, delivery: "EmbeddedDelivery", work: Callable[[Connection], None]
    ) -> None:
        """End a delivery; what was begun is finished even if the caller is cancelled."""
        future = asyncio.wrap_future(self._worker.write(work, patience=self._patience))
        future.add_done_callback(partial(self._settled, delivery))
        try:
            await asyncio.shield(future)
        except OutcomeUnknown as unknown:
            raise BrokerUnavailable(unknown.reason) from unknown

    def _settled(self, delivery: "EmbeddedDelivery", future: asyncio.Future[None]) -> None:
        if future.cancelled():
            return
        failure = future.exception()
        if failure is None or isinstance(failure, DeliveryLost):
            self._out.discard(delivery)
            if self._stale and self._looking is None:
                self._changed.set()  # there is room; what was freed by it is hinted at

    def _look_again(self) -> None:
        self._hinted = False
        self._stale = True
        self._changed.set()

    def _look(self) -> None:
        room = self._prefetch - len(self._out)
        now = self._loop.time()
        if room < 1 or (room * _FEW < self._prefetch and now < self._look_at):
            return
        self._stale = False
        self._look_at = now + _PAUSE
        job = self._worker.write_unless(
            self._nothing_to_take, partial(self._take, room), patience=self._patience
        )
        self._looking = asyncio.wrap_future(job)
        self._looking.add_done_callback(self._looked)

    def _nothing_to_take(self, connection: Connection) -> Taken | None:
        found = delivering.look(connection, self.consumer, self.now())
        return None if found.more else found

    def _take(self, room: int, connection: Connection) -> Taken:
        return delivering.take(connection, self.consumer, room, self.now())

    def _looked(self, future: asyncio.Future[Taken]) -> None:
        self._looking = None
        self._changed.set()
        if future.cancelled():
            return
        if (failure := future.exception()) is not None:
            if isinstance(failure, OutcomeUnknown):
                failure = BrokerUnavailable(failure.reason)
            self._failure = failure
            return
        taken = future.result()
        if taken.gone:
            self.fail(
                BrokerUnavailable(
                    f"the subscription of group {self.consumer.group} is gone: the file was "
                    "replaced, the group dropped, or its lease is over; subscribe again"
                )
            )
            return
        self._ready.extend(taken.handed)
        self._stale = self._stale or taken.more
        self._next_at = taken.next_at

    async def _wait(self) -> None:
        patience = _POLL
        if self._next_at is not None:
            patience = min(patience, max((self._next_at - self.now()) / 1_000_000, 0.001))
        if self._stale and self._looking is None and len(self._out) < self._prefetch:
            patience = min(patience, max(self._look_at - self._loop.time(), 0.001))
        try:
            async with asyncio.timeout(patience):
                await self._changed.wait()
        except TimeoutError:
            self._stale = True
        self._changed.clear()


class EmbeddedDelivery:
    """One message in a consumer's hands.

    Where an answer raises BrokerUnavailable the delivery has not ended: try again, or leave the
    subscription, which gives it back.
    """

    def __init__(self, subscription: Subscription, handed: Handed) -> None:
        """Keep what is needed to answer."""
        self._subscription = subscription
        self._handed = handed

    @property
    def message(self) -> Message:
        """What arrived."""
        return self._handed.message

    @property
    def attempt(self) -> int | None:
        """1 for the first; one more for every `retry` before."""
        return self._handed.attempts + 1

    @property
    def redelivered(self) -> bool:
        """Whether it was handed out before; a copy may have been handled."""
        return self._handed.number > 1

    async def ack(self) -> None:
        """Tell the broker that the message is done."""
        await self._settle(delivering.ack)

    async def retry(self, delay: timedelta, reason: str) -> None:
        """Have it delivered again after the delay, counted as a failed attempt."""
        free_at = self._subscription.now() + min(delay, LONGEST) // timedelta(microseconds=1)
        await self._settle(partial(delivering.retry, free_at=free_at, reason=printable(reason)))

    async def release(self) -> None:
        """Give it back at once, uncounted."""
        await self._settle(delivering.release)

    async def reject(self, reason: str) -> None:
        """Move it to the dead letters of its group, with the reason."""
        now = self._subscription.now()
        await self._settle(partial(delivering.reject, reason=printable(reason), now=now))

    async def _settle(self, work: Callable[..., None]) -> None:
        consumer = self._subscription.consumer
        await self._subscription.settle(self, partial(work, consumer=consumer, handed=self._handed))


def printable(reason: str) -> str:
    """Return the text with whatever UTF-8 cannot hold written as an escape."""
    return reason.encode("utf-8", "backslashreplace").decode()
