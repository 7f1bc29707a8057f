"""Everything that can happen to an outbox, in every order: the rules hold after each step.

Writers commit and roll back, relays join, crash, freeze and come back, the broker fails in every
way it can, people replay and discard, time passes. After each of these the whole outbox is
compared with what the world saw, and at the end everything heals and must drain.
"""

import os
from collections.abc import Callable

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from postroom.store import Query
from postroom.testing.clock import ManualClock
from tests.properties.choices import (
    Fault,
    Put,
    Savepoint,
    fates,
    faults,
    few,
    puts,
    queries,
    savepoints,
    spots,
    which,
)
from tests.properties.ground import Ground, MemoryGround, SqliteGround
from tests.properties.process import CALLS, LEASE, RENEWAL, Fate
from tests.properties.world import World


class OutboxMachine(RuleBasedStateMachine):
    """The rules; a subclass says on which ground."""

    ground: Callable[[ManualClock], Ground]
    world: World | None = None

    @property
    def here(self) -> World:
        """The world of this run."""
        assert self.world is not None
        return self.world

    @initialize(
        keep=st.booleans(),
        stops_key=st.booleans(),
        batch=st.sampled_from([2, 500]),
        overlap=few,
        relays=few,
        first=st.lists(puts, min_size=2, max_size=6),
    )
    def begin(
        self,
        *,
        keep: bool,
        stops_key: bool,
        batch: int,
        overlap: int,
        relays: int,
        first: list[Put],
    ) -> None:
        """A broker, some relays, and a backlog."""
        clock = ManualClock()
        ground = type(self).ground(clock)
        self.world = World(
            ground, clock, keep=keep, stops_key=stops_key, batch=batch, overlap=overlap
        )
        for _ in range(relays):
            self.world.join()
        self.world.write(first)

    @rule(items=st.lists(puts | savepoints, min_size=1, max_size=6), commits=st.sampled_from("yyn"))
    def write(self, items: list[Put | Savepoint], commits: str) -> None:
        """One transaction of a caller."""
        self.here.write(items, commits=commits == "y")

    @rule(
        new=st.lists(puts, max_size=3),
        wrong=st.lists(faults, max_size=2),
        who=which | st.just("all"),
        times=few,
        pause=st.sampled_from([0, 0.5, 2]),
        fate=fates,
        spot=spots,
    )
    def step(
        self,
        *,
        new: list[Put],
        wrong: list[Fault],
        who: int | str,
        times: int,
        pause: float,
        fate: Fate,
        spot: str,
    ) -> None:
        """Relays work, one or all together, and at last one may meet its fate."""
        world = self.here
        world.write(new)
        for fault in wrong:
            fault.befall(world.broker)
        processes = world.healthy if isinstance(who, str) else world.pick(who)
        for left in reversed(range(times)):
            world.step(processes, "health" if left else fate, spot)
            world.clock.advance(pause)

    @rule(
        new=st.lists(puts, max_size=3),
        number=which,
        spot=st.sampled_from([*CALLS, "before settle", "after publish", "before hold"]),
        heir=st.sampled_from(["", "after lease", "before publish", "before settle"]),
    )
    def oversleep(self, new: list[Put], number: int, spot: str, heir: str) -> None:
        """A relay stops at some spot, loses its lanes to others, and goes on.

        The heirs may die with the lanes just taken, so that their rows are still to be sent.
        """
        world = self.here
        world.write(new)
        sleepers = world.pick(number)
        world.step(sleepers, "freeze", spot)
        if not any(process.frozen for process in sleepers):
            return
        world.join()
        for length, end in ((LEASE, ""), (RENEWAL, heir)):
            world.clock.advance(length.total_seconds() + 1)
            for process in world.healthy:
                world.step([process], "crash" if end else "health", end)
        world.thaw(sleepers)

    @rule(change=st.sampled_from(["join", "leave", "thaw", "thaw", "kill"]), number=which)
    def staff(self, change: str, number: int) -> None:
        """A relay joins or leaves as planned; a frozen one goes on, or is killed where it is."""
        match change:
            case "join":
                self.here.join()
            case "leave":
                self.here.leave(self.here.pick(number))
            case _:
                self.here.thaw(self.here.frozen[:1], kill=change == "kill")

    @rule(number=which)
    def sweep(self, number: int) -> None:
        """A sweep leaves nothing behind that is due, or held without a reason."""
        for process in self.here.pick(number):
            self.here.run(self.here.sweep(process))

    @rule(
        seconds=st.sampled_from([0, 1, 4, 6, 16, 21]),
        outage=st.sampled_from(["", "", "down", "block", "flap", "flap delivered", "heal", "heal"]),
    )
    def weather(self, seconds: float, outage: str) -> None:
        """Time passes; the broker as a whole goes, flaps or comes back."""
        self.here.clock.advance(seconds)
        broker = self.here.broker
        match outage:
            case "down":
                broker.down()
            case "block":
                broker.block()
            case "heal":
                broker.up()
                broker.unblock()
            case "flap" | "flap delivered":
                broker.flap(2, delivered=outage.endswith("delivered"))

    @rule(
        action=st.sampled_from(["replay", "replay", "discard", "release", "prune"]),
        query=queries,
        limit=few,
    )
    def act(self, action: str, query: Query, limit: int) -> None:
        """A person replays, discards, releases or prunes."""
        self.here.run(self.here.act(action, query, limit))

    def teardown(self) -> None:
        """Heal everything: then everything drains, and nothing is stuck."""
        if self.world is None:
            return
        try:
            if not self.world.broken:
                self.world.heal()
        finally:
            self.world.close()


class MemoryMachine(OutboxMachine):
    """Over the store in plain Python."""

    ground = MemoryGround


class SqliteMachine(OutboxMachine):
    """Over a file, which a stranger may lock."""

    ground = SqliteGround


LONG = os.environ.get("POSTROOM_PROPERTIES") == "long"
STEPS = 60 if LONG else 40
MemoryMachine.TestCase.settings = settings(
    max_examples=2000 if LONG else 60, stateful_step_count=STEPS
)
SqliteMachine.TestCase.settings = settings(
    max_examples=500 if LONG else 15, stateful_step_count=STEPS
)
limit = pytest.mark.timeout(3600 if LONG else 600)
TestMemory = limit(MemoryMachine.TestCase)
TestSqlite = limit(SqliteMachine.TestCase)
