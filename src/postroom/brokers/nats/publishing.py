"""Publishing with PubAcks: batches in one write, keys in order, one deadline."""

import asyncio
from collections import deque
from collections.abc import Sequence

from postroom.brokers.nats.connection import Closed, Connection
from postroom.brokers.nats.mapping import Packed
from postroom.brokers.nats.refusals import Answers
from postroom.brokers.nats.wire import Arrived
from postroom.errors import (
    BrokerError,
    BrokerUnavailable,
    NotAttempted,
    OutcomeUnknown,
    RefusedForNow,
)

_END = -1
_BEGIN_UNTIL = 0.8
"""The part of a call's time after which no message is begun for the sake of its key.

A slow server then leaves messages that were not attempted, and none without an answer.
"""
_UNREAD = object()

Outgoing = tuple[Packed | BrokerError, str | None]
"""A message, or why it can never be one, and its key."""


class _Call:
    """The messages of one call, and what became of each.

    Of a key the next is written only when the one before it is confirmed: a stream may refuse
    one message (it is full) and take the next (a moment later it is not).
    """

    __slots__ = (
        *("_after", "done", "first", "flying", "latest", "messages", "missing", "results", "todo"),
    )

    def __init__(
        self, first: int, outgoing: Sequence[Outgoing], done: "asyncio.Future[None]", latest: float
    ) -> None:
        self.first = first
        self.done = done
        self.latest = latest
        self.messages: list[Packed | None] = []
        self.results: list[BrokerError | object | None] = [_UNREAD] * len(outgoing)
        self.missing = len(outgoing)
        self.flying: set[int] = set()
        self.todo: deque[int] = deque()
        self._after = [_END] * len(outgoing)
        last: dict[str, int] = {}
        stopped: set[str] = set()
        for position, (message, key) in enumerate(outgoing):
            if isinstance(message, BrokerError):
                self.messages.append(None)
                self._settle(position, message)
                stopped |= set() if key is None else {key}
                continue
            self.messages.append(message)
            if key is not None and key in stopped:
                self._settle(position, _behind())
            elif key is not None and key in last:
                self._after[last[key]] = position
                last[key] = position
            else:
                self.todo.append(position)
                if key is not None:
                    last[key] = position
        self._finish()

    def answered(self, position: int, result: BrokerError | None, *, late: bool) -> None:
        """Note what became of a message that was written; where it is late, begin no other."""
        self.flying.discard(position)
        self._settle(position, result)
        after = self._after[position]
        if result is None and after != _END and not late:
            self.todo.append(after)
        else:
            while after != _END:
                self._settle(after, _behind() if result is not None else _too_late())
                after = self._after[after]
        self._finish()

    def outcome(self, position: int, unanswered: BrokerError, unsent: BrokerError) -> BrokerError:
        """Return what to say of a message without a result."""
        if position in self.flying:
            return unanswered
        return unsent if position in self.todo else _behind()

    def all(self, unanswered: BrokerError, unsent: BrokerError) -> list[BrokerError | None]:
        """Return one result for each message."""
        return [
            result
            if result is None or isinstance(result, BrokerError)
            else self.outcome(position, unanswered, unsent)
            for position, result in enumerate(self.results)
        ]

    def _settle(self, position: int, result: BrokerError | None) -> None:
        if self.results[position] is _UNREAD:
            self.results[position] = result
            self.missing -= 1

    def _finish(self) -> None:
        if not self.missing and not self.done.done():
            self.done.set_result(None)


class Publishing:
    """Publishes over one connection; any number of calls may be under way."""

    def __init__(self, connection: Connection, answers: Answers, *, window: int) -> None:
        """Have at most `window` messages without an answer."""
        self.connection = connection
        self._answers = answers
        self._window = window
        self._calls: list[_Call] = []
        self._numbered = 0
        self._in_flight = 0
        self._pumping = False
        self._loop = asyncio.get_running_loop()
        connection.listener = self

    async def publish(
        self, outgoing: Sequence[Outgoing], *, until: float
    ) -> list[BrokerError | None]:
        """Write the messages and wait for their answers until that time of the loop.

        One result for each. Never raises for what the server does.
        """
        began = self._loop.time()
        latest = began + (until - began) * _BEGIN_UNTIL
        call = _Call(self._numbered, outgoing, self._loop.create_future(), latest)
        self._numbered += len(outgoing)
        self._calls.append(call)
        timed_out = False
        try:
            self._pump()
            async with asyncio.timeout_at(until):
                await call.done
        except TimeoutError:
            timed_out = True
            # Behind a silent wire new copies would only queue.
            if self.connection.heard_at <= began:
                self.connection.abort("the server did not answer in time", silent=True)
        finally:
            self._calls.remove(call)
            self._in_flight -= len(call.flying)
            if call.flying:
                self._later()
        return call.all(self._unanswered(timed_out=timed_out), self._unsent(timed_out=timed_out))

    # What the connection calls

    def answered(self, number: int, arrived: Arrived) -> None:
        """Settle a message, and write what waited for it."""
        for call in self._calls:
            position = number - call.first
            if 0 <= position < len(call.messages) and position in call.flying:
                message = call.messages[position]
                subject = message.subject if message is not None else ""
                self._in_flight -= 1
                late = self._loop.time() > call.latest
                call.answered(position, self._answers.read(arrived, subject), late=late)
                self._later()
                return

    def denied(self, subject: str) -> None:
        """Settle the oldest message of a subject that we may not publish to.

        The server says so once for each message, in their order.
        """
        for call in self._calls:
            for position in sorted(call.flying):
                message = call.messages[position]
                if message is not None and message.subject.lower() == subject:
                    self._in_flight -= 1
                    refusal = f"no permission to publish to {message.subject!r}"
                    call.answered(position, RefusedForNow(refusal), late=False)
                    self._later()
                    return

    def ended(self) -> None:
        """End all calls."""
        for call in self._calls:
            if not call.done.done():
                call.done.set_result(None)

    def _later(self) -> None:
        """Write once for all answers that came together."""
        if not self._pumping:
            self._pumping = True
            self._loop.call_soon(self._pump)

    def _pump(self) -> None:
        self._pumping = False
        if self.connection.ended is not None:
            return self.ended()
        parts = []
        for call in self._calls:
            while call.todo and self._in_flight < self._window:
                position = call.todo.popleft()
                message = call.messages[position]
                if message is None:
                    continue
                call.flying.add(position)
                self._in_flight += 1
                number = b"%d" % (call.first + position)
                parts.append(message.sent(self.connection.inbox + number))
        if parts:
            self.connection.write(b"".join(parts))
        return None

    def _unanswered(self, *, timed_out: bool) -> OutcomeUnknown:
        if timed_out:
            return OutcomeUnknown("JetStream did not confirm it in time", timed_out=True)
        how = self.connection.ended or Closed(reason="the call was ended")
        return OutcomeUnknown(how.reason, error_reply=how.error_reply, timed_out=how.silent)

    def _unsent(self, *, timed_out: bool) -> BrokerUnavailable:
        if not timed_out and self.connection.ended is not None:
            return BrokerUnavailable(self.connection.ended.reason)
        return BrokerUnavailable("JetStream confirms too slowly: no room for more in flight")


def _behind() -> NotAttempted:
    return NotAttempted("an earlier message of its key was not confirmed")


def _too_late() -> NotAttempted:
    return NotAttempted("the one before it in its key was confirmed too late to begin another")
