"""A broker double that goes wrong exactly as a test asks."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field, replace
from datetime import timedelta
from enum import Enum, auto

from postroom._clock import Clock, SystemClock
from postroom.broker import BrokerFeatures, Delivery
from postroom.brokers.memory import MemoryBroker
from postroom.errors import (
    BrokerError,
    BrokerUnavailable,
    NotAttempted,
    OutcomeUnknown,
    RefusedForGood,
    RefusedForNow,
)
from postroom.message import Message

Match = str | Callable[[Message], bool]
"""Which messages a rule means: those of this id, key or type, or those it returns True for."""


class _Fault(Enum):
    REFUSE = auto()
    REFUSE_FOR_GOOD = auto()
    UNROUTABLE = auto()
    LOSE_CONNECTION = auto()
    HANG = auto()
    CLOSE_CHANNEL = auto()


@dataclass(slots=True)
class _Rule:
    fault: _Fault
    match: Match
    left: int | None
    reason: str
    delivered: bool = False
    unanswered_before: bool = False

    def takes(self, message: Message) -> bool:
        """Whether it applies to this message; spends one of its times if so."""
        if self.left == 0 or not _matches(self.match, message):
            return False
        if self.left is not None:
            self.left -= 1
        return True


@dataclass(slots=True, eq=False)
class PublishCall:
    """One call of `publish`: what came in, and what was answered (so far)."""

    messages: tuple[Message, ...]
    timeout: timedelta
    results: tuple[BrokerError | None, ...] | None = None
    """None while the call runs, and for ever if it was cancelled."""


@dataclass(slots=True)
class _Round:
    """How far one call has come."""

    results: list[BrokerError | None] = field(default_factory=list)
    stopped: set[str] = field(default_factory=set)
    ended: OutcomeUnknown | None = None


class ScriptedBroker:
    """A broker that keeps what arrives and fails by rules, one for each way of failing.

    Rules are asked in the order in which they were made, for every message that is sent; the
    first that matches decides. `times` is how often a rule applies, None for always. What
    arrives can be received as from a `MemoryBroker`. Time-outs follow the clock.

    Example:
        broker = ScriptedBroker(clock=clock)
        broker.refuse("order-7", times=2)            # negative confirm, for this key
        broker.lose_connection_after(poison.id)      # arrived, but no confirm came back
        await relay.step()
        assert [message.key for message in broker.arrived] == ["order-8"]
        assert len(broker.calls[0].messages) == 3

    By default a refusal does not stop later messages of its key in the same call, as on
    RabbitMQ: a relay that sends them together loses their order, and `arrived` shows it.
    """

    name = "scripted"

    def __init__(
        self,
        *,
        clock: Clock | None = None,
        refusal_stops_key: bool = False,
        max_message_bytes: int | None = None,
    ) -> None:
        """Start without rules: everything is confirmed."""
        self.arrived: list[Message] = []
        """Every message that reached the broker, in order, copies included."""
        self.calls: list[PublishCall] = []
        """Every call of `publish`."""
        self.pings = 0
        """How often it was asked whether it is there."""
        self._clock = clock or SystemClock()
        self.memory = MemoryBroker(clock=self._clock)
        """Holds what arrived for consumers, and shows queues and dead letters."""
        self._features = replace(
            self.memory.features,
            refusal_stops_key=refusal_stops_key,
            max_message_bytes=max_message_bytes,
        )
        self._rules: list[_Rule] = []
        self._down: int | None = 0
        self._flaps = 0
        self._flap_delivers = False
        self._open = asyncio.Event()
        self._open.set()

    @property
    def features(self) -> BrokerFeatures:
        """What this broker pretends to be able to do."""
        return self._features

    # Rules

    def refuse(
        self, match: Match, *, times: int | None = 1, reason: str = "negative confirm"
    ) -> None:
        """Refuse for now, as with a negative confirm."""
        self._rules.append(_Rule(_Fault.REFUSE, match, times, reason))

    def refuse_for_good(
        self, match: Match, *, times: int | None = None, reason: str = "never acceptable"
    ) -> None:
        """Refuse for good."""
        self._rules.append(_Rule(_Fault.REFUSE_FOR_GOOD, match, times, reason))

    def unroutable(self, match: Match, *, times: int | None = None) -> None:
        """Return it as unroutable: refused for now until the rule is spent."""
        self._rules.append(_Rule(_Fault.UNROUTABLE, match, times, "unroutable: no queue takes it"))

    def lose_connection_after(
        self,
        match: Match,
        *,
        delivered: bool = True,
        times: int | None = 1,
        unanswered_before: bool = False,
    ) -> None:
        """Lose the connection after this message; it arrived if `delivered`.

        Later messages of the call do not arrive, and their outcome is unknown too. With
        `unanswered_before` the confirms of the earlier ones are lost as well.
        """
        self._rules.append(
            _Rule(
                _Fault.LOSE_CONNECTION,
                match,
                times,
                "the connection was lost",
                delivered=delivered,
                unanswered_before=unanswered_before,
            )
        )

    def hang(self, match: Match, *, times: int | None = 1, delivered: bool = False) -> None:
        """Stop answering at this message, until the time-out of the call."""
        self._rules.append(
            _Rule(_Fault.HANG, match, times, "no answer in time", delivered=delivered)
        )

    def close_channel(
        self,
        match: Match,
        *,
        times: int | None = None,
        reason: str = "PRECONDITION_FAILED",
        unanswered_before: bool = False,
    ) -> None:
        """Close the channel with an error reply to this message, which does not arrive.

        The reply is seen by everything that is not answered yet in the call, and later messages
        of the call do not arrive. With `unanswered_before` the confirms of the earlier ones,
        which did arrive, are lost as well.
        """
        self._rules.append(
            _Rule(_Fault.CLOSE_CHANNEL, match, times, reason, unanswered_before=unanswered_before)
        )

    def down(self, *, times: int | None = None) -> None:
        """Be unreachable: for that many publishes and pings together, or until `up()`."""
        self._down = times

    def up(self) -> None:
        """Be reachable again, and stop flapping; rules about messages stay."""
        self._down = 0
        self._flaps = 0

    def block(self) -> None:
        """Take no publish until `unblock()`, as RabbitMQ short of memory: calls wait, pings fail.

        A call that is still waiting at its time-out has sent nothing.
        """
        self._open.clear()

    def unblock(self) -> None:
        """Let waiting calls go on."""
        self._open.set()

    def flap(self, times: int, *, delivered: bool = False) -> None:
        """Lose the connection in each of the next publishes, while pings in between succeed.

        Every outcome is unknown; all messages of the call arrive if `delivered`, else none.
        """
        self._flaps = times
        self._flap_delivers = delivered

    def clear(self) -> None:
        """Forget all rules about messages."""
        self._rules.clear()

    # The broker contract

    async def open(self) -> None:
        """Get ready; idempotent."""
        await self.memory.open()

    async def close(self) -> None:
        """Disconnect; idempotent. What arrived stays."""
        await self.memory.close()

    async def ping(self) -> None:
        """Raise BrokerUnavailable while down or blocked."""
        self.pings += 1
        if self._is_down():
            raise BrokerUnavailable("connection refused")
        if not self._open.is_set():
            raise BrokerUnavailable("the broker blocks publishers")
        await self.memory.ping()

    async def publish(
        self, messages: Sequence[Message], *, timeout: timedelta
    ) -> Sequence[BrokerError | None]:
        """Send the messages, and fail by the rules."""
        call = PublishCall(tuple(messages), timeout)
        self.calls.append(call)
        results = await self._publish(call)
        call.results = tuple(results)
        return results

    def subscribe(
        self, topics: Sequence[str], *, group: str, prefetch: int
    ) -> AbstractAsyncContextManager[AsyncIterator[Delivery]]:
        """Receive what arrives."""
        return self.memory.subscribe(topics, group=group, prefetch=prefetch)

    def lose_consumers(self) -> None:
        """Act as if every consumer had lost its connection with messages in its hands."""
        self.memory.lose_consumers()

    async def _publish(self, call: PublishCall) -> list[BrokerError | None]:
        deadline = self._clock.elapsed() + call.timeout.total_seconds()
        if (outage := await self._outage(call.timeout)) is not None:
            return [outage for _ in call.messages]
        if self._flaps > 0:
            self._flaps -= 1
            if self._flap_delivers:
                await self._arrive(call.messages)
            return [OutcomeUnknown("the connection was lost") for _ in call.messages]
        progress = _Round()
        for message in call.messages:
            progress.results.append(await self._send(message, progress))
        if progress.ended is not None and progress.ended.timed_out:
            await self._clock.sleep(deadline - self._clock.elapsed())
        return progress.results

    async def _outage(self, timeout: timedelta) -> BrokerUnavailable | None:
        if self._is_down():
            return BrokerUnavailable("connection refused")
        try:
            await self.memory.ping()
        except BrokerUnavailable as outage:
            return outage
        if await self._unblocked(timeout):
            return None
        return BrokerUnavailable("the broker blocks publishers")

    async def _unblocked(self, timeout: timedelta) -> bool:
        if self._open.is_set():
            return True
        patience = asyncio.ensure_future(self._clock.sleep(timeout.total_seconds()))
        opened = asyncio.ensure_future(self._open.wait())
        try:
            await asyncio.wait({patience, opened}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            patience.cancel()
            opened.cancel()
            await asyncio.gather(patience, opened, return_exceptions=True)
        return self._open.is_set()

    async def _send(self, message: Message, progress: _Round) -> BrokerError | None:
        if progress.ended is not None:
            return progress.ended
        if message.key in progress.stopped:
            return NotAttempted("an earlier message of its key was refused")
        result = await self._judge(message, progress)
        refused = isinstance(result, RefusedForNow | RefusedForGood)
        if refused and self._features.refusal_stops_key and message.key is not None:
            progress.stopped.add(message.key)
        return result

    async def _judge(self, message: Message, progress: _Round) -> BrokerError | None:
        limit = self._features.max_message_bytes
        if limit is not None and len(message.payload) > limit:
            return RefusedForGood(f"{len(message.payload)} bytes, over the limit of {limit}")
        rule = next((rule for rule in self._rules if rule.takes(message)), None)
        if rule is None:
            await self._arrive((message,))
            return None
        match rule.fault:
            case _Fault.REFUSE | _Fault.UNROUTABLE:
                return RefusedForNow(rule.reason)
            case _Fault.REFUSE_FOR_GOOD:
                return RefusedForGood(rule.reason)
            case _Fault.LOSE_CONNECTION | _Fault.HANG | _Fault.CLOSE_CHANNEL:
                return await self._end(message, rule, progress)

    async def _end(self, message: Message, rule: _Rule, progress: _Round) -> BrokerError:
        if rule.delivered:
            await self._arrive((message,))
        progress.ended = OutcomeUnknown(
            rule.reason,
            error_reply=rule.reason if rule.fault is _Fault.CLOSE_CHANNEL else None,
            timed_out=rule.fault is _Fault.HANG,
        )
        if rule.unanswered_before:
            progress.results[:] = [
                progress.ended if result is None else result for result in progress.results
            ]
        return progress.ended

    async def _arrive(self, messages: Sequence[Message]) -> None:
        self.arrived.extend(messages)
        await self.memory.publish(messages, timeout=timedelta(seconds=1))

    def _is_down(self) -> bool:
        if self._down is None:
            return True
        if self._down > 0:
            self._down -= 1
            return True
        return False


def _matches(match: Match, message: Message) -> bool:
    if isinstance(match, str):
        return match in {message.id, message.key, message.type}
    return match(message)
