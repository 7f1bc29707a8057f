"""The memory broker: what was published, and the groups that receive it."""

from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import replace
from datetime import datetime, timedelta
from itertools import count

from postroom._clock import Clock, SystemClock
from postroom.broker import BrokerFeatures, DeadLetter, Delivery, QueueStatus
from postroom.brokers.memory.group import Group, Pending
from postroom.brokers.memory.subscription import Subscription
from postroom.errors import BrokerError, BrokerUnavailable, NotAttempted, RefusedForGood
from postroom.message import Message


class MemoryBroker:
    """The broker contract in plain Python, for the tests of those who use Postroom.

    Everything confirmed stays in `published`, and reaches a group that subscribes later too;
    nothing survives the process. One event loop at a time may use it. Delays follow the clock,
    so that a test with a `ManualClock` decides when a retry is due.

    Example:
        broker = MemoryBroker()
        await Relay(store, broker).step()
        assert [message.type for message in broker.published] == ["shop.order-placed"]
    """

    name = "memory"

    def __init__(self, *, clock: Clock | None = None, max_message_bytes: int | None = None) -> None:
        """Start empty; payloads over `max_message_bytes` are refused for good."""
        self.published: list[Message] = []
        """Everything that was confirmed, in order, copies included."""
        self._clock = clock or SystemClock()
        self._limit = max_message_bytes
        self._positions = count(1)
        self._log: list[tuple[int, Message, datetime]] = []
        self._groups: dict[str, Group] = {}
        self._subscriptions: set[Subscription] = set()
        self._closed = False

    @property
    def features(self) -> BrokerFeatures:
        """What this broker can do."""
        return BrokerFeatures(
            durable=False,
            refusal_stops_key=True,
            ordered_by_key=True,
            spreads_keys=True,
            retry_holds_key=True,
            counts_attempts=True,
            delays_retry=True,
            dead_letters=True,
            reports_unroutable=False,
            max_message_bytes=self._limit,
        )

    async def open(self) -> None:
        """Take part again after a `close`; a new one is open already."""
        self._closed = False

    async def close(self) -> None:
        """End all subscriptions and give back what is out; messages stay for the next `open`."""
        self._closed = True
        for subscription in list(self._subscriptions):
            subscription.fail(BrokerUnavailable("the memory broker was closed"))

    async def ping(self) -> None:
        """Raise BrokerUnavailable after a `close`."""
        if self._closed:
            raise BrokerUnavailable("the memory broker is closed")

    async def publish(
        self, messages: Sequence[Message], *, timeout: timedelta
    ) -> Sequence[BrokerError | None]:
        """Keep the messages; only one over the size limit is refused, for good."""
        del timeout  # memory answers at once
        if self._closed:
            return [BrokerUnavailable("the memory broker is closed") for _ in messages]
        stopped: set[str] = set()
        results = [self._publish(message, stopped) for message in messages]
        self._wake()
        return results

    def subscribe(
        self, topics: Sequence[str], *, group: str, prefetch: int
    ) -> AbstractAsyncContextManager[AsyncIterator[Delivery]]:
        """Receive what was and is published to these topics, shared within the group."""
        if prefetch < 1:
            raise ValueError("prefetch must be at least 1")
        return self._subscribe(frozenset(topics), group, prefetch)

    def lose_consumers(self) -> None:
        """Act as if every consumer had lost its connection with messages in its hands.

        They come again, to whoever asks next; late answers raise DeliveryLost.
        """
        for subscription in list(self._subscriptions):
            subscription.give_back()

    async def queues(self) -> Sequence[QueueStatus]:
        """Return every group's state, by topic, after the topics that no group receives."""
        groups = sorted(self._groups.items())
        alive = Counter(subscription.group.name for subscription in self._subscriptions)
        return [
            *self._unclaimed(),
            *(
                replace(group.status(topic), consumers=alive[name])
                for name, group in groups
                for topic in sorted(group.topics)
            ),
        ]

    async def dead_letters(
        self, group: str | None = None, *, limit: int = 100
    ) -> Sequence[DeadLetter]:
        """Return what was given up, the oldest first."""
        groups = [one for one in self._groups.values() if group in {None, one.name}]
        letters = [letter for one in groups for letter in one.dead]
        return sorted(letters, key=lambda letter: letter.died_at)[:limit]

    async def replay_dead(
        self, group: str, positions: Sequence[int] | None = None, *, limit: int = 1000
    ) -> int:
        """Put dead letters at the end of their group's queue, attempts 0; return how many."""
        letters = self._take_dead(group, positions, limit)
        for letter in letters:
            pending = Pending(next(self._positions), letter.message, self._clock.now())
            self._groups[group].add(pending)
        self._wake()
        return len(letters)

    async def discard_dead(
        self, group: str, positions: Sequence[int] | None = None, *, limit: int = 1000
    ) -> int:
        """Delete dead letters for good; return how many."""
        return len(self._take_dead(group, positions, limit))

    async def drop_group(self, group: str, topics: Sequence[str] | None = None) -> int:
        """End a group's subscription, of all topics or of these; return how many that deleted."""
        if (mine := self._groups.get(group)) is None:
            return 0
        dropped = mine.drop(set(mine.topics) if topics is None else set(topics))
        if not mine.topics:
            del self._groups[group]
        self._wake()
        return dropped

    def _unclaimed(self) -> Sequence[QueueStatus]:
        claimed = {topic for group in self._groups.values() for topic in group.topics}
        found: dict[str, list[datetime]] = {}
        for _, message, at in self._log:
            if message.topic not in claimed:
                found.setdefault(str(message.topic), []).append(at)
        return [
            QueueStatus(
                group="",
                topic=topic,
                ready=len(times),
                out=0,
                delayed=0,
                dead=0,
                oldest_at=min(times),
                consumers=0,
            )
            for topic, times in sorted(found.items())
        ]

    def _publish(self, message: Message, stopped: set[str]) -> BrokerError | None:
        if message.key in stopped:
            return NotAttempted("an earlier message of its key was refused")
        size = len(message.payload)
        if self._limit is not None and size > self._limit:
            if message.key is not None:
                stopped.add(message.key)
            return RefusedForGood(f"its payload of {size} bytes is over the limit {self._limit}")
        now = self._clock.now()
        position = next(self._positions)
        self.published.append(message)
        self._log.append((position, message, now))
        for group in self._groups.values():
            if message.topic in group.topics:
                group.add(Pending(position, message, now))
        return None

    @asynccontextmanager
    async def _subscribe(
        self, topics: frozenset[str], name: str, prefetch: int
    ) -> AsyncIterator[AsyncIterator[Delivery]]:
        await self.ping()
        group = self._groups.setdefault(name, Group(name))
        fresh = topics - group.topics
        group.topics |= fresh
        for position, message, at in self._log:
            if message.topic in fresh:
                group.add(Pending(position, message, at))
        subscription = Subscription(
            group, topics, prefetch=prefetch, clock=self._clock, changed=self._wake
        )
        self._subscriptions.add(subscription)
        try:
            yield subscription
        finally:
            self._subscriptions.discard(subscription)
            subscription.leave()

    def _take_dead(
        self, name: str, positions: Sequence[int] | None, limit: int
    ) -> list[DeadLetter]:
        if (group := self._groups.get(name)) is None:
            return []
        wanted = None if positions is None else frozenset(positions)
        letters = [one for one in group.dead if wanted is None or one.position in wanted][:limit]
        gone = {letter.position for letter in letters}
        group.dead = [one for one in group.dead if one.position not in gone]
        return letters

    def _wake(self) -> None:
        for subscription in self._subscriptions:
            subscription.wake()
