"""The prepared read on a connection of its own: as right as any other, and never in the way."""

import asyncio
from datetime import timedelta

import pytest

from postroom.errors import StoreUnavailable
from postroom.stores.postgresql import PostgresqlStore, reader
from postroom.stores.postgresql.reader import Reader
from tests.stores.postgresql import Ground, ids, lease, message, sent

NOW = timedelta(0)


async def woken(ground: Ground) -> PostgresqlStore:
    """Return a store that has slept, and reads on a connection of its own since then."""
    store = await ground.store(timed=False)
    for _ in range(3):
        await store.wait(NOW)
    assert own(store).ready
    return store


def own(store: PostgresqlStore) -> Reader:
    """Return what the store reads with."""
    assert store._reader is not None
    return store._reader


async def backend(store: PostgresqlStore) -> int:
    """Return the server's process of that connection."""
    pid: int = own(store)._connection.get_server_pid()
    return pid


async def test_every_read_sees_what_was_committed_before_it(ground: Ground) -> None:
    store = await woken(ground)
    lanes = await lease(store)

    for name in "abc":
        await ground.put(message(name))
        entries = await ground.look(store, lanes)
        assert ids(entries) == [name]
        await store.settle(lanes, sent(*entries), keep=True)

    assert own(store).ready


async def test_no_transaction_stays_open_behind_a_read(ground: Ground) -> None:
    store = await woken(ground)
    lanes = await lease(store)
    pid = await backend(store)

    await ground.look(store, lanes)

    (row,) = await ground.sql(
        "select state, xact_start, backend_xmin from pg_stat_activity where pid = $1", pid
    )
    assert tuple(row) == ("idle", None, None)


async def test_a_connection_that_was_ended_is_replaced(
    ground: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reader, "PAUSE", 0.0)
    store = await woken(ground)
    lanes = await lease(store)
    await ground.put(message("a"))
    before = await backend(store)
    await ground.sql("select pg_terminate_backend($1, 5000)", before)

    assert ids(await ground.look(store, lanes)) == ["a"]

    async with asyncio.timeout(20):
        while not own(store).ready:
            await store.wait(timedelta(milliseconds=10))
    assert await backend(store) != before
    assert ids(await ground.look(store, lanes)) == ["a"]


async def test_tables_may_change_under_it(ground: Ground) -> None:
    store = await woken(ground)
    lanes = await lease(store)
    await ground.put(message("a"))
    assert ids(await ground.look(store, lanes)) == ["a"]

    await ground.sql("alter table postroom_outbox add column note text, alter topic type varchar")

    assert ids(await ground.look(store, lanes)) == ["a"]


async def test_a_read_that_takes_too_long_is_an_outage_and_not_run_twice(ground: Ground) -> None:
    store = await woken(ground)
    lanes = await lease(store)
    await own(store)._connection.execute("set statement_timeout = '200ms'")
    async with ground.connected() as other, other.transaction():
        await other.execute("lock table postroom_outbox")

        async with asyncio.timeout(5):
            with pytest.raises(StoreUnavailable, match="57014"):
                await ground.look(store, lanes)

    assert not own(store).ready
    assert await ground.look(store, lanes) == []


async def test_what_was_lost_with_the_pool_is_not_read_from_any_more(ground: Ground) -> None:
    """It may be connected to a server that was demoted, and would see what was sent long ago."""
    store = await woken(ground)
    pooled = await store._database.read(lambda work: work.value("backend"))
    await ground.sql("select pg_terminate_backend($1, 5000)", pooled)

    await store.now()

    assert not own(store).ready


async def test_several_read_at_once(ground: Ground) -> None:
    store = await woken(ground)
    lanes = await lease(store)
    await ground.put(message("a"))

    found = await asyncio.gather(*(ground.look(store, lanes) for _ in range(5)))

    assert [ids(each) for each in found] == [["a"]] * 5
    assert own(store).ready


async def test_close_ends_it(ground: Ground) -> None:
    store = await woken(ground)
    pid = await backend(store)

    await store.close()

    async with asyncio.timeout(20):
        while await ground.sql("select from pg_stat_activity where pid = $1", pid):
            await asyncio.sleep(0.01)
