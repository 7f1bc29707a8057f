"""Publishing with confirms: batches in one write, a bounded number in flight, one deadline."""

import asyncio
from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from pamqp import commands

from postroom.brokers.rabbitmq import frames
from postroom.brokers.rabbitmq.channel import Arrived, Channel, Closed
from postroom.brokers.rabbitmq.connection import Connection
from postroom.errors import BrokerError, BrokerUnavailable, OutcomeUnknown, RefusedForNow

_UNREAD = object()


class Outgoing(NamedTuple):  # made in a third of a dataclass's time, for every message
    """A message as it goes on the wire, and what a returned one is known by."""

    data: bytes
    id: str
    routing_key: str


class _Flight:
    """Messages that were written together, and what the broker said to each."""

    __slots__ = ("_index", "done", "first", "low", "missing", "outgoing", "results", "returned")

    def __init__(
        self, first: int, outgoing: Sequence[Outgoing], done: "asyncio.Future[None]"
    ) -> None:
        self.first = first
        self.outgoing = outgoing
        self.done = done
        self.missing = len(outgoing)
        self.results: list[BrokerError | object | None] = [_UNREAD] * len(outgoing)
        self.low = 0
        self.returned: dict[int, BrokerError] = {}
        self._index: dict[tuple[str, str], deque[int]] | None = None

    def settle(self, position: int, *, positive: bool) -> None:
        if self.results[position] is _UNREAD:
            self.missing -= 1
            if positive:
                self.results[position] = self.returned.get(position) if self.returned else None
            else:
                self.results[position] = RefusedForNow(
                    "the broker refused it (negative confirm: its queue is full or has failed)"
                )

    def settle_up_to(self, position: int, *, positive: bool) -> None:
        end = min(position + 1, len(self.outgoing))
        unread = self.results[self.low : end].count(_UNREAD)
        if positive and not self.returned and unread == end - self.low:
            self.results[self.low : end] = [None] * unread
            self.missing -= unread
        else:
            for each in range(self.low, end):
                self.settle(each, positive=positive)
        self.low = max(self.low, end)

    def give_back(self, content: Arrived) -> bool:
        """Note a returned message; say whether it is one of these."""
        try:
            message_id = frames.read_header(content.header)[1].text(frames.MESSAGE_ID) or ""
        except frames.Malformed:
            return False
        name = message_id, frames.readable(content.routing_key)
        if self._index is None:
            self._index = {}
            for position, each in enumerate(self.outgoing):
                key = each.id, each.routing_key
                self._index.setdefault(key, deque()).append(position)
        waiting = self._index.get(name)
        while waiting:
            position = waiting.popleft()
            if self.results[position] is _UNREAD:
                self.returned[position] = RefusedForNow(
                    f"no queue takes messages of topic {name[1]!r} ({content.code} {content.text})"
                )
                return True
        return False


class Confirms:
    """A channel in confirm mode; any number of calls may be under way."""

    def __init__(self, connection: Connection, *, window: int) -> None:
        """Have at most `window` messages in flight."""
        self.connection = connection
        self._window = window
        self._flights: deque[_Flight] = deque()
        self._published = 0
        self._in_flight = 0
        self._room = asyncio.Event()
        self._turn = asyncio.Lock()
        self._ended: Closed | None = None
        self._channel: Channel | None = None
        self._calls = 0
        self._retired = False

    async def open(self) -> None:
        """Open the channel. Raises BrokerUnavailable."""
        channel = await self.connection.channel(self)
        await channel.call(commands.Confirm.Select(), commands.Confirm.SelectOk)
        self._channel = channel

    @property
    def usable(self) -> bool:
        """Whether messages can be published on it."""
        return self._ended is None and self._channel is not None and not self._retired

    @property
    def number(self) -> int:
        """The number of its channel, for frames."""
        if self._channel is None:
            raise BrokerUnavailable("the channel is not open")
        return self._channel.number

    async def publish(
        self, outgoing: Sequence[Outgoing], *, until: float
    ) -> list[BrokerError | None]:
        """Write the messages and wait for their confirms until that time of the loop.

        One result for each. Never raises for what the broker does.
        """
        flights: list[_Flight] = []
        timed_out = False
        began = self._now()
        self._calls += 1
        try:
            async with asyncio.timeout_at(until):
                await self._write(outgoing, flights)
                for flight in flights:
                    await asyncio.shield(flight.done)
        except TimeoutError:
            timed_out = True
            self._give_up(began)
        finally:
            for flight in flights:
                flight.done.cancel()
            self._calls -= 1
            if self._retired and not self._calls and self._channel is not None:
                self._channel.drop()
        written = sum(len(flight.outgoing) for flight in flights)
        results = [
            self._result(result, timed_out=timed_out)
            for flight in flights
            for result in flight.results
        ]
        unsent = self._why_unsent()
        return results + [unsent] * (len(outgoing) - written)

    # What the channel calls

    def acknowledged(self, tag: int, *, multiple: bool, positive: bool) -> None:
        """Settle one message, or all up to it."""
        before = self._in_flight
        for flight in self._flights:
            position = tag - flight.first
            if position < 0:
                break
            missing = flight.missing
            if multiple:
                flight.settle_up_to(position, positive=positive)
            elif position < len(flight.outgoing):
                flight.settle(position, positive=positive)
            self._in_flight -= missing - flight.missing
            if not flight.missing and not flight.done.done():
                flight.done.set_result(None)
        while self._flights and not self._flights[0].missing:
            self._flights.popleft()
        if self._in_flight < before:
            self._room.set()

    def arrived(self, content: Arrived) -> None:
        """Note a message that no queue takes; its confirm follows."""
        any(flight.give_back(content) for flight in self._flights)

    def cancelled(self) -> None:
        """Nothing is consumed here."""

    def closed(self, how: Closed) -> None:
        """End all calls."""
        self._ended = how
        self._room.set()
        for flight in self._flights:
            if not flight.done.done():
                flight.done.set_result(None)

    async def _write(self, outgoing: Sequence[Outgoing], flights: list[_Flight]) -> None:
        async with self._turn:  # so that the parts of two calls do not mix
            at = 0
            while at < len(outgoing) and self._ended is None:
                if self.connection.blocked is not None:
                    return
                room = self._window - self._in_flight
                if room <= 0:
                    self._room.clear()
                    await self._room.wait()
                    continue
                part = outgoing[at : at + room]
                flight = _Flight(
                    self._published + 1, part, asyncio.get_running_loop().create_future()
                )
                flights.append(flight)
                self._flights.append(flight)
                self._published += len(part)
                self._in_flight += len(part)
                at += len(part)
                self.connection.write(b"".join([each.data for each in part]))

    def _give_up(self, began: float) -> None:
        """Let the next call have another channel, and a connection that is not dead.

        What is not confirmed may stay so, as in a queue without its majority, and must not take
        the room of others for ever. Behind a silent wire new copies would only queue. A blocked
        connection is kept: on it the broker says when that is over.
        """
        if self.connection.blocked is not None:
            return
        self._retired = True
        if self.connection.heard_at <= began:
            self.connection.abort("the broker did not answer in time", silent=True)

    def _result(
        self, result: BrokerError | object | None, *, timed_out: bool
    ) -> BrokerError | None:
        if result is None or isinstance(result, BrokerError):
            return result
        if timed_out:
            blocked = self.connection.blocked
            why = f"; it takes no messages now ({blocked})" if blocked else ""
            return OutcomeUnknown(f"the broker did not confirm it in time{why}", timed_out=True)
        how = self._ended or Closed(reason="the call was ended")
        return OutcomeUnknown(how.reason, error_reply=how.error_reply, timed_out=how.silent)

    def _why_unsent(self) -> BrokerError:
        if self._ended is not None:
            return BrokerUnavailable(self._ended.reason)
        if self.connection.blocked is not None:
            return BrokerUnavailable(f"the broker takes no messages: {self.connection.blocked}")
        return BrokerUnavailable("the broker confirms too slowly: no room for more in flight")

    @staticmethod
    def _now() -> float:
        return asyncio.get_running_loop().time()
