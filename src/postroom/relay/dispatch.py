"""One route of a relay, one round at a time: sweep, read, publish, settle."""

import asyncio
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TypeVar, assert_never

from postroom import events
from postroom._clock import Clock
from postroom._tasks import to_its_end
from postroom.errors import (
    BrokerError,
    NotAttempted,
    OutcomeUnknown,
    RefusedForGood,
    RefusedForNow,
)
from postroom.events import Observers
from postroom.lane import Lane
from postroom.message import Entry
from postroom.outcome import Dead, Retry, Sent, Settled
from postroom.relay.flight import Answer, Flight, RelayBroker
from postroom.relay.options import RelayOptions
from postroom.relay.outage import Outage
from postroom.relay.plan import Plan, plan
from postroom.relay.suspects import Suspects
from postroom.relay.tenure import Tenure
from postroom.route import Route
from postroom.store import Store

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """What one round did."""

    read: int = 0
    sent: int = 0
    refused: int = 0
    """Refused by the broker, for now or for good."""
    held: int = 0
    ready: int = 0
    """Made ready by a sweep."""

    @property
    def idle(self) -> bool:
        """Whether the round found nothing to do."""
        return not (self.read or self.ready)

    def __add__(self, other: "Step") -> "Step":
        """Return both rounds as one."""
        return Step(
            read=self.read + other.read,
            sent=self.sent + other.sent,
            refused=self.refused + other.refused,
            held=self.held + other.held,
            ready=self.ready + other.ready,
        )


class Dispatch:
    """Moves the messages of one route, in the lanes that are ours."""

    def __init__(
        self,
        route: Route,
        store: Store,
        broker: RelayBroker,
        tenure: Tenure,
        *,
        options: RelayOptions,
        clock: Clock,
        observers: Observers,
    ) -> None:
        """Serve that route between that store and that broker."""
        self.route = route
        self.nudge = asyncio.Event()
        """Set when the outbox may have changed."""
        self._store = store
        self._tenure = tenure
        self._options = options
        self._clock = clock
        self._observers = observers
        self._outage = Outage(options.probe, clock)
        self._suspects = Suspects(options.suspect_after)
        self._flight = Flight(
            broker, route, tenure, options=options, clock=clock, observers=observers
        )
        self._unsettled: tuple[Sequence[Lane], Sequence[Settled]] | None = None
        self._lanes: Sequence[Lane] = ()
        self._hot = 1
        self._ahead = timedelta(0)
        """By how much the store's clock is ahead of ours."""
        self._sweep_at = 0.0
        self._orphans_at = 0.0

    @property
    def able(self) -> bool:
        """Whether the broker answered last."""
        return not self._outage.active

    @property
    def next_in(self) -> float:
        """Seconds until a round is worth while without any wake-up; may be below 0."""
        if self._outage.active:
            return self._outage.next_in
        if not self._tenure.lanes(self.route.name):
            return math.inf
        return self._sweep_at - self._clock.elapsed()

    async def step(self) -> Step:
        """Do one round. Never sleeps."""
        if self._unsettled is not None:
            await self._settle(*self._unsettled)
        if self._outage.active and not await self._probe():
            return Step()
        lanes = self._tenure.lanes(self.route.name)
        if not lanes:
            return Step()
        ready = await self._sweep(lanes)
        entries = await self._read(lanes)
        owned = {lane.number: lane for lane in lanes}
        flying = await self._tenure.occupy({owned[entry.lane] for entry in entries})
        entries = [entry for entry in entries if owned[entry.lane] in flying]
        if not entries:
            return Step(ready=ready)
        self._observers.emit(events.Read(route=self.route.name, entries=tuple(entries)))
        try:
            return Step(ready=ready, read=len(entries)) + await self._work(entries, owned)
        finally:
            self._tenure.busy -= flying

    async def _probe(self) -> bool:
        if self._outage.next_in > 0:
            return False
        error = await self._flight.ping()
        if error is not None:
            self._pause(error, at_once=False)
            return False
        after = self._outage.answer()
        self._observers.emit(events.Resumed(route=self.route.name, after=after))
        return True

    async def _sweep(self, lanes: Sequence[Lane]) -> int:
        now = self._clock.elapsed()
        if set(lanes) != set(self._lanes):
            self._lanes = lanes
            self._sweep_at = self._orphans_at = now
        if now < self._sweep_at:
            return 0
        orphans = now >= self._orphans_at
        swept = await self._store.sweep(lanes, limit=self._options.batch, orphans=orphans)
        if orphans:
            self._ahead = await self._store.now() - self._clock.now()
            self._orphans_at = now + self._options.sweep.total_seconds()
        ready = swept.due + swept.scheduled + swept.freed
        self._sweep_at = now + self._options.sweep.total_seconds()
        if ready:
            self._observers.emit(
                events.Swept(due=swept.due, scheduled=swept.scheduled, freed=swept.freed)
            )
            self._sweep_at = now
            self._orphans_at = now if swept.freed else self._orphans_at
        elif swept.next_due is not None:
            self._sweep_within(swept.next_due - self._now())
        return ready

    def _now(self) -> datetime:
        """Return the time by the store's clock, which decides what is due and what has expired."""
        return self._clock.now() + self._ahead

    def _sweep_within(self, delay: timedelta) -> None:
        self._sweep_at = min(self._sweep_at, self._clock.elapsed() + delay.total_seconds())

    async def _read(self, lanes: Sequence[Lane]) -> Sequence[Entry]:
        limit = self._options.batch + min(len(self._suspects), self._options.batch)
        entries = await self._store.read(
            lanes,
            limit=limit,
            per_lane=-(-limit // self._hot),
            max_bytes=self._options.max_batch_bytes,
        )
        self._hot = max(1, len({entry.lane for entry in entries}))
        return entries

    async def _work(self, entries: Sequence[Entry], lanes: Mapping[int, Lane]) -> Step:
        todo = plan(
            entries,
            suspects=self._suspects,
            now=self._now(),
            park=self.route.on_dead == "park",
        )
        for entry, expected in todo.misplaced:
            self._observers.emit(events.LaneMismatch(entry=entry, expected=expected))
        held = await self._hold(todo, lanes)
        answers = await self._flight.send(todo.send, lanes) if todo.send else []
        settled = [*todo.give_up, *self._judge(answers)]
        if settled:
            await self._settle(tuple(lanes.values()), settled)
        done = self._count(settled) + Step(held=held)
        for entry in sorted(todo.alone, key=lambda entry: self._suspects.turn(entry.seq)):
            if self._outage.active:
                break
            done += await self._alone(entry, lanes)
        return done

    async def _hold(self, todo: Plan, lanes: Mapping[int, Lane]) -> int:
        if not todo.hold:
            return 0
        count = await self._store.hold(tuple(lanes.values()), todo.hold)
        self._observers.emit(events.Held(route=self.route.name, count=count))
        return count

    async def _alone(self, entry: Entry, lanes: Mapping[int, Lane]) -> Step:
        """Send a suspect by itself, between two probes."""
        before = await self._flight.ping()
        if before is not None:
            self._pause(before, at_once=False)
            return Step()
        answers = await self._flight.send([entry], lanes)
        settled: list[Settled]
        match answers:
            case [(_, OutcomeUnknown() as error)]:
                after = await self._flight.ping()
                if not self._suspects.convict(entry.seq, error, held=after is None):
                    self._pause(after or error, at_once=not error.timed_out)
                    return Step()
                self._suspects.clear(entry.seq)
                settled = [self._refused(entry, error.error_reply or error.reason)]
            case _:
                settled = self._judge(answers)
        if settled:
            await self._settle(tuple(lanes.values()), settled)
        return self._count(settled)

    def _judge(self, answers: Iterable[Answer]) -> list[Settled]:
        """Turn the broker's answers into outcomes; whatever is nobody's fault stays ready."""
        settled = []
        trouble: BrokerError | None = None
        at_once = True
        for entry, error in answers:
            match error:
                case None:
                    settled.append(Settled(entry=entry, outcome=Sent()))
                    self._suspects.clear(entry.seq)
                case RefusedForNow():
                    settled.append(self._refused(entry, error.reason))
                    self._suspects.clear(entry.seq)
                case RefusedForGood():
                    dead = Dead(error=error.reason, blocks=self.route.on_dead == "park")
                    settled.append(Settled(entry=entry, outcome=dead))
                    self._suspects.clear(entry.seq)
                case NotAttempted():
                    pass
                case OutcomeUnknown():
                    trouble = error
                    at_once = at_once and not error.timed_out
                    self._suspect(entry, error)
                case _:
                    trouble = error
                    at_once = False
        if any(isinstance(one.outcome, Sent) for one in settled):
            self._outage.confirmed()
            self._suspects.confirmed()
        if trouble is not None:
            self._pause(trouble, at_once=at_once)
        return settled

    def _suspect(self, entry: Entry, error: OutcomeUnknown) -> None:
        if self._suspects.note(entry.seq):
            self._observers.emit(events.Suspected(entry=entry, error=error.reason))

    def _refused(self, entry: Entry, error: str) -> Settled:
        outcome = self.route.retry.decide(
            entry.attempts + 1, error, blocks=self.route.on_dead == "park"
        )
        return Settled(entry=entry, outcome=outcome)

    def _pause(self, error: BrokerError, *, at_once: bool) -> None:
        delay = self._outage.fail(at_once=at_once)
        self._observers.emit(events.Paused(route=self.route.name, error=error.reason, delay=delay))

    async def _settle(self, lanes: Sequence[Lane], settled: Sequence[Settled]) -> None:
        """Write down what the broker said; kept for the next round if the store is away.

        Cancelling does not stop it: what the broker confirmed would be sent a second time.
        """
        self._unsettled = lanes, settled
        done = await to_its_end(self._store.settle(lanes, settled, keep=self._options.keep_sent))
        self._unsettled = None
        refused = tuple(one.entry for one in settled if one.entry.seq not in done)
        for one in settled:
            if one.entry.seq in done:
                self._report(one)
        if refused:
            self._observers.emit(events.SettleRefused(route=self.route.name, entries=refused))
            self._suspects.forget()
            self._tenure.doubt()

    def _report(self, settled: Settled) -> None:
        entry = settled.entry
        match settled.outcome:
            case Sent():
                self._observers.emit(events.Sent(entry=entry))
            case Retry(delay=delay, error=error):
                self._sweep_within(delay)
                self._observers.emit(events.Retried(entry=entry, delay=delay, error=error))
            case Dead(error=error, blocks=blocks):
                self._observers.emit(events.Dead(entry=entry, error=error, blocks=blocks))
            case _:
                assert_never(settled.outcome)

    def _count(self, settled: Iterable[Settled]) -> Step:
        sent = sum(isinstance(one.outcome, Sent) for one in settled)
        refused = sum(
            isinstance(one.outcome, Retry)
            or (isinstance(one.outcome, Dead) and one.outcome.attempted)
            for one in settled
        )
        return Step(sent=sent, refused=refused)
