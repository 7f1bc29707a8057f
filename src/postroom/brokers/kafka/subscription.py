"""A consumer's side: waiting for deliveries, and the four ways to end one."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import timedelta
from typing import Any, Self

from postroom._clock import LONGEST
from postroom.brokers.kafka.listening import Hearing, Listener
from postroom.brokers.kafka.partition import Partition, Received
from postroom.errors import BrokerUnavailable, DeliveryLost, printable
from postroom.message import Message

_JOINING = 3.0
"""Seconds to wait for the first partitions; a group may have more consumers than partitions."""
_LEAVING = 15.0

Bury = Callable[[Partition, Received, str], Awaitable[None]]
Probe = Callable[[], Awaitable[None]]


class Subscription(Hearing):
    """Iterates over deliveries; ends when it is left, raises when the broker is lost."""

    def __init__(
        self,
        config: Mapping[str, Any],
        topics: Sequence[str],
        *,
        prefetch: int,
        patience: float,
        bury: Bury,
        probe: Probe,
    ) -> None:
        """Receive as that configuration says.

        `bury` keeps a dead letter, `probe` tells whether a broker can be reached; both raise
        BrokerUnavailable.
        """
        self.bury = bury
        self._probe = probe
        self._prefetch = prefetch
        self._loop = asyncio.get_running_loop()
        self._changed = asyncio.Event()
        self._joined = asyncio.Event()
        self._over = asyncio.Event()
        self._out: set[KafkaDelivery] = set()
        self._left = False
        self._failure: str | None = None
        self._probing: asyncio.Task[None] | None = None
        self.listener = Listener(config, topics, self, prefetch=prefetch, patience=patience)

    @property
    def out(self) -> int:
        """How many are in the consumer's hands."""
        return len(self._out)

    async def join(self) -> None:
        """Join the group, and wait a while for partitions. Raises BrokerUnavailable."""
        self.listener.start()
        joined = asyncio.ensure_future(self._joined.wait())
        over = asyncio.ensure_future(self._over.wait())
        try:
            await asyncio.wait(
                (joined, over), timeout=_JOINING, return_when=asyncio.FIRST_COMPLETED
            )
        finally:
            joined.cancel()
            over.cancel()
        if self._failure is not None:
            raise BrokerUnavailable(self._failure)

    async def leave(self) -> None:
        """End; what is out comes to others."""
        self._left = True
        self._changed.set()
        with self.listener.lock:
            self._out.clear()
        self.listener.stop()
        if self._probing is not None:
            self._probing.cancel()
        ending = asyncio.ensure_future(self._over.wait())
        await asyncio.wait((ending,), timeout=_LEAVING)
        ending.cancel()

    def fail(self, reason: str) -> None:
        """Raise this from now on."""
        self._failure = self._failure or reason
        self._changed.set()

    def __aiter__(self) -> Self:
        """Return itself."""
        return self

    async def __anext__(self) -> "KafkaDelivery":
        """Wait for the next message."""
        while True:
            if self._failure is not None:
                raise BrokerUnavailable(self._failure)
            if self._left:
                raise StopAsyncIteration
            self._changed.clear()
            delivery, due = self._take()
            if delivery is not None:
                return delivery
            try:
                async with asyncio.timeout(None if due is None else max(due, 0)):
                    await self._changed.wait()
            except TimeoutError:
                pass

    def _take(self) -> "tuple[KafkaDelivery | None, float | None]":
        """Return the next delivery, or the seconds until a delay ends."""
        now = time.monotonic()
        due: float | None = None
        with self.listener.lock:
            self._out = {one for one in self._out if not one.partition.lost}
            if len(self._out) >= self._prefetch:
                return None, None
            partitions = self.listener.partitions
            for place, partition in tuple(partitions.items()):
                partition.wake(now)
                record = partition.take()
                if record is not None:
                    # The others come first the next time.
                    partitions[place] = partitions.pop(place)
                    delivery = KafkaDelivery(self, partition, record)
                    self._out.add(delivery)
                    return delivery, None
                if partition.next_due is not None:
                    due = min(due or partition.next_due, partition.next_due)
        return None, None if due is None else due - now

    def end(self, delivery: "KafkaDelivery", how: Callable[[], None]) -> None:
        """Take the delivery out of the consumer's hands, in this way. Raises DeliveryLost."""
        with self.listener.lock:
            self._check(delivery)
            self._out.discard(delivery)
            how()
            self.listener.lock.notify_all()
        self._changed.set()

    def check(self, delivery: "KafkaDelivery") -> None:
        """Raise DeliveryLost where the delivery is not ours any more."""
        with self.listener.lock:
            self._check(delivery)

    def _check(self, delivery: "KafkaDelivery") -> None:
        held = delivery in self._out and delivery.partition.has(delivery.record)
        if self._left or not held or self.listener.expelled:
            raise DeliveryLost("the group has given this delivery to another consumer")

    # What the thread tells

    def changed(self) -> None:
        """Look again."""
        self._tell(self._changed.set)

    def assigned(self) -> None:
        """Hear that partitions are ours."""
        self._tell(self._joined.set)

    def failed(self, reason: str) -> None:
        """Hear that nothing more comes."""
        self._tell(lambda: self.fail(reason))
        self._tell(self._joined.set)

    def doubtful(self) -> None:
        """Hear that no broker may be reachable."""
        self._tell(self._ask)

    def ended(self) -> None:
        """Hear that the thread has ended."""
        self._tell(self._over.set)

    def _tell(self, what: Callable[[], object]) -> None:
        try:
            self._loop.call_soon_threadsafe(what)
        except RuntimeError:
            return  # the loop is closed, and nobody listens

    def _ask(self) -> None:
        if not self._left and (self._probing is None or self._probing.done()):
            self._probing = asyncio.ensure_future(self._ask_whether_it_is_there())

    async def _ask_whether_it_is_there(self) -> None:
        try:
            await self._probe()
        except BrokerUnavailable as error:
            self.fail(error.reason)


class KafkaDelivery:
    """One message in a consumer's hands."""

    attempt: int | None = None
    """Kafka does not count."""

    def __init__(self, subscription: Subscription, partition: Partition, record: Received) -> None:
        """Hand out that record of that partition."""
        self.partition = partition
        self.record = record
        self.message: Message = record.message
        self.redelivered = record.again
        self._subscription = subscription

    async def ack(self) -> None:
        """Let the offset pass it; it is committed within a fraction of a second."""
        self._subscription.end(self, lambda: self.partition.done(self.record))

    async def retry(self, delay: timedelta, reason: str) -> None:
        """Keep it here for the delay, and its key's later messages behind it."""
        del reason  # whoever counts the attempts says it when it gives up
        due = time.monotonic() + min(delay, LONGEST).total_seconds()
        self._subscription.end(self, lambda: self.partition.retry(self.record, due))

    async def release(self) -> None:
        """Hand it out again, before everything that came after it."""
        self._subscription.end(self, lambda: self.partition.release(self.record))

    async def reject(self, reason: str) -> None:
        """Copy it to the dead letters of its group; only then is it done."""
        self._subscription.check(self)
        await self._subscription.bury(self.partition, self.record, printable(reason))
        self._subscription.end(self, lambda: self.partition.done(self.record))
