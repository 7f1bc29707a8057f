"""A consumer's side: messages asked for, handed out in their order, and kept alive."""

import asyncio
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any, Self
from uuid import uuid4

from postroom.brokers.nats.api import APPLY, Api
from postroom.brokers.nats.books import Ledger
from postroom.brokers.nats.connection import NobodyAnswers
from postroom.brokers.nats.delivery import IN_PROGRESS, NAK, NatsDelivery, place_of
from postroom.brokers.nats.link import Link
from postroom.brokers.nats.mapping import Packed
from postroom.brokers.nats.pulling import Pulls
from postroom.brokers.nats.topology import Names, check_consumer
from postroom.brokers.nats.wire import Arrived
from postroom.errors import BrokerUnavailable, DeliveryLost

_PATIENCE = 5.0
_SECOND = 1_000_000_000
_TICK = 2.0
"""Seconds between two looks at silence; what is held is touched three times in its patience."""


class Subscription:
    """Iterates over deliveries; ends when it is left, raises when the broker is lost."""

    def __init__(
        self, link: Link, names: Names, group: str, *, prefetch: int, inbox_prefix: str
    ) -> None:
        """Receive for that group, at most so many at once."""
        self._link = link
        self._names = names
        self._group = group
        self._prefetch = prefetch
        self._inbox = f"{inbox_prefix}.{uuid4().hex}"
        self._ledger = Ledger(names, group, link.api)
        self._loop = asyncio.get_running_loop()
        self._ready: list[NatsDelivery] = []
        self._out: set[NatsDelivery] = set()
        self._unknown: set[NatsDelivery] = set()
        """Those whose failed attempts are being looked up."""
        self._changed = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self._moving: set[asyncio.Task[None]] = set()
        self._failure: str | None = None
        self._pulls: Pulls | None = None
        self._pulling = False
        self._sid = 0
        self.patience = 0.0
        self.left = False

    async def join(self) -> None:
        """Begin to receive. Raises BrokerUnavailable, and SettingsError for a wrong consumer."""
        api = await self._link.api()
        name = self._names.consumer(self._group)
        found = await api.consumer(self._names.stream, name)
        if found is None:
            raise BrokerUnavailable(
                f"stream {self._names.stream!r} has no consumer {name!r}; {APPLY}"
            )
        check_consumer(found["config"])
        for stream in (self._names.dead, self._names.tries):
            if await api.stream(stream) is None:
                raise BrokerUnavailable(f"the stream {stream!r} does not exist; {APPLY}")
        self.patience = found["config"]["ack_wait"] / _SECOND
        self._pulls = Pulls(
            api.connection,
            stream=self._names.stream,
            consumer=name,
            inbox=self._inbox,
            prefetch=self._prefetch,
            lost=self.fail,
        )
        self._sid = api.connection.listen(self._inbox.encode(), self._arrived)
        self._spawn(self._tasks, self._tick())
        self._spawn(self._tasks, self._watch(api))
        self._ask()

    async def leave(self) -> None:
        """End, and give back what is here."""
        if self.left:
            return
        if self._moving:
            await asyncio.wait(self._moving, timeout=_PATIENCE)
        self.left = True
        self._changed.set()
        for task in tuple(self._tasks):
            task.cancel()
        with suppress(BrokerUnavailable, TimeoutError):
            async with asyncio.timeout(_PATIENCE):
                await self._give_all_back()

    async def _give_all_back(self) -> None:
        connection = self._link.current
        if connection is not None and connection.ended is None:
            connection.unlisten(self._sid)
            # What was on its way before that has come when this is answered.
            api = await self._link.api()
            with suppress(BrokerUnavailable):
                await api.consumer(self._names.stream, self._names.consumer(self._group))
        rest = sorted((*self._ready, *self._out), key=lambda one: one.place.sequence)
        held = [one for one in rest if not one.lost]
        self._ready.clear()
        self._out.clear()
        if held:
            connection = await self._link.connection()
            connection.write(b"".join(_said(one, NAK) for one in held))

    @property
    def out(self) -> int:
        """How many are here: in the consumer's hands, or waiting for it."""
        return len(self._out) + len(self._ready)

    def __aiter__(self) -> Self:
        """Return itself."""
        return self

    async def __anext__(self) -> NatsDelivery:
        """Wait for the next message."""
        while True:
            if self._failure is not None:
                raise BrokerUnavailable(self._failure)
            if self.left:
                raise StopAsyncIteration
            if self._ready and self._ready[0] not in self._unknown:
                delivery = self._ready.pop(0)
                if delivery.lost:
                    self._ask()
                elif delivery.expired:
                    delivery.hand_out()
                    self._spawn(self._moving, delivery.bury("expired", delivery.failures))
                else:
                    return delivery.hand_out()
                continue
            self._changed.clear()
            await self._changed.wait()

    def fail(self, reason: str) -> None:
        """Raise this from now on."""
        self._failure = self._failure or reason
        self._changed.set()

    # What a delivery calls

    def handed_out(self, delivery: NatsDelivery) -> None:
        """Count it."""
        self._out.add(delivery)

    def ended(self, delivery: NatsDelivery) -> None:
        """Count it no more, and ask for another."""
        self._out.discard(delivery)
        self._ask()

    def give_back(self, delivery: NatsDelivery) -> None:
        """Hand it out again, before everything that came after it.

        It stays with this consumer. The server has nothing better: what it delivers already would
        come first.
        """
        again = delivery.again()
        at = sum(other.place.sequence < again.place.sequence for other in self._ready)
        self._ready.insert(at, again)
        self._changed.set()

    async def tell(self, delivery: NatsDelivery, word: bytes) -> None:
        """Tell the server, and wait until it has heard.

        Over whatever connection there is: what is acknowledged is a message, not a delivery.
        """
        connection = await self._link.connection()
        reply = delivery.arrived.reply
        after = b" %d\r\n%b\r\n" % (len(word), word)
        try:
            await connection.deliver(Packed(b"PUB %b " % reply, after, reply.decode()), _PATIENCE)
        except NobodyAnswers as error:
            raise DeliveryLost("its consumer was deleted") from error

    # What the connection calls

    def _arrived(self, arrived: Arrived) -> None:
        if self._pulls is None or not self._pulls.is_message(arrived, self._loop.time()):
            self._ask()
            return
        place = place_of(arrived.reply)
        if place is None:
            return
        delivery = NatsDelivery(self, self._ledger.books, arrived, place)
        self._ready.append(delivery)
        if place.delivered > 1 and not self.left:
            self._unknown.add(delivery)
            self._spawn(self._tasks, self._look_up(delivery))
        self._changed.set()

    async def _look_up(self, delivery: NatsDelivery) -> None:
        """Find out how often it has failed; nothing that came later is handed out before it."""
        try:
            delivery.failures = await self._ledger.failures(delivery)
        except BrokerUnavailable as error:
            self.fail(error.reason)
        else:
            self._unknown.discard(delivery)
            self._changed.set()

    async def _watch(self, api: Api) -> None:
        await api.connection.done.wait()
        if api.connection.ended is not None:
            self.fail(api.connection.ended.reason)

    async def _tick(self) -> None:
        """Tell the server that what is here is worked on; notice where nothing comes any more."""
        pause = min(self.patience / 3, _TICK)
        touched = self._loop.time()
        while True:
            await asyncio.sleep(pause)
            if self._pulls is not None:
                self._pulls.check(self._loop.time())
            self._ready = [one for one in self._ready if not one.lost]
            self._ask()
            if self._loop.time() - touched >= self.patience / 3 - pause / 2:
                touched = self._loop.time()
                self._touch()

    def _touch(self) -> None:
        connection = self._link.current
        held = [one for one in (*self._ready, *self._out) if not one.lost]
        if held and connection is not None and connection.ended is None:
            connection.write(b"".join(_said(one, IN_PROGRESS) for one in held))
            for one in held:
                one.touched()

    def _ask(self) -> None:
        """Ask for more, once for everything that ends in this moment."""
        if not self._pulling:
            self._pulling = True
            self._loop.call_soon(self._ask_now)

    def _ask_now(self) -> None:
        self._pulling = False
        if self._pulls is not None and self._failure is None and not self.left:
            with suppress(BrokerUnavailable):  # told to those who wait by `_watch`
                self._pulls.ask(self.out, self._loop.time())

    def _spawn(self, kept: "set[asyncio.Task[None]]", work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(work)
        kept.add(task)
        task.add_done_callback(kept.discard)
        task.add_done_callback(self._ended)

    def _ended(self, task: "asyncio.Task[None]") -> None:
        if task.cancelled():
            return
        error = task.exception()
        if isinstance(error, BrokerUnavailable):
            self.fail(error.reason)


def _said(delivery: NatsDelivery, word: bytes) -> bytes:
    return b"PUB %b %d\r\n%b\r\n" % (delivery.arrived.reply, len(word), word)
