"""The order of a key through holds and releases. Each test fails on a planted mistake."""

import pytest

from postroom.lane import Lane
from postroom.outcome import Retry, Settled
from postroom.store import Query
from postroom.stores.postgresql import PostgresqlStore
from tests.stores.postgresql import SECOND, Ground, Plant, expire, ids, lease, message, put, sent

NO_SEARCH: Plant = ("blocked-keys", "order by blocker.seq + 0 limit 1", "and false limit 1")
"""Never looks for keys whose head has gone."""
HELD_IS_NOTHING: Plant = (
    "read",
    "where blocker.blocks and blocker.key is not null and",
    "where blocker.state <> 'held' and blocker.blocks and blocker.key is not null and",
)
"""Only a head that was refused keeps others back, not the rows that wait behind it."""
MARK_STAYS: Plant = ("release", "lowest.seq - 1", "9223372036854775807")
"""Tells the owner of the release, and leaves the mark for the next owner above it."""


async def refused(ground: Ground, store: PostgresqlStore, lanes: list[Lane], count: int) -> None:
    """Put rows of one key, refuse the first and hold the rest."""
    await ground.put(*(message(f"{number:04}") for number in range(count)))
    head, *rest = await ground.look(store, lanes)
    await store.settle(lanes, [Settled(head, Retry(delay=SECOND, error=""))], keep=False)
    assert await store.hold(lanes, rest) == count - 1


async def send(
    ground: Ground, store: PostgresqlStore, lanes: list[Lane], *, limit: int
) -> list[str]:
    """Do as a relay does whose broker takes everything, until nothing is left or the limit."""
    done: list[str] = []
    while len(done) < limit and (entries := await ground.look(store, lanes)):
        going = [entry for entry in entries if not entry.behind][: limit - len(done)]
        await store.hold(lanes, [entry for entry in entries if entry.behind])
        await store.settle(lanes, sent(*going), keep=False)
        done += ids(going)
    return done


@pytest.mark.parametrize("plant", [None, NO_SEARCH])
async def test_held_rows_whose_head_was_discarded_are_freed(
    ground: Ground, plant: Plant | None
) -> None:
    store = await ground.store(*([plant] if plant else []))
    lanes = await lease(store)
    await refused(ground, store, lanes, 4)
    await store.discard(Query(ids=["0000"]), limit=1, actor="ada", dry_run=False)

    await store.sweep(lanes, limit=10, orphans=True)

    freed = ["0001", "0002", "0003"] if plant is None else []
    assert await send(ground, store, lanes, limit=10) == freed


@pytest.mark.parametrize("plant", [None, HELD_IS_NOTHING])
async def test_a_newcomer_waits_while_the_head_settles(ground: Ground, plant: Plant | None) -> None:
    """The head goes, and its first chunk becomes ready: what is held still comes before."""
    store = await ground.store(*([plant] if plant else []))
    lanes = await lease(store)
    await refused(ground, store, lanes, 700)
    ground.clock.advance(2)
    await store.sweep(lanes, limit=10, orphans=False)
    (head,) = await ground.look(store, lanes)
    async with ground.connected() as writer, writer.transaction():
        await put(writer, store, message("newcomer"))
        await store.settle(lanes, sent(head), keep=False)

    order = await send(ground, store, lanes, limit=1_000)

    right = [*(f"{number:04}" for number in range(1, 700)), "newcomer"]
    assert (order == right) is (plant is None)
    assert sorted(order) == right


@pytest.mark.parametrize("plant", [None, MARK_STAYS])
async def test_a_takeover_in_the_middle_of_a_chunked_release_keeps_the_order(
    ground: Ground, plant: Plant | None
) -> None:
    store = await ground.store(*([plant] if plant else []))
    lanes = await lease(store)
    await refused(ground, store, lanes, 1_300)
    assert await ground.raised(store, lanes)
    await store._keep_marks(lanes)
    await store.discard(Query(ids=["0000"]), limit=1, actor="ada", dry_run=False)
    await store.sweep(lanes, limit=1_000, orphans=True)
    first = await send(ground, store, lanes, limit=300)
    other = await ground.store()
    taken = await expire(ground, other, "other")
    await ground.put(message("newcomer"))

    order = first + await send(ground, other, taken, limit=2_000)

    right = [*(f"{number:04}" for number in range(1, 1_300)), "newcomer"]
    assert (order == right) is (plant is None)
