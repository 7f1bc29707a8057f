"""One route of a relay: rounds of sweep, read, publish, settle, several beside each other."""

import asyncio
import math
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import assert_never

from postroom import events
from postroom._clock import Clock
from postroom._tasks import to_its_end
from postroom.errors import OutcomeUnknown
from postroom.events import Observers
from postroom.lane import Lane
from postroom.message import Entry
from postroom.outcome import Dead, Retry, Sent, Settled
from postroom.relay.flight import Flight, RelayBroker
from postroom.relay.hands import Batch, Hands
from postroom.relay.options import RelayOptions
from postroom.relay.outage import Outage
from postroom.relay.plan import Plan, plan
from postroom.relay.step import Step, counted
from postroom.relay.suspects import Suspects
from postroom.relay.tenure import Tenure
from postroom.relay.verdict import Judge
from postroom.route import Route
from postroom.store import Store


@dataclass(frozen=True, slots=True)
class _Round:
    """A batch that was read, and what is to happen to it."""

    batch: Batch
    todo: Plan
    done: Step
    apart: bool
    """Whether nothing else may be under way beside it."""


@dataclass(frozen=True, slots=True)
class _Late:
    """What could not be written down, because the store was away."""

    batch: Batch
    settled: Sequence[Settled]


class Dispatch:
    """Moves the messages of one route, in the lanes that are ours.

    Rounds begin one after the other, and go on beside each other: while one waits for the broker
    the next is read, and the last one settled. `Hands` keeps them apart.
    """

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
        """Set when the outbox may have changed, or when there is work for another round."""
        self._store = store
        self._tenure = tenure
        self._options = options
        self._clock = clock
        self._observers = observers
        self._outage = Outage(options.probe, clock)
        self._suspects = Suspects(options.suspect_after)
        self._judge = Judge(route, self._suspects, self._outage, observers)
        self._flight = Flight(
            broker, route, tenure, options=options, clock=clock, observers=observers
        )
        self._turn = asyncio.Lock()
        self._lookout = asyncio.Lock()
        self._hands = Hands(most=options.overlap, by_row=route.pipelined_keys)
        self._late: list[_Late] = []
        self._lanes: Sequence[Lane] = ()
        self._ahead = timedelta(0)
        """By how much the store's clock is ahead of ours."""
        self._sweep_at = 0.0
        self._orphans_at = 0.0

    @property
    def able(self) -> bool:
        """Whether the broker answered last."""
        return not self._outage.active

    @property
    def idle(self) -> bool:
        """Whether no round is under way."""
        return self._hands.idle

    @property
    def next_in(self) -> float:
        """Seconds until a round is worth while without any wake-up; may be below 0."""
        if self._outage.active:
            return self._outage.next_in
        if not self._tenure.lanes(self.route.name):
            return math.inf
        return self._sweep_at - self._clock.elapsed()

    async def step(self) -> Step:
        """Do the rounds that can be done beside each other now, to their end. Never sleeps."""
        rounds = (self.round() for _ in range(self._options.overlap))
        total, failure = Step(), None
        for done in await asyncio.gather(*rounds, return_exceptions=True):
            if isinstance(done, Step):
                total += done
            else:
                failure = failure or done
        if failure is not None:
            raise failure
        return total

    async def round(self) -> Step:
        """Do one round to its end; nothing where others have in their hands all there is."""
        async with self._turn:
            # Cleared before the look: a wake-up during it must lead to another one.
            self.nudge.clear()
            begun = await self._begin()
            if isinstance(begun, Step):
                return begun
            if begun.apart:
                return await self._carry_out(begun)
        return await self._carry_out(begun)

    async def rest(self, longest: timedelta) -> None:
        """Wait for a nudge, or until something is due; of several that rest one alone is woken."""
        async with self._lookout:
            seconds = min(longest.total_seconds(), max(self.next_in, 0.001))
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self.nudge.wait()

    # How a round begins: one at a time

    async def _begin(self) -> _Round | Step:
        """Read a batch and hold what must wait; return what is to be sent, if there is any."""
        for late in tuple(self._late):
            await self._settle(late.batch, late.settled)
            self._late.remove(late)
            self._let_go(late.batch)
        if self._outage.active:
            await self._hands.empty()
            if not await self._probe():
                return Step()
        lanes = self._tenure.lanes(self.route.name)
        if not lanes:
            return Step()
        done = Step(ready=await self._sweep(lanes))
        batch = await self._occupied(lanes, await self._read(lanes))
        if not batch.entries:
            return done
        try:
            self._observers.emit(events.Read(route=self.route.name, entries=batch.entries))
            return await self._planned(batch, done)
        except BaseException:
            self._let_go(batch)
            raise

    async def _probe(self) -> bool:
        if self._outage.next_in > 0:
            return False
        error = await self._flight.ping()
        if error is not None:
            self._judge.pause(error, at_once=False)
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
        """Read a share of what no other round has in its hands, or else the rest of it."""
        free = self._hands.free(lanes)
        share = self._hands.share(free, lanes)
        entries = await self._look(share)
        if entries and self._hands.leaves(share, free, full=len(entries) >= self._options.batch):
            self.nudge.set()
        if entries or len(share) == len(free):
            return entries
        return await self._look([lane for lane in free if lane not in share])

    async def _look(self, lanes: Sequence[Lane]) -> Sequence[Entry]:
        if not lanes:
            return ()
        limit = self._options.batch + min(len(self._suspects), self._options.batch)
        entries = await self._store.read(
            lanes,
            limit=limit,
            per_lane=-(-limit // max(1, self._hands.busy(lanes))),
            max_bytes=self._options.max_batch_bytes,
            skip=self._hands.rows(),
        )
        self._hands.saw(lanes, entries)
        return entries

    async def _occupied(self, lanes: Sequence[Lane], entries: Sequence[Entry]) -> Batch:
        """Take these entries into our hands, as far as their lanes are still ours."""
        owned = {lane.number: lane for lane in lanes}
        kept = await self._tenure.occupy({owned[entry.lane] for entry in entries})
        batch = Batch(
            tuple(entry for entry in entries if owned[entry.lane] in kept),
            {lane.number: lane for lane in sorted(kept)},
        )
        self._hands.take(batch)
        return batch

    async def _planned(self, batch: Batch, done: Step) -> _Round:
        todo = plan(
            batch.entries,
            suspects=self._suspects,
            now=self._now(),
            park=self.route.on_dead == "park",
        )
        for entry, expected in todo.misplaced:
            self._observers.emit(events.LaneMismatch(entry=entry, expected=expected))
        held = 0
        if todo.hold:
            held = await self._store.hold(tuple(batch.lanes.values()), todo.hold)
            self._observers.emit(events.Held(route=self.route.name, count=held))
        # What may have ended the connection must not take others with it, nor they accuse it;
        # and of a key in two lanes only rounds one after the other keep the order.
        apart = bool(todo.misplaced) or self._suspects.remember(batch.entries)
        done += Step(read=len(batch.entries), held=held)
        return _Round(self._hands.without(batch, todo.hold), todo, done, apart)

    # How it goes on: beside others

    async def _carry_out(self, begun: _Round) -> Step:
        """Publish and settle what was read."""
        batch, todo = begun.batch, begun.todo
        try:
            if begun.apart:
                await self._hands.empty()
            with self._hands.under_way():
                answers = await self._flight.send(todo.send, batch.lanes) if todo.send else []
                done = await self._settled(batch, [*todo.give_up, *self._judge.judge(answers)])
                for entry in sorted(todo.alone, key=lambda entry: self._suspects.turn(entry.seq)):
                    if self._outage.active:
                        break
                    done += await self._alone(batch, entry)
            return begun.done + done
        finally:
            if all(late.batch is not batch for late in self._late):
                self._let_go(batch)

    def _let_go(self, batch: Batch) -> None:
        self._hands.put(batch)
        self._tenure.vacate(batch.lanes.values())

    async def _alone(self, batch: Batch, entry: Entry) -> Step:
        """Send a suspect by itself, between two probes."""
        before = await self._flight.ping()
        if before is not None:
            self._judge.pause(before, at_once=False)
            return Step()
        answers = await self._flight.send([entry], batch.lanes)
        unknown = any(isinstance(error, OutcomeUnknown) for _, error in answers)
        after = await self._flight.ping() if unknown else None
        return await self._settled(batch, self._judge.alone(entry, answers, after))

    async def _settled(self, batch: Batch, settled: Sequence[Settled]) -> Step:
        """Settle; what the store cannot take now is kept, with its batch, for the next round."""
        if not settled:
            return Step()
        try:
            await self._settle(batch, settled)
        except Exception:
            self._late.append(_Late(batch, settled))
            raise
        return counted(settled)

    async def _settle(self, batch: Batch, settled: Sequence[Settled]) -> None:
        """Write down what the broker said.

        Cancelling does not stop it: what the broker confirmed would be sent a second time.
        """
        lanes = tuple(batch.lanes.values())
        done = await to_its_end(self._store.settle(lanes, settled, keep=self._options.keep_sent))
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
                self._suspects.clear(entry.seq)
                self._observers.emit(events.Dead(entry=entry, error=error, blocks=blocks))
            case _:
                assert_never(settled.outcome)
