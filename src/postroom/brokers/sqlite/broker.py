"""The embedded broker: publishing into the file, subscribing, and looking at the queues."""

import asyncio
import os
import time
from collections.abc import AsyncIterator, Sequence
from concurrent.futures import Future
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from datetime import timedelta
from functools import partial
from pathlib import Path
from sqlite3 import Connection
from typing import TypeVar
from uuid import uuid4

from postroom._clock import LONGEST_PATIENCE, Clock, SystemClock, check_span, to_micros
from postroom.broker import BrokerFeatures, DeadLetter, Delivery, QueueStatus
from postroom.brokers.sqlite import delivering, inspecting, publishing
from postroom.brokers.sqlite.delivering import Consumer
from postroom.brokers.sqlite.file import SCHEMA_VERSION
from postroom.brokers.sqlite.lives import Lives
from postroom.brokers.sqlite.publishing import Horizon
from postroom.brokers.sqlite.rows import refusal
from postroom.brokers.sqlite.subscription import Subscription
from postroom.brokers.sqlite.watch import Watch
from postroom.brokers.sqlite.worker import Work, Worker
from postroom.errors import BrokerError, BrokerUnavailable, NotAttempted, OutcomeUnknown
from postroom.message import Message

T = TypeVar("T")

_ABANDONED: list[Worker] = []
_BEATS_PER_LEASE = 4
_SHORTEST_LEASE = timedelta(milliseconds=100)
_PRUNE_EVERY = 60.0
_LARGEST_LIMIT = 500_000_000  # SQLite itself takes a little under 1 GB for a row


class EmbeddedBroker:
    """Durable topics and consumer groups in one SQLite file, for the processes of one machine.

    Confirmed means committed and on the disk. Every group receives every message of its topics
    once it is acknowledged; the consumers of a group share them, and a key is with one of them
    at a time, in order. A consumer that shows no life for `lease` loses what it had in its
    hands to the others. A group that subscribes for the first time receives everything that is
    still kept: messages that all their groups have finished stay for `retention`, those of
    topics that nobody subscribes to for `unclaimed_retention`.

    Example:
        broker = EmbeddedBroker("broker.db")
        await broker.open()
        async with broker.subscribe(["shop.order-placed"], group="billing", prefetch=8) as box:
            async for delivery in box:
                ...
                await delivery.ack()
    """

    name = "sqlite"

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        clock: Clock | None = None,
        lease: timedelta = timedelta(seconds=15),
        max_message_bytes: int = 1_048_576,
        busy_timeout: timedelta = timedelta(seconds=5),
        retention: timedelta = timedelta(days=1),
        unclaimed_retention: timedelta = timedelta(days=7),
    ) -> None:
        """Remember the settings; the file is created by the first use.

        `max_message_bytes` limits the payload. `busy_timeout` is how long anything waits while
        another process holds the file's write lock.
        """
        if str(path) == ":memory:":
            raise ValueError("the embedded broker needs a file; for memory there is MemoryBroker")
        if not 0 < max_message_bytes <= _LARGEST_LIMIT:
            raise ValueError(f"max_message_bytes must be from 1 to {_LARGEST_LIMIT}")
        check_span("lease", lease, least=_SHORTEST_LEASE)
        check_span("busy_timeout", busy_timeout, most=LONGEST_PATIENCE)
        check_span("retention", retention)
        check_span("unclaimed_retention", unclaimed_retention)
        self.path = Path(path).absolute()
        self._clock = clock or SystemClock()
        self._lease = lease
        self._limit = max_message_bytes
        self._patience = busy_timeout.total_seconds()
        self._retention = retention
        self._unclaimed_retention = unclaimed_retention
        self._interval = lease.total_seconds() / _BEATS_PER_LEASE
        self._lives = Lives(late=self._interval * 2)
        self._worker: Worker | None = None
        self._pid = os.getpid()
        self._watch: Watch | None = None
        self._closed = False
        self._subscriptions: tuple[Subscription, ...] = ()  # replaced, never changed: threads read
        self._prune_at = 0.0

    @property
    def features(self) -> BrokerFeatures:
        """What this broker can do."""
        return BrokerFeatures(
            durable=True,
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
        """Get ready; idempotent. Does not touch the file yet: `ping` tells whether it works."""
        self._abandon_if_forked()
        self._closed = False

    async def close(self) -> None:
        """End all subscriptions, give back what is out, and end the threads; idempotent."""
        self._abandon_if_forked()
        self._closed = True
        for subscription in self._subscriptions:
            subscription.fail(BrokerUnavailable("the embedded broker was closed"))
            self._give_back(subscription)
        watch, self._watch = self._watch, None
        worker, self._worker = self._worker, None
        if watch is not None:
            await asyncio.to_thread(watch.stop)
        if worker is not None:
            await asyncio.to_thread(worker.stop)

    async def ping(self) -> None:
        """Raise BrokerUnavailable where the file cannot be written now."""
        await self._change(_write_something)

    async def publish(
        self, messages: Sequence[Message], *, timeout: timedelta
    ) -> Sequence[BrokerError | None]:
        """Commit the messages in one transaction; None for each that is on the disk."""
        refused = self._refusals(messages)
        good = [message for message, no in zip(messages, refused, strict=True) if no is None]
        if not good:
            return refused
        verdict = await self._publish(good, timeout.total_seconds())
        return [verdict if no is None else no for no in refused]

    def subscribe(
        self, topics: Sequence[str], *, group: str, prefetch: int
    ) -> AbstractAsyncContextManager[AsyncIterator[Delivery]]:
        """Receive what is sent to these topics; the consumers of a group share it.

        Entering raises BrokerUnavailable where the file cannot be used, as iterating does.
        """
        if prefetch < 1:
            raise ValueError("prefetch must be at least 1")
        consumer = Consumer(
            name=uuid4().hex,
            group=group,
            topics=tuple(dict.fromkeys(topics)),
            lease=self._lease // timedelta(microseconds=1),
        )
        return self._subscribe(consumer, prefetch)

    async def queues(self) -> Sequence[QueueStatus]:
        """Return every group's state, by topic, after the topics that no group receives."""
        return await self._read(partial(inspecting.queues, now=self._now()))

    async def dead_letters(
        self, group: str | None = None, *, limit: int = 100
    ) -> Sequence[DeadLetter]:
        """Return what was given up, the oldest first."""
        return await self._read(partial(inspecting.dead_letters, group=group, limit=limit))

    async def replay_dead(
        self, group: str, positions: Sequence[int] | None = None, *, limit: int = 1000
    ) -> int:
        """Put dead letters at the end of their group's queue, attempts 0; return how many."""
        now = self._now()
        return await self._change(
            partial(inspecting.replay_dead, group=group, positions=positions, limit=limit, now=now)
        )

    async def discard_dead(
        self, group: str, positions: Sequence[int] | None = None, *, limit: int = 1000
    ) -> int:
        """Delete dead letters for good; return how many."""
        return await self._change(
            partial(inspecting.discard_dead, group=group, positions=positions, limit=limit)
        )

    async def drop_group(self, group: str, topics: Sequence[str] | None = None) -> int:
        """End a group's subscription, of all topics or of these; return how many that deleted."""
        return await self._change(partial(inspecting.drop_group, group=group, topics=topics))

    def _refusals(self, messages: Sequence[Message]) -> list[BrokerError | None]:
        results: list[BrokerError | None] = []
        stopped: set[str] = set()
        for message in messages:
            if message.key in stopped:
                results.append(NotAttempted("an earlier message of its key was refused"))
                continue
            no = refusal(message, self._limit)
            if no is not None and message.key is not None:
                stopped.add(message.key)
            results.append(no)
        return results

    async def _publish(self, messages: Sequence[Message], seconds: float) -> BrokerError | None:
        work = partial(publishing.publish, messages=messages, now=self._now())
        patience = min(seconds * 0.9, self._patience)  # answer before the caller's time is over
        try:
            job = self._working().write(work, patience=patience, durable=True)
        except BrokerUnavailable as closed:
            return closed
        future = _wrapped(job)
        try:
            await asyncio.wait({future}, timeout=seconds)
        except asyncio.CancelledError:
            job.cancel()
            raise
        if future.done():
            return self._verdict(future)
        if job.cancel():
            return BrokerUnavailable(f"{self.path}: not even begun within the time-out")
        return OutcomeUnknown(f"{self.path}: no answer within the time-out", timed_out=True)

    def _verdict(self, future: "asyncio.Future[None]") -> BrokerError | None:
        failure = future.exception()
        if failure is None:
            self._prune_if_due()
            return None
        if isinstance(failure, BrokerError):
            return failure
        raise failure

    @asynccontextmanager
    async def _subscribe(
        self, consumer: Consumer, prefetch: int
    ) -> AsyncIterator[AsyncIterator[Delivery]]:
        worker = self._working()
        join = partial(delivering.join, consumer=consumer, now=self._now())
        await self._change(join)
        self._prune_if_due()
        subscription = Subscription(
            worker, consumer, prefetch=prefetch, clock=self._clock, patience=self._patience
        )
        self._subscriptions = (*self._subscriptions, subscription)
        if self._watch is None:
            self._watch = Watch(self.path, self._hint)
        try:
            yield subscription
        finally:
            left = self._give_back(subscription)
            with suppress(BrokerError):  # then the lease gives it back
                await asyncio.shield(left)

    def _give_back(self, subscription: Subscription) -> "asyncio.Future[None]":
        others = (one for one in self._subscriptions if one is not subscription)
        self._subscriptions = tuple(others)
        return _wrapped(subscription.leave())

    async def _read(self, work: Work[T]) -> T:
        return await _wrapped(self._working().read(work, patience=self._patience))

    async def _change(self, work: Work[T]) -> T:
        job = self._working().write(work, patience=self._patience, durable=True)
        try:
            return await _wrapped(job)
        except OutcomeUnknown as unknown:
            raise BrokerUnavailable(unknown.reason) from unknown

    def _working(self) -> Worker:
        if self._closed:
            raise BrokerUnavailable("the embedded broker is closed")
        if self._worker is not None and self._pid != os.getpid():
            raise BrokerUnavailable(
                "the embedded broker was used before the fork: open it in the child, too"
            )
        if self._worker is None:
            self._pid = os.getpid()
            self._worker = Worker(
                self.path, beat=self._beat, interval=self._interval, committed=self._hint
            )
        return self._worker

    def _abandon_if_forked(self) -> None:
        """Forget, unclosed, what belongs to the parent: its threads did not come along."""
        if self._worker is None or self._pid == os.getpid():
            return
        _ABANDONED.append(self._worker)
        self._worker = self._watch = None
        self._subscriptions = ()

    def _now(self) -> int:
        return to_micros(self._clock.now())

    # These run on the worker's thread, or the watch's.

    def _hint(self) -> None:
        for subscription in self._subscriptions:
            subscription.hint()

    def _beat(self) -> Work[None] | None:
        ours = [subscription.consumer for subscription in self._subscriptions]
        if not ours:
            return None

        def beat(connection: Connection) -> None:  # the time counts from when the lock is there
            self._lives.beat(connection, ours, now=self._now(), elapsed=time.monotonic())

        return beat

    def _prune_if_due(self) -> None:
        if time.monotonic() >= self._prune_at:
            self._prune_at = time.monotonic() + _PRUNE_EVERY
            self._prune(0)

    def _prune(self, low: int) -> None:
        if (worker := self._worker) is None:
            return
        now = self._clock.now()
        horizon = Horizon(
            claimed_before=to_micros(now - self._retention),
            unclaimed_before=to_micros(now - max(self._retention, self._unclaimed_retention)),
        )
        work = partial(publishing.prune, low=low, horizon=horizon)
        worker.write(work, patience=self._patience).add_done_callback(self._pruned)

    def _pruned(self, job: "Future[int | None]") -> None:
        if job.cancelled() or job.exception() is not None:
            return  # the next time is soon enough
        if (low := job.result()) is not None:
            self._prune(low)


def _wrapped(job: "Future[T]") -> "asyncio.Future[T]":
    """Return the job for this loop; nobody has to ask for its failure."""
    future = asyncio.wrap_future(job)
    future.add_done_callback(_look_at_failure)
    return future


def _look_at_failure(future: "asyncio.Future[T]") -> None:
    if not future.cancelled():
        future.exception()


def _write_something(connection: Connection) -> None:
    connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
