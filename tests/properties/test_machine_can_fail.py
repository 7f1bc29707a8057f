"""The machine must be able to fail: wrong variants of relay and store are caught by a rule.

Each is planted into the real code, and the machine runs as it does in `test_machine.py`.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, seed, settings

from postroom.errors import BrokerError, BrokerUnavailable, OutcomeUnknown, RefusedForNow
from postroom.lane import Lane
from postroom.message import Entry, State
from postroom.outcome import Sent, Settled
from postroom.relay.dispatch import Dispatch
from postroom.relay.flight import Answer, Flight
from postroom.relay.hands import Batch, Hands
from postroom.relay.step import Step
from postroom.relay.tenure import Tenure
from postroom.relay.verdict import Judge
from postroom.stores.memory import lanes as memory_lanes
from postroom.stores.memory import store as memory_store
from postroom.stores.memory.tables import Tables
from postroom.stores.postgresql.names import Names
from postroom.stores.sqlite import leases as sqlite_leases
from postroom.stores.sqlite import reading as sqlite_reading
from postroom.stores.sqlite.work import Work
from tests.properties.test_machine import MemoryMachine, OutboxMachine, SqliteMachine
from tests.properties.test_machine_postgresql import machine_on, run
from tests.servers import Server, needed, postgresql_servers

Plant = Callable[[pytest.MonkeyPatch], None]


def settle_without_a_fence(patch: pytest.MonkeyPatch) -> None:
    def owned(_tables: Tables, lanes: Collection[Lane]) -> frozenset[tuple[str, int]]:
        return frozenset((lane.route, lane.number) for lane in lanes)

    patch.setattr(Tables, "owned", owned)


def settle_without_a_fence_on_sqlite(patch: pytest.MonkeyPatch) -> None:
    def owned(_work: Work, lanes: Iterable[Lane]) -> set[tuple[str, int]]:
        return {(lane.route, lane.number) for lane in lanes}

    patch.setattr(sqlite_leases, "owned", owned)


def read_that_never_sets_behind(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(memory_store, "_is_behind", lambda _entry, _blocking: False)


def read_that_never_sets_behind_on_sqlite(patch: pytest.MonkeyPatch) -> None:
    read = sqlite_reading.read

    def reading(*args: Any, **options: Any) -> list[Entry]:
        return [replace(entry, behind=False) for entry in read(*args, **options)]

    patch.setattr(sqlite_reading, "read", reading)


def settle_without_a_fence_on_postgresql(patch: pytest.MonkeyPatch) -> None:
    fence = "and entry.lane = any (array(select number from fence))"
    for name in ("settle-gone", "settle-sent", "settle-other"):
        _querying(patch, name, fence, "")


def read_that_never_sets_behind_on_postgresql(patch: pytest.MonkeyPatch) -> None:
    _querying(patch, "read", "< entry.seq, false)", "< 0, false)")


def release_that_leaves_the_mark_on_postgresql(patch: pytest.MonkeyPatch) -> None:
    _querying(patch, "release", "lowest.seq - 1", "9223372036854775807")


def mark_first(patch: pytest.MonkeyPatch) -> None:
    planned = Dispatch._planned

    async def marking(self: Dispatch, batch: Batch, done: Step) -> Any:
        going = [Settled(entry, Sent()) for entry in batch.entries if not entry.behind]
        await self._store.settle(tuple(batch.lanes.values()), going, keep=True)
        return await planned(self, batch, done)

    patch.setattr(Dispatch, "_planned", marking)


def owner_that_trusts_its_lease_for_ever(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Tenure, "remaining", property(lambda _self: 100.0))


def several_of_a_key_in_flight(patch: pytest.MonkeyPatch) -> None:
    async def send(
        self: Flight, entries: Sequence[Entry], lanes: Mapping[int, Lane]
    ) -> list[Answer]:
        return await self._call(entries, lanes)

    patch.setattr(Flight, "send", send)


def outage_that_costs_an_attempt(patch: pytest.MonkeyPatch) -> None:
    _judging(patch, BrokerUnavailable, RefusedForNow("down"))


def unknown_outcome_taken_for_sent(patch: pytest.MonkeyPatch) -> None:
    _judging(patch, OutcomeUnknown, None)


def lanes_taken_at_first_sight(patch: pytest.MonkeyPatch) -> None:
    def gone(tables: Tables, _renewal: object, now: Any) -> frozenset[str]:
        return frozenset(name for name, row in tables.relays.items() if row.expired(now))

    patch.setattr(memory_lanes, "gone", gone)


def head_that_does_not_block(patch: pytest.MonkeyPatch) -> None:
    _after = memory_store._after

    def after(entry: Entry, outcome: Any, now: Any) -> Entry:
        row = _after(entry, outcome, now)
        return replace(row, blocks=False) if row.state is State.DEAD else row

    patch.setattr(memory_store, "_after", after)


def held_rows_that_nobody_frees(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(memory_store.MemoryStore, "_free_orphans", lambda *_args: 0)


def lane_in_two_rounds(patch: pytest.MonkeyPatch) -> None:
    """A successor goes out before it is known what became of its head."""
    patch.setattr(Hands, "free", lambda _self, lanes: lanes)


def rows_in_flight_read_again(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Hands, "rows", lambda _self: ())


def batch_let_go_before_it_is_settled(patch: pytest.MonkeyPatch) -> None:
    settle = Dispatch._settle

    async def letting_go(self: Dispatch, batch: Batch, settled: Sequence[Settled]) -> None:
        self._let_go(batch)
        await settle(self, batch, settled)

    patch.setattr(Dispatch, "_settle", letting_go)


ON_MEMORY: list[Plant] = [
    settle_without_a_fence,
    read_that_never_sets_behind,
    mark_first,
    owner_that_trusts_its_lease_for_ever,
    several_of_a_key_in_flight,
    outage_that_costs_an_attempt,
    unknown_outcome_taken_for_sent,
    lanes_taken_at_first_sight,
    head_that_does_not_block,
    held_rows_that_nobody_frees,
    lane_in_two_rounds,
    rows_in_flight_read_again,
    batch_let_go_before_it_is_settled,
]
ON_SQLITE: list[Plant] = [
    settle_without_a_fence_on_sqlite,
    read_that_never_sets_behind_on_sqlite,
    mark_first,
    lane_in_two_rounds,
]
ON_POSTGRESQL: list[Plant] = [
    settle_without_a_fence_on_postgresql,
    read_that_never_sets_behind_on_postgresql,
    release_that_leaves_the_mark_on_postgresql,
]


@pytest.mark.parametrize("plant", ON_MEMORY, ids=lambda plant: plant.__name__)
def test_what_is_planted_on_memory_is_found(plant: Plant, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch)

    with pytest.raises(AssertionError):
        _run(MemoryMachine, 300)


@pytest.mark.parametrize("plant", ON_SQLITE, ids=lambda plant: plant.__name__)
def test_what_is_planted_on_sqlite_is_found(plant: Plant, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch)

    with pytest.raises(AssertionError):
        _run(SqliteMachine, 100)


SEEDS = 12
"""Searches of a few steps each: one that begins badly hardly ever finds anything."""


@pytest.mark.timeout(600)
@pytest.mark.parametrize("server", needed(postgresql_servers()[-1:], "PostgreSQL"))
@pytest.mark.parametrize("plant", ON_POSTGRESQL, ids=lambda plant: plant.__name__)
def test_what_is_planted_on_postgresql_is_found(
    server: Server, plant: Plant, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)

    with pytest.raises(AssertionError):
        _search(machine_on(server))


def _search(machine: type[OutboxMachine]) -> None:
    for number in range(SEEDS):
        _run(seed(number)(machine), 20, derandomize=False)


def _run(machine: type[OutboxMachine], examples: int, *, derandomize: bool = True) -> None:
    run(
        machine,
        settings(
            max_examples=examples,
            stateful_step_count=40,
            derandomize=derandomize,
            deadline=None,
            database=None,
            phases=[Phase.generate],
            report_multiple_bugs=False,
            suppress_health_check=list(HealthCheck),
        ),
    )


def _querying(patch: pytest.MonkeyPatch, name: str, part: str, instead: str) -> None:
    queries = Names.queries

    def wrong(self: Names) -> dict[str, str]:
        found = dict(queries(self))
        assert part in found[name], f"{name} has changed: plant the mistake anew"
        return {**found, name: found[name].replace(part, instead)}

    patch.setattr(Names, "queries", wrong)


def _judging(
    patch: pytest.MonkeyPatch, kind: type[BrokerError], instead: BrokerError | None
) -> None:
    judge = Judge.judge

    def judging(self: Judge, answers: Iterable[Answer]) -> list[Settled]:
        return judge(
            self,
            [(entry, instead if isinstance(error, kind) else error) for entry, error in answers],
        )

    patch.setattr(Judge, "judge", judging)
