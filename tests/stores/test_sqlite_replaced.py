"""The file is deleted, replaced, or opened before a fork, under an open store."""

import asyncio
import os
import sys
from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path

import pytest

from postroom.errors import StoreUnavailable
from postroom.lane import Lane
from postroom.message import Entry, Message, State
from postroom.outcome import Sent, Settled
from postroom.store import Query
from postroom.stores.sqlite import SqliteStore

Put = Callable[..., None]

SECOND = timedelta(seconds=1)
FORK = Path(__file__).with_name("forking.py")


async def lease(store: SqliteStore) -> Sequence[Lane]:
    return await store.lease(
        "relay", routes={"default": True}, lease=15 * SECOND, renewal=5 * SECOND
    )


async def read(store: SqliteStore, lanes: Sequence[Lane]) -> Sequence[Entry]:
    return await store.read(lanes, limit=10, per_lane=10, max_bytes=1_000)


def remove(path: Path) -> None:
    for name in ("", "-wal", "-shm"):
        path.with_name(f"{path.name}{name}").unlink(missing_ok=True)


async def replace(path: Path) -> None:
    """Put another file with empty tables there, as a backup that is put back."""
    other = SqliteStore(path.with_name("other.db"))
    await other.open()
    await other.migrate()
    await lease(other)
    await other.close()
    await asyncio.to_thread(remove, path)
    await asyncio.to_thread(os.replace, other.path, path)


async def test_a_new_file_is_the_one_that_is_used(sqlite_store: SqliteStore, put: Put) -> None:
    put(sqlite_store, Message(type="t", payload=b"", id="old"))
    assert len(await read(sqlite_store, await lease(sqlite_store))) == 1
    await replace(sqlite_store.path)
    put(sqlite_store, Message(type="t", payload=b"", id="new"))

    found = await sqlite_store.find(Query(), limit=9)
    (entry,) = await read(sqlite_store, await lease(sqlite_store))

    assert [one.message.id for one in found] == ["new"]
    assert entry.message.id == "new"


async def test_lanes_of_the_old_file_are_none_of_the_new(
    sqlite_store: SqliteStore, put: Put
) -> None:
    """Although owner, epoch, seq and id are the same in both, as in a backup."""
    lanes = await lease(sqlite_store)
    put(sqlite_store, Message(type="t", payload=b"", id="a"))
    (entry,) = await read(sqlite_store, lanes)
    await replace(sqlite_store.path)
    put(sqlite_store, Message(type="t", payload=b"", id="a"))
    assert await sqlite_store.find(Query(), limit=9)

    assert await sqlite_store.settle(lanes, [Settled(entry, Sent())], keep=True) == frozenset()
    assert await sqlite_store.hold(lanes, [entry]) == 0
    assert await read(sqlite_store, lanes) == []
    await sqlite_store.give(lanes)

    again = await lease(sqlite_store)
    assert await sqlite_store.settle(again, [Settled(entry, Sent())], keep=True) == {entry.seq}


async def test_a_file_that_is_gone_is_an_outage_until_there_is_one(
    sqlite_store: SqliteStore, put: Put
) -> None:
    await lease(sqlite_store)
    await asyncio.to_thread(remove, sqlite_store.path)

    with pytest.raises(StoreUnavailable, match="was there and is gone"):
        await lease(sqlite_store)
    await sqlite_store.migrate()
    put(sqlite_store, Message(type="t", payload=b"", id="new"))

    assert (await sqlite_store.stats()).counts == {"default": {State.READY: 1}}


async def test_a_wait_ends_when_the_file_is_replaced(sqlite_store: SqliteStore) -> None:
    waiting = asyncio.create_task(sqlite_store.wait(timedelta(hours=1)))
    await lease(sqlite_store)

    await replace(sqlite_store.path)

    async with asyncio.timeout(10):
        await waiting


async def test_a_store_that_was_opened_before_a_fork_says_so(tmp_path: Path) -> None:
    child = await asyncio.create_subprocess_exec(
        sys.executable, str(FORK), str(tmp_path), stdout=asyncio.subprocess.PIPE
    )
    async with asyncio.timeout(15):
        said, _ = await child.communicate()

    assert said.decode().splitlines() == [
        "store: the store was opened before the fork: open it in the child, too",
        "broker: the embedded broker was used before the fork: open it in the child, too",
        "after opening: 1 ready, [None]",
        "parent: 1 ready, [None]",
    ]
