"""A consumer's side: waiting for deliveries, and the four ways to end one."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import count
from typing import Any, Self

from postroom._clock import LONGEST as LONGEST_SPAN
from postroom._clock import to_micros
from postroom.brokers.rabbitmq import frames, mapping
from postroom.brokers.rabbitmq.channel import Arrived, Channel, Closed
from postroom.brokers.rabbitmq.mapping import Copy
from postroom.brokers.rabbitmq.topology import LONGEST
from postroom.errors import BrokerUnavailable, DeliveryLost, printable
from postroom.message import Message

_NEARLY = timedelta(milliseconds=20)
"""What comes so little before its time is handed out: clocks are not that exact."""


class OversizedError(Exception):
    """The properties of a copy do not fit into one frame."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Copies:
    """How a subscription publishes its copies; raises BrokerUnavailable or OversizedError."""

    delayed: Callable[[Copy, timedelta], Awaitable[None]]
    dead: Callable[[Copy], Awaitable[None]]


class Subscription:
    """Iterates over deliveries; ends when it is left, raises when the broker is lost."""

    def __init__(self, copies: Copies) -> None:
        """Send copies by these means."""
        self.copies = copies
        self._channel: Channel | None = None
        self._ready: list[RabbitmqDelivery] = []
        self._out: set[RabbitmqDelivery] = set()
        self._changed = asyncio.Event()
        self._failure: str | None = None
        self._left = False
        self._moving: set[asyncio.Task[None]] = set()

    def attach(self, channel: Channel) -> None:
        """Answer on that channel."""
        self._channel = channel

    @property
    def out(self) -> int:
        """How many are here: in the consumer's hands, or waiting for it."""
        return len(self._out) + len(self._ready)

    @property
    def over(self) -> bool:
        """Whether what was handed out is in other hands now."""
        return self._left or self._channel is None or self._channel.ended is not None

    def __aiter__(self) -> Self:
        """Return itself."""
        return self

    async def __anext__(self) -> "RabbitmqDelivery":
        """Wait for the next message."""
        while True:
            if self._failure is not None:
                raise BrokerUnavailable(self._failure)
            if self._left:
                raise StopAsyncIteration
            if self._ready:
                delivery = self._ready.pop(0)
                if (move := delivery.out_of_time()) is None:
                    return delivery.hand_out()
                self._move(move)
                continue
            self._changed.clear()
            await self._changed.wait()

    def handed_out(self, delivery: "RabbitmqDelivery") -> None:
        """Count it."""
        self._out.add(delivery)

    def ended(self, delivery: "RabbitmqDelivery") -> None:
        """Count it no more."""
        self._out.discard(delivery)

    def give_back(self, delivery: "RabbitmqDelivery") -> None:
        """Hand it out again, before everything that came after it.

        It stays with this consumer. The broker has nothing better: it would put the message
        behind those that are here already, and count a failure.
        """
        again = delivery.again()
        at = sum(other.tag < again.tag for other in self._ready)
        self._ready.insert(at, again)
        self._changed.set()

    def answer(self, tag: int, method: int, flags: bytes) -> None:
        """Tell the broker what became of a delivery. Raises DeliveryLost."""
        if self.over or self._channel is None:
            raise _lost()
        data = frames.tagged_method(method, self._channel.number, tag, flags)
        self._channel.write(data)

    async def leave(self) -> None:
        """End; the broker gives what is out to others."""
        if self._moving:
            await asyncio.wait(self._moving, timeout=_PATIENCE)
        self._left = True
        self._changed.set()
        closing = self._channel.drop() if self._channel is not None else None
        if self._channel is not None and closing is not None:
            await asyncio.wait((closing,), timeout=_PATIENCE)
            if not closing.done():
                self._channel.connection.abort("the broker did not answer in time")

    def fail(self, reason: str) -> None:
        """Raise this from now on."""
        self._failure = self._failure or reason
        self._changed.set()

    # What the channel calls

    def arrived(self, content: Arrived) -> None:
        """Take a delivery; what nobody can read goes to the dead letters as it is."""
        if self.over:
            return
        try:
            delivery = RabbitmqDelivery(self, content)
        except frames.Malformed:
            self.answer(content.tag, frames.REJECT, b"\0")
            return
        self._ready.append(delivery)
        self._changed.set()

    def acknowledged(self, tag: int, *, multiple: bool, positive: bool) -> None:
        """Nothing is published here."""

    def cancelled(self) -> None:
        """Hear that the queue is gone, or that its leader moved."""
        self.fail("the broker ended the consumer: its queue was deleted or has moved")

    def closed(self, how: Closed) -> None:
        """Hear that the channel or the connection has ended."""
        if not self._left:
            self.fail(how.reason)

    def _move(self, move: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(move)
        self._moving.add(task)
        task.add_done_callback(self._moved)

    def _moved(self, task: "asyncio.Task[None]") -> None:
        self._moving.discard(task)
        if not task.cancelled() and isinstance(error := task.exception(), BrokerUnavailable):
            self.fail(error.reason)


_PATIENCE = 5.0


class RabbitmqDelivery:
    """One message in a consumer's hands.

    Where an answer raises BrokerUnavailable the delivery has not ended: try again, or leave the
    subscription, which gives it back.
    """

    def __init__(self, subscription: Subscription, content: Arrived) -> None:
        """Read what arrived. Raises Malformed."""
        _, self.properties = frames.read_header(content.header)
        self.message: Message = mapping.message_of(
            self.properties, content.routing_key, content.body
        )
        self._failed = max(self.properties.number(mapping.ATTEMPTS) or 0, 0)
        self._subscription = subscription
        self._content = content
        self._again = False
        self._open = False

    @property
    def tag(self) -> int:
        """The broker's number for it, in the order of the queue."""
        return self._content.tag

    @property
    def attempt(self) -> int | None:
        """1 for the first; one more for every `retry` before."""
        return self._failed + 1

    @property
    def redelivered(self) -> bool:
        """Whether it was handed out before; a copy may have been handled."""
        return self._again or self._content.redelivered or self._failed > 0

    def hand_out(self) -> Self:
        """Let it be answered."""
        self._reopen()
        return self

    def again(self) -> "RabbitmqDelivery":
        """Return another delivery of the same."""
        other = RabbitmqDelivery(self._subscription, self._content)
        other._again = True
        return other

    def out_of_time(self) -> Coroutine[Any, Any, None] | None:
        """Return what has to be done with it instead of handing it out, if anything."""
        now = datetime.now(UTC)
        if self.message.expires_at is not None and self.message.expires_at <= now:
            self._reopen()
            return self._bury("expired", self._failed)
        due = mapping.moment_of(self.properties, mapping.DUE_AT)
        if due is not None and due - now > _NEARLY:
            self._reopen()
            return self._delay(due - now, self._failed, self.properties.header(mapping.REASON))
        return None

    async def ack(self) -> None:
        """Tell the broker that the message is done."""
        self._end()
        self._done()

    async def retry(self, delay: timedelta, reason: str) -> None:
        """Have it delivered again after the delay, counted as a failed attempt."""
        await self._delay(min(delay, LONGEST_SPAN), self._failed + 1, printable(reason))

    async def release(self) -> None:
        """Give it back at once, uncounted."""
        self._end()
        self._subscription.give_back(self)

    async def reject(self, reason: str) -> None:
        """Move it to the dead letters of its group, with the reason."""
        await self._bury(reason, self._failed + 1)

    async def _delay(self, delay: timedelta, failed: int, reason: str | None) -> None:
        due = None
        if delay > LONGEST:
            due, delay = to_micros(datetime.now(UTC) + delay), LONGEST
        headers = mapping.extras(
            attempts=failed, topic=self.message.topic, reason=reason, due_at=due
        )
        copy = mapping.copy_of(self.properties, self.message.payload, headers)
        await self._replace(lambda: self._subscription.copies.delayed(copy, delay))

    async def _bury(self, reason: str, failed: int) -> None:
        now = to_micros(datetime.now(UTC))
        headers = mapping.extras(
            attempts=failed,
            topic=self.message.topic,
            reason=printable(reason),
            died_at=now,
            position=_position(now),
        )
        copy = mapping.copy_of(self.properties, self.message.payload, headers)
        await self._replace(lambda: self._subscription.copies.dead(copy))

    async def _replace(self, publish: Callable[[], Awaitable[None]]) -> None:
        """Publish the copy, and only then let go of the original."""
        self._end()
        try:
            await publish()
        except OversizedError:
            # As it came, by the broker itself: it fits, but not together with what we add.
            self._subscription.answer(self.tag, frames.REJECT, b"\0")
            return
        except BaseException:
            self._reopen()
            raise
        self._done()

    def _end(self) -> None:
        if not self._open or self._subscription.over:
            raise _lost()
        self._open = False
        self._subscription.ended(self)

    def _reopen(self) -> None:
        self._open = True
        self._subscription.handed_out(self)

    def _done(self) -> None:
        self._subscription.answer(self.tag, frames.ACK, b"\0")


def _lost() -> DeliveryLost:
    return DeliveryLost("the broker has given this delivery to another consumer")


_last_position = count(1)


def _position(now: int) -> int:
    """Return a number for a dead letter: later ones have higher ones, in one process no two."""
    return now * 1024 + next(_last_position) % 1024
