"""Held rows are released in chunks, one after the other."""

from collections.abc import Callable
from datetime import timedelta

import pytest

from postroom.message import Message, State
from postroom.outcome import Dead, Retry, Sent, Settled
from postroom.store import Query
from postroom.stores.sqlite import SqliteStore, sweeping
from postroom.stores.sqlite.settling import CHUNK
from postroom.testing.clock import ManualClock

Put = Callable[..., None]

SECOND = timedelta(seconds=1)


async def test_a_chunk_is_released_when_the_last_one_is_done(
    sqlite_store: SqliteStore, clock: ManualClock, put: Put
) -> None:
    """Released all at once, a long queue would have to be held again if its head fails again."""
    store = sqlite_store
    lanes = await store.lease(
        "relay", routes={"default": True}, lease=15 * SECOND, renewal=5 * SECOND
    )
    put(store, *(Message(type="t", payload=b"", key="k") for _ in range(3 * CHUNK)))

    async def read(limit: int) -> list[Settled]:
        entries = await store.read(lanes, limit=limit, per_lane=limit, max_bytes=1_000_000)
        return [Settled(entry, Sent()) for entry in entries]

    async def count(state: State) -> int:
        return (await store.stats()).counts["default"].get(state, 0)

    head, *rest = await store.read(lanes, limit=9_999, per_lane=9_999, max_bytes=1_000_000)
    await store.settle(lanes, [Settled(head, Retry(delay=SECOND, error=""))], keep=False)
    await store.hold(lanes, rest)
    clock.advance(1)
    await store.sweep(lanes, limit=9, orphans=True)
    before = await count(State.READY)
    await store.sweep(lanes, limit=9, orphans=True)
    await store.settle(lanes, await read(1), keep=False)
    first = await count(State.READY)
    await store.settle(lanes, await read(1), keep=False)
    await store.sweep(lanes, limit=9, orphans=True)
    still = await count(State.READY)
    await store.settle(lanes, await read(CHUNK), keep=False)
    second = await count(State.READY)

    assert (before, first, still, second) == (1, CHUNK, CHUNK - 1, CHUNK)
    assert len(await store.find(Query(states=[State.HELD]), limit=9_999)) == CHUNK - 1


async def test_many_blocked_keys_are_looked_at_a_few_at_a_time(
    sqlite_store: SqliteStore, put: Put, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One sweep must not take long however many keys are blocked; the next goes on behind it."""
    monkeypatch.setattr(sweeping, "KEYS", 3)
    store = sqlite_store
    lanes = await store.lease(
        "relay", routes={"default": True}, lease=15 * SECOND, renewal=5 * SECOND
    )
    put(
        store,
        *(
            Message(type="t", payload=b"", key=f"{n}", id=f"{n}/{i}")
            for i in (0, 1)
            for n in range(8)
        ),
    )
    entries = await store.read(lanes, limit=99, per_lane=99, max_bytes=1_000_000)
    heads = [entry for entry in entries if entry.message.id.endswith("/0")]
    retry = Retry(delay=60 * SECOND, error="")
    await store.settle(lanes, [Settled(head, retry) for head in heads], keep=False)
    await store.hold(lanes, [entry for entry in entries if entry not in heads])
    await store.discard(Query(states=[State.WAITING]), limit=99, actor="", dry_run=False)

    freed = [(await store.sweep(lanes, limit=99, orphans=True)).freed for _ in range(6)]

    assert sum(freed) == 8
    assert all(count <= 3 for count in freed)


async def test_a_parked_row_without_a_key_expires_too(
    sqlite_store: SqliteStore, clock: ManualClock, put: Put
) -> None:
    store = sqlite_store
    lanes = await store.lease(
        "relay", routes={"default": True}, lease=15 * SECOND, renewal=5 * SECOND
    )
    put(store, Message(type="t", payload=b"", expires_at=clock.now() + SECOND))
    (entry,) = await store.read(lanes, limit=9, per_lane=9, max_bytes=9)
    await store.settle(lanes, [Settled(entry, Dead(error="", blocks=True))], keep=False)
    clock.advance(1)

    swept = await store.sweep(lanes, limit=9, orphans=True)

    (row,) = await store.find(Query(), limit=9)
    assert (swept.freed, row.blocks) == (0, False)
