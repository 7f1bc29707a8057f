"""A late owner changes nothing. Each test fails on a store with a planted mistake."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from postroom.errors import StoreUnavailable
from postroom.lane import LANES, lane_of
from postroom.stores.liveness import Sighting
from tests.stores.postgresql import (
    LEASE,
    SECOND,
    Ground,
    Plant,
    expire,
    ids,
    lease,
    message,
    sent,
    waiting,
)

UNLOCKED: Plant = ("settle-gone", "for no key update of lane", "")
"""Looks at the epoch, and does not lock the lane."""
PATIENT: Plant = ("pass-lanes", "skip locked", "")
"""Waits for whatever holds a lane."""
BY_SEQ: Plant = ("settle-gone", "entry.id = done.id", "true")
"""Takes the number of a row for the row."""


@asynccontextmanager
async def locked(ground: Ground, message_id: str) -> AsyncIterator[Any]:
    """Lock a row, as a person's transaction that stays open does; rolled back at the end."""
    async with ground.connected() as person:
        transaction = person.transaction()
        await transaction.start()
        await person.execute("select from postroom_outbox where id = $1 for update", message_id)
        yield person
        await transaction.rollback()


@pytest.mark.parametrize("plant", [None, UNLOCKED])
async def test_a_stale_settle_that_waited_deletes_no_head_of_the_new_owner(
    ground: Ground, plant: Plant | None
) -> None:
    """It looked at the epoch, then waited for a row: meanwhile nobody may become owner."""
    old = await ground.store(*([plant] if plant else []))
    new = await ground.store()
    lanes = await lease(old, "old")
    await ground.put(message("head"), message("next"))
    (head, _) = await ground.look(old, lanes)

    async with locked(ground, "head") as person:
        settling = asyncio.ensure_future(old.settle(lanes, sent(head), keep=False))
        await waiting(ground, person)
        taken = await expire(ground, new, "new")
        owned = lane_of("k", "") in {lane.number for lane in taken}
    deleted = await settling

    assert (owned and bool(deleted)) is (plant is not None)
    assert len(await expire(ground, new, "new")) == LANES


@pytest.mark.parametrize("plant", [None, PATIENT])
async def test_an_owner_frozen_with_its_statement_blocked_stops_nobody(
    ground: Ground, plant: Plant | None
) -> None:
    """Its lanes go to the others, but for the one in which its statement still runs."""
    old = await ground.store()
    new = await ground.store(*([plant] if plant else []), impatient=True)
    lanes = await lease(old, "old")
    await ground.put(message("head"), message("next"), message("other", key="m"))
    entries = await ground.look(old, lanes)

    async with locked(ground, "head") as person:
        settling = asyncio.ensure_future(old.settle(lanes, sent(*entries[:2]), keep=False))
        await waiting(ground, person)
        if plant:
            with pytest.raises(StoreUnavailable, match="55P03"):
                await expire(ground, new, "new")
        else:
            taken = await expire(ground, new, "new")
            assert {lane.number for lane in lanes} - {lane.number for lane in taken} == {
                lane_of("k", "")
            }
            assert ids(await ground.look(new, taken)) == ["other"]
    await settling

    assert len(await expire(ground, new, "new")) == LANES
    assert await old.settle(lanes, sent(entries[2]), keep=False) == frozenset()


async def test_a_process_stopped_inside_a_transaction_is_cut_off(ground: Ground) -> None:
    """Its locks end with it, within the time-out that every transaction carries."""
    old, new = await ground.store(impatient=True), await ground.store()
    await lease(old, "old")
    begin = old._database._begin("begin-write", SECOND)

    async with ground.connected() as stopped:
        await stopped.execute(begin)
        await stopped.execute("select from postroom_lane for no key update")
        assert await expire(ground, new, "new") == []
        await cut_off(stopped)

        assert len(await lease(new, "new")) == LANES


@pytest.mark.parametrize("plant", [None, BY_SEQ])
async def test_a_settle_hits_no_other_message_of_the_same_number(
    ground: Ground, plant: Plant | None
) -> None:
    """The sequence of a restored database gives numbers again that a relay still holds."""
    store = await ground.store(*([plant] if plant else []))
    lanes = await lease(store)
    await ground.put(message("first"))
    (entry,) = await ground.look(store, lanes)
    await ground.sql("delete from postroom_outbox")
    await ground.sql("select setval('postroom_place', $1, false)", entry.seq)
    await ground.put(message("second"))

    await store.settle(lanes, sent(entry), keep=False)

    rows = await ground.sql("select id, seq from postroom_outbox")
    assert [tuple(row) for row in rows] == ([("second", entry.seq)] if plant is None else [])


@pytest.mark.parametrize("hasty", [False, True])
async def test_a_database_stalled_for_longer_than_a_lease_robs_nobody(
    ground: Ground, hasty: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No renewal came through: all look dead, and none is."""
    if hasty:
        monkeypatch.setattr(Sighting, "gone", lambda self, now, _renewal: self.expired(now))
    first, second = await ground.store(impatient=True), await ground.store(impatient=True)
    for _ in range(3):
        before = [await lease(first, "first"), await lease(second, "second")]

    async with ground.connected() as staller, staller.transaction():
        await staller.execute("lock table postroom_relay in access exclusive mode")
        for store, name in ((first, "first"), (second, "second")):
            with pytest.raises(StoreUnavailable):
                await lease(store, name)
        ground.clock.advance(4 * LEASE)
    after = [await lease(first, "first"), await lease(second, "second")]

    assert (after == before) is not hasty


async def test_relays_that_begin_at_once_share(ground: Ground) -> None:
    stores = [await ground.store() for _ in range(4)]

    for _ in range(3):
        owned = await asyncio.gather(
            *(lease(store, f"relay-{number}") for number, store in enumerate(stores))
        )

    assert sorted(len(lanes) for lanes in owned) == [16] * 4
    assert len({(lane.route, lane.number) for lanes in owned for lane in lanes}) == LANES


async def cut_off(connection: Any) -> None:
    """Return when the server has ended the connection."""
    ended = asyncio.Event()
    connection.add_termination_listener(lambda _connection: ended.set())
    if not connection.is_closed():
        await asyncio.wait_for(ended.wait(), 20)
