"""A consumer's side: reading, showing that we live, taking over, giving back."""

import asyncio
from bisect import insort
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from typing import Any, Self

from postroom._clock import SystemClock
from postroom.brokers.redis import mapping
from postroom.brokers.redis.acks import Acks
from postroom.brokers.redis.delivery import RedisDelivery
from postroom.brokers.redis.link import Link
from postroom.brokers.redis.member import Entry, GroupGone, Member
from postroom.errors import BrokerUnavailable

_BLOCK = 1.0
"""Seconds for which one read waits."""
_LOOK = 1.0
"""Seconds between two looks for what was given back."""
_FORGOTTEN = 20
"""Leases after which the name of a silent consumer that holds nothing is forgotten."""
_LEAST_FORGOTTEN = 300.0


class Subscription:
    """Iterates over deliveries; ends when it is left, raises when the broker is lost."""

    def __init__(
        self,
        member: Member,
        reading: Link,
        topics: Sequence[str],
        *,
        prefetch: int,
        lease: float,
        patience: float,
        single: bool = False,
    ) -> None:
        """Receive as that member, over a link that is nobody else's.

        With `single` only while no other consumer of the group does.
        """
        self._member = member
        self._reading = reading
        self._topics = tuple(dict.fromkeys(topics))
        self._prefetch = prefetch
        self._lease = lease
        self._block = min(_BLOCK, lease / 3)
        self._single = single
        self._leading = False
        self._to_sweep: set[str] = set()
        """Topics of which others may hold something, though we lead now."""
        self._patience = patience
        self._acks = Acks(member)
        self._ready: list[RedisDelivery] = []
        self._out: set[RedisDelivery] = set()
        self._changed = asyncio.Event()
        self._room = asyncio.Event()
        self._wake = asyncio.Event()
        self._hurry = False
        """Whether to look for older entries at once."""
        self._behind = True
        """Whether older entries may wait to be taken; then nothing new is read."""
        self._failure: str | None = None
        self._left = False
        self._tasks: list[asyncio.Task[None]] = []
        self._moving: set[asyncio.Task[None]] = set()
        self._clock = SystemClock()
        self._lived_at = self._led_at = self._clock.elapsed()
        self._look_at = self._takeover_at = self._tidy_at = 0.0

    @property
    def out(self) -> int:
        """How many are here: in the consumer's hands, or waiting for it."""
        return len(self._out) + len(self._ready)

    @property
    def over(self) -> bool:
        """Whether what was handed out is in other hands now."""
        return self._left

    async def join(self) -> None:
        """Take over what waits, and begin to read. Raises BrokerUnavailable or GroupGone."""
        for topic in self._topics:
            # What a subscription of this name held whose connection was lost.
            await self._member.give_back(topic)
        await self._take(takeover=True)
        self._tasks = [
            asyncio.ensure_future(self._guarded(self._read)),
            asyncio.ensure_future(self._guarded(self._keep)),
        ]
        for task in self._tasks:
            task.add_done_callback(self._stopped)

    async def leave(self) -> None:
        """End; what is out is given back at once. Idempotent."""
        if self._left:
            return
        if self._moving:
            await asyncio.wait(self._moving, timeout=self._patience)
        await self._acks.end(self._patience)
        self._left = True
        self._changed.set()
        await self.freeze()
        await self._reading.close()
        try:
            for topic in self._topics:
                await self._member.give_back(topic)
            if self._leading:
                await self._member.lead(end=True)
        except (BrokerUnavailable, GroupGone):
            return  # others take it over when we were silent for long enough

    async def freeze(self) -> None:
        """Stop to read and to show that we live, as a process does that hangs."""
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    def fail(self, reason: str) -> None:
        """Raise this from now on."""
        self._failure = self._failure or reason
        self._changed.set()

    def __aiter__(self) -> Self:
        """Return itself."""
        return self

    async def __anext__(self) -> RedisDelivery:
        """Wait for the next message."""
        while True:
            if self._failure is not None:
                raise BrokerUnavailable(self._failure)
            if self._left:
                raise StopAsyncIteration
            if (delivery := self._next()) is not None:
                return delivery.hand_out()
            self._changed.clear()
            await self._changed.wait()

    def _next(self) -> RedisDelivery | None:
        while self._ready and len(self._out) < self._prefetch:
            if self._is_stale():
                # We were frozen: first see what is still ours.
                self._look_now()
                return None
            delivery = self._ready.pop(0)
            if (burying := delivery.expired()) is None:
                return delivery
            self._move(burying)
        return None

    # What a delivery calls

    def handed_out(self, delivery: RedisDelivery) -> None:
        """Count it."""
        self._out.add(delivery)

    def ended(self, delivery: RedisDelivery) -> None:
        """Count it no more."""
        self._out.discard(delivery)
        self._freed()

    async def give_back(self, delivery: RedisDelivery) -> bool:
        """Hand it out again, before everything that came after it; say whether it is ours."""
        entry = delivery.entry
        if self._is_stale() and await self._member.hold(entry.topic, [entry.id]):
            return False
        self._admit([delivery.again()])
        return True

    async def ack(self, entry: Entry) -> bool:
        """Let go of it; say whether it was ours."""
        return await self._acks.ack(entry.topic, entry.id)

    async def delay(self, entry: Entry, attempt: int, milliseconds: int) -> bool:
        """Let it wait; say whether it was ours."""
        ours = await self._member.delay(entry, attempt, milliseconds)
        self._look_within(milliseconds / 1000)
        return ours

    async def bury(self, entry: Entry, reason: str, attempts: int) -> bool:
        """Move it to the dead letters; say whether it was ours."""
        return await self._member.bury(entry, reason, attempts)

    # Reading

    async def _read(self) -> None:
        while True:
            while self._behind or self.out >= self._prefetch or not self._may_read():
                self._room.clear()
                await self._room.wait()
            count = max(1, (self._prefetch - self.out) // len(self._topics))
            wanted = self._member.read(self._topics, count, int(self._block * 1000))
            [reply] = await self._reading.run(wanted, timeout=self._block + self._patience)
            await self._receive(self._member.arrived(self._topics, reply))

    async def _receive(self, entries: Iterable[Entry]) -> None:
        """Take entries in hand; those that were replayed for another group are not ours."""
        mine, others = [], []
        for entry in entries:
            only = mapping.named(entry.fields).get(mapping.ONLY) if entry.fields else None
            if only is None or mapping.readable(only) == self._member.group:
                mine.append(RedisDelivery(self, entry))
            else:
                others.append(entry)
        self._admit(mine)
        for entry in others:
            await self._member.ack(entry.topic, [entry.id])

    def _admit(self, deliveries: Iterable[RedisDelivery]) -> None:
        for delivery in deliveries:
            insort(self._ready, delivery, key=lambda one: one.entry.place)
        self._changed.set()

    # Living

    async def _keep(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            self._wake.clear()
            if not self._hurry and loop.time() < self._look_at:
                try:
                    async with asyncio.timeout_at(self._look_at):
                        await self._wake.wait()
                except TimeoutError:
                    pass
                continue
            self._hurry = False
            takeover = loop.time() >= self._takeover_at or self._is_stale()
            if takeover:
                await self._live()
            await self._take(takeover=takeover)

    async def _live(self) -> None:
        """Show that we hold what we hold, and let go of what others have taken."""
        at = self._clock.elapsed()
        here: dict[str, dict[bytes, RedisDelivery]] = {topic: {} for topic in self._topics}
        for delivery in (*self._ready, *self._out):
            here[delivery.entry.topic][delivery.entry.id] = delivery
        for topic, mine in here.items():
            if mine:
                for entry in await self._member.hold(topic, tuple(mine)):
                    mine[entry].lost = True
        self._ready = [one for one in self._ready if not one.lost]
        self._out = {one for one in self._out if not one.lost}
        self._lived_at = at
        now = asyncio.get_running_loop().time()
        if now >= self._tidy_at:
            self._tidy_at = now + self._lease * _FORGOTTEN
            for topic in self._topics:
                await self._member.tidy(topic, max(self._lease * _FORGOTTEN, _LEAST_FORGOTTEN))

    async def _take(self, *, takeover: bool) -> None:
        now = asyncio.get_running_loop().time()
        if takeover:
            self._takeover_at = now + self._lease / 3
        self._look_at = now + min(_LOOK, self._lease / 3)
        if self._single and not await self._lead():
            self._behind = True
            return
        behind = False
        for topic in self._topics:
            room = self._prefetch - self.out
            if room <= 0:
                behind = True
                break
            sweep = topic in self._to_sweep
            taken = await self._member.take(
                topic, room, takeover=takeover or sweep, everything=sweep
            )
            self._to_sweep.discard(topic)
            behind = behind or len(taken.entries) >= room
            await self._receive(taken.entries)
            if taken.due_in is not None:
                self._look_within(taken.due_in)
        self._behind = behind
        self._freed()

    async def _lead(self) -> bool:
        at = self._clock.elapsed()
        before, self._leading = self._leading, await self._member.lead()
        self._led_at = at
        if self._leading and not before:
            self._to_sweep = set(self._topics)
        return self._leading

    def _may_read(self) -> bool:
        if not self._single:
            return True
        return self._leading and self._clock.elapsed() - self._led_at < self._lease

    def _freed(self) -> None:
        """Note that there may be room: for what waits to be taken, else for something new."""
        if self.out < self._prefetch:
            if self._behind:
                if self._leading or not self._single:
                    self._look_now()
            else:
                self._room.set()
        self._changed.set()

    def _look_now(self) -> None:
        self._hurry = True
        self._wake.set()

    def _look_within(self, seconds: float) -> None:
        at = asyncio.get_running_loop().time() + seconds
        if at < self._look_at:
            self._look_at = at
            self._wake.set()

    def _is_stale(self) -> bool:
        return self._clock.elapsed() - self._lived_at > self._lease

    async def _guarded(self, work: Callable[[], Awaitable[None]]) -> None:
        try:
            await work()
        except BrokerUnavailable as error:
            self.fail(error.reason)
        except GroupGone:
            await self._restore()

    def _stopped(self, task: "asyncio.Task[None]") -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self.fail(f"receiving failed: {error!r}")

    async def _restore(self) -> None:
        """Make the group again, and tell: what was in it is gone."""
        try:
            for topic in self._topics:
                await self._member.create(topic)
        except (BrokerUnavailable, GroupGone) as error:
            self.fail(str(error))
            return
        self.fail(
            f"the group {self._member.group!r} or a stream of its was deleted or flushed, or a "
            "server took over that did not have it; it was made again and begins with the oldest "
            "entry that there is"
        )

    def _move(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(work)
        self._moving.add(task)
        task.add_done_callback(self._moved)

    def _moved(self, task: "asyncio.Task[None]") -> None:
        self._moving.discard(task)
        if not task.cancelled() and isinstance(error := task.exception(), BrokerUnavailable):
            self.fail(error.reason)
