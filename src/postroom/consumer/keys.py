"""Many messages at once, but of each key one after the other."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from postroom.broker import Delivery
from postroom.errors import BrokerUnavailable, DeliveryLost


class KeyedWork:
    """Works on deliveries side by side; those of one key wait for each other, in order."""

    def __init__(
        self,
        work: Callable[[Delivery], Awaitable[bool]],
        *,
        concurrency: int,
        untold: Callable[[str], None],
    ) -> None:
        """Give each delivery to `work`, which returns whether its key may go on.

        `untold` is called, with the reason, where the broker could not be told of a release.
        """
        self._work = work
        self._untold = untold
        self._room = asyncio.Semaphore(concurrency)
        self._queues: dict[str, deque[Delivery]] = {}
        self._tasks: set[asyncio.Task[object]] = set()
        self._stopping = False

    def add(self, delivery: Delivery) -> None:
        """Take a delivery."""
        key = delivery.message.key
        if key is None:
            self._spawn(self._one(delivery))
        elif key in self._queues:
            self._queues[key].append(delivery)
        else:
            self._queues[key] = deque((delivery,))
            self._spawn(self._in_order(key))

    async def end(self) -> None:
        """Begin nothing more and wait for what has begun; the rest is given back by the broker."""
        self._stopping = True
        if self._tasks:
            await asyncio.wait(self._tasks)

    def _spawn(self, work: Coroutine[Any, Any, object]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[object]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            # `work` has told already; asked for here so that asyncio does not complain.
            task.exception()

    async def _one(self, delivery: Delivery) -> bool:
        async with self._room:
            return not self._stopping and await self._work(delivery)

    async def _in_order(self, key: str) -> None:
        queue = self._queues[key]
        try:
            while queue and await self._one(queue.popleft()):
                pass
        finally:
            del self._queues[key]
        # The head comes again later: what was taken after it must not overtake it.
        for delivery in () if self._stopping else tuple(queue):
            await self._give_back(delivery)

    async def _give_back(self, delivery: Delivery) -> None:
        try:
            await delivery.release()
        except DeliveryLost:
            return  # the broker has it already
        except BrokerUnavailable as error:
            self._untold(error.reason)
