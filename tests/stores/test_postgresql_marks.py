"""The low-water mark never passes a message. Each test fails on a store with a planted mistake."""

import asyncio
from typing import Any

import pytest

from postroom.lane import Lane, lane_of
from postroom.outcome import Dead, Retry, Settled
from postroom.store import Query
from postroom.stores.postgresql import PostgresqlStore, reading
from postroom.stores.postgresql.marks import Candidate
from postroom.stores.postgresql.work import Work
from tests.stores.postgresql import (
    LEASE,
    RENEWAL,
    SECOND,
    Ground,
    Plant,
    ids,
    lease,
    message,
    put,
    sent,
    waiting,
)

AT_ONCE: Plant = ("own-transaction", "cast(cast(pg_current_xact_id() as text) as bigint)", "0")
"""Raises the mark without waiting for older transactions."""
NEWEST: Plant = ("read", "pg_snapshot_xmin(", "pg_snapshot_xmax(")
"""Takes the newest transaction for the oldest."""
UNTOLD = "nudges = lane.nudges + 1"
"""Where the owner is told that something became ready below its mark."""


async def lost(ground: Ground, store: PostgresqlStore, lanes: list[Lane]) -> list[str]:
    """Return the ids of ready rows that reads do not see."""
    seen = ids(await ground.look(store, lanes))
    rows = await ground.sql("select id from postroom_outbox where state = 'ready' order by seq")
    return [row["id"] for row in rows if row["id"] not in seen]


def mark(store: PostgresqlStore, lanes: list[Lane]) -> int:
    """Return how high the mark of the lane of key `k` is."""
    (known,) = store._marks.of(lane for lane in lanes if lane.number == lane_of("k", ""))
    return known.place


@pytest.mark.parametrize("plant", [None, AT_ONCE, NEWEST])
async def test_a_late_commit_below_the_mark_is_sent(ground: Ground, plant: Plant | None) -> None:
    store = await ground.store(*([plant] if plant else []))
    lanes = await lease(store)

    async with ground.connected() as late, late.transaction():
        await put(late, store, message("late"))
        for number in range(4):
            await ground.put(message(str(number)))
            entries = await ground.look(store, lanes)
            await store.settle(lanes, sent(*entries), keep=False)

    assert await lost(ground, store, lanes) == ([] if plant is None else ["late"])


async def test_the_mark_rises_when_all_older_transactions_have_ended(ground: Ground) -> None:
    store = await ground.store()
    lanes = await lease(store)
    async with ground.connected() as late, late.transaction():
        await put(late, store, message("late"))
        await ground.put(message("early"))
        await store.settle(lanes, sent(*await ground.look(store, lanes)), keep=False)
        assert not await ground.raised(store, lanes, within=0.2)
        held = mark(store, lanes)

    assert await ground.raised(store, lanes)
    below = mark(store, lanes)
    await store.settle(lanes, sent(*await ground.look(store, lanes)), keep=False)
    assert await ground.raised(store, lanes)

    assert (held, below, mark(store, lanes)) == (0, 0, 2)


@pytest.mark.parametrize("wrong", [False, True])
async def test_an_insert_is_a_transaction_before_it_has_a_place(
    ground: Ground, wrong: bool
) -> None:
    """A row that has its place and waits inside its insert must hold the mark back."""
    if wrong:
        await ground.sql(
            "alter table postroom_outbox alter seq set default nextval('postroom_place')"
        )
    await ground.sql(
        "create function pause() returns trigger language plpgsql as "
        "'begin perform pg_advisory_xact_lock(hashtext(tg_table_schema)); return new; end'"
    )
    store = await ground.store()
    lanes = await lease(store)
    await ground.put(message("early"))
    await ground.sql(
        "create trigger pause before insert on postroom_outbox "
        "for each row execute function pause()"
    )
    async with ground.connected() as gate, ground.connected() as writer:
        await gate.execute("select pg_advisory_lock(hashtext(current_schema()))")
        writing = asyncio.ensure_future(put(writer, store, message("paused")))
        await waiting(ground, gate)
        await store.settle(lanes, sent(*await ground.look(store, lanes)), keep=False)
        await ground.raised(store, lanes, within=5 if wrong else 0.2)

        await gate.execute("select pg_advisory_unlock_all()")
        await writing

    assert await lost(ground, store, lanes) == (["paused"] if wrong else [])


@pytest.mark.parametrize("wrong", [False, True])
async def test_the_position_is_read_before_a_transaction_is_taken(
    ground: Ground, wrong: bool
) -> None:
    store = await ground.store()
    lanes = await lease(store)
    async with ground.connected() as late, late.transaction():

        async def position(work: Work) -> Candidate:
            names = ("own-transaction", "position") if wrong else ("position", "own-transaction")
            found = {}
            for name in names:
                found[name] = await work.value(name)
                if len(found) == 1:
                    await put(late, store, message("between"))
            return Candidate(found["position"], found["own-transaction"])

        await ground.put(message("early"))
        entries = await ground.look(store, lanes)
        await store.settle(lanes, sent(*entries), keep=False)
        store._marks.propose(await store._database.write(position))
        assert await ground.ripened(store, lanes, within=20 if wrong else 0.2) is wrong

    assert await lost(ground, store, lanes) == (["between"] if wrong else [])


async def wait_for_retry(ground: Ground, store: PostgresqlStore, lanes: list[Lane]) -> None:
    """Make a row ready below the mark: a retry that is due."""
    (head,) = await ground.look(store, lanes)
    await store.settle(lanes, [Settled(head, Retry(delay=SECOND, error="no"))], keep=False)
    await ground.raised(store, lanes)
    ground.clock.advance(2)
    assert (await store.sweep(lanes, limit=9, orphans=False)).due == 1


async def wait_for_release(ground: Ground, store: PostgresqlStore, lanes: list[Lane]) -> None:
    """Make a row ready below the mark: held behind a head that a person discards."""
    (head,) = await ground.look(store, lanes)
    await ground.put(message("second"))
    await store.settle(lanes, [Settled(head, Retry(delay=SECOND, error="no"))], keep=False)
    assert await store.hold(lanes, await ground.look(store, lanes)) == 1
    await ground.raised(store, lanes)
    await store.discard(Query(ids=["first"]), limit=1, actor="ada", dry_run=False)
    assert (await store.sweep(lanes, limit=9, orphans=True)).freed == 1


async def wait_for_replay(ground: Ground, store: PostgresqlStore, lanes: list[Lane]) -> None:
    """Make a row ready below the mark: a parked one that a person replays."""
    (head,) = await ground.look(store, lanes)
    await store.settle(lanes, [Settled(head, Dead(error="no", blocks=True))], keep=False)
    await ground.raised(store, lanes)
    await store.replay(Query(), limit=1, actor="ada", dry_run=False)


WAYS: dict[str, Any] = {
    "promote-waiting": wait_for_retry,
    "release": wait_for_release,
    "replay-in-place": wait_for_replay,
}


@pytest.mark.parametrize("wrong", [False, True])
@pytest.mark.parametrize("way", WAYS)
async def test_what_becomes_ready_below_the_mark_is_sent(
    ground: Ground, way: str, wrong: bool
) -> None:
    """A retry that is due, a release, a replay."""
    plant = (way, UNTOLD, "nudges = lane.nudges")
    store = await ground.store(*([plant] if wrong else []))
    lanes = await lease(store)
    await ground.put(message("first"))

    await WAYS[way](ground, store, lanes)

    assert bool(await lost(ground, store, lanes)) is wrong


CARELESS_READ: Plant = (
    "read",
    "case when lane.nudges = known.nudges then known.mark else lane.mark end",
    "greatest(known.mark, lane.mark)",
)
CARELESS_KEEPING: Plant = ("keep-marks", "and lane.nudges = known.nudges", "and true")


@pytest.mark.parametrize("plant", [None, CARELESS_READ, CARELESS_KEEPING])
async def test_a_desk_lowers_the_mark_while_the_owner_raises_it(
    ground: Ground, plant: Plant | None
) -> None:
    """Whoever commits last: the row that the desk made ready is read."""
    store = await ground.store(*([plant] if plant else []))
    lanes = await lease(store)
    await ground.put(message("parked"))
    (head,) = await ground.look(store, lanes)
    await store.settle(lanes, [Settled(head, Dead(error="no", blocks=True))], keep=False)
    desk = await ground.store()
    lowering, raised = asyncio.Event(), asyncio.Event()
    change = desk._database.write

    async def slowly(work: Any, **options: Any) -> Any:
        async def paused(unit: Work) -> Any:
            result = await work(unit)
            lowering.set()
            await raised.wait()
            return result

        return await change(paused, **options)

    desk._database.write = slowly  # type: ignore[method-assign]
    await ground.proposed(store, lanes)
    replaying = asyncio.ensure_future(desk.replay(Query(), limit=1, actor="", dry_run=False))
    await lowering.wait()
    assert await ground.ripened(store, lanes)
    raised.set()
    await replaying
    worth = store._marks.worth_keeping(lanes)
    await store._database.write(lambda work: reading.keep(work, worth))

    assert await lost(ground, store, lanes) == ([] if plant is None else ["parked"])


async def test_a_busy_route_leaves_the_marks_of_a_quiet_one_their_turn(ground: Ground) -> None:
    store = await ground.store()
    lanes = await store.lease(
        "relay", routes={"busy": True, "quiet": True}, lease=LEASE, renewal=RENEWAL
    )
    busy = [lane for lane in lanes if lane.route == "busy"]
    quiet = [lane for lane in lanes if lane.route == "quiet"]
    async with ground.connected() as writer:
        for route in ("busy", "quiet"):
            await put(writer, store, message(route), route=route)
    await store.settle(lanes, sent(*await ground.look(store, lanes)), keep=False)

    assert await ground.raised(store, busy)
    await ground.look(store, quiet)

    assert mark(store, quiet) == 2


async def test_the_next_owner_begins_at_the_kept_mark(ground: Ground) -> None:
    store = await ground.store()
    lanes = await lease(store)
    await ground.put(*(message(str(n)) for n in range(50)))
    await store.settle(lanes, sent(*await ground.look(store, lanes)), keep=False)
    await ground.raised(store, lanes)
    await store.leave("relay")
    other = await ground.store()
    taken = await lease(other, "other")

    await ground.look(other, taken)

    assert mark(other, taken) == 50


async def test_a_row_put_below_the_mark_by_hand_is_found_by_the_backstop(ground: Ground) -> None:
    store = await ground.store()
    lanes = await lease(store)
    await ground.put(message("first"), message("second"))
    await store.settle(lanes, sent(*await ground.look(store, lanes)), keep=True)
    await ground.raised(store, lanes)
    await ground.sql("update postroom_outbox set state = 'ready' where id = 'first'")

    before = await lost(ground, store, lanes)
    for _ in lanes:
        await store.sweep(lanes, limit=9, orphans=True)

    assert (before, await lost(ground, store, lanes)) == (["first"], [])


async def test_a_restored_database_is_read_from_its_own_marks(ground: Ground) -> None:
    """The sequence goes back, and so do the places of new messages."""
    store = await ground.store()
    lanes = await lease(store)
    await ground.put(*(message(str(n)) for n in range(50)))
    await store.settle(lanes, sent(*await ground.look(store, lanes)), keep=False)
    await ground.raised(store, lanes)
    await ground.sql("select setval('postroom_place', 10)")
    await ground.put(message("after"))

    await ground.raised(store, lanes)

    assert await lost(ground, store, lanes) == []


async def test_an_emptied_table_that_begins_anew_is_noticed_by_a_sweep(ground: Ground) -> None:
    """Nothing above the marks tells of it: what is put now lies below them."""
    store = await ground.store()
    lanes = await lease(store)
    await ground.put(*(message(str(n)) for n in range(50)))
    await store.settle(lanes, sent(*await ground.look(store, lanes)), keep=False)
    await ground.raised(store, lanes)
    ground.clock.advance(60)
    await lease(store)  # which writes the marks down
    await ground.sql("truncate postroom_outbox restart identity")
    await ground.put(message("first"), message("second"))
    assert ids(await ground.look(store, lanes)) == []

    await store.sweep(lanes, limit=10, orphans=True)

    assert ids(await ground.look(store, lanes)) == ["first", "second"]


async def test_marks_are_forgotten_with_the_connections(ground: Ground) -> None:
    store = await ground.store()
    lanes = await lease(store)
    await ground.put(*(message(str(n)) for n in range(5)))
    await store.settle(lanes, sent(*await ground.look(store, lanes)), keep=False)
    await ground.raised(store, lanes)
    before = mark(store, lanes)

    pid = await store._database.read(lambda work: work.value("backend"))
    await ground.sql("select pg_terminate_backend($1)", pid)
    await lease(store)

    assert (before, mark(store, lanes)) == (5, 0)
