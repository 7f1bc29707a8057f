"""What goes wrong between store and server, what the store says, and that it comes back."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import urlsplit
from uuid import uuid4

import asyncpg
import pytest

from postroom.errors import SchemaMismatch, StoreError, StoreUnavailable
from postroom.lab.servers.postgresql import PostgresqlServer, installed
from postroom.lab.servers.proxy import Proxy
from postroom.message import State
from postroom.store import Query
from postroom.stores.postgresql import PostgresqlStore
from postroom.stores.postgresql.errors import translate
from postroom.stores.postgresql.work import Work
from tests.stores.postgresql import SECOND, Ground, ids, lease, message, sent, waiting


@pytest.fixture
def proxy(ground: Ground) -> Iterator[Proxy]:
    """A wire to the server that can be cut."""
    server = urlsplit(ground.url)
    with Proxy(server.hostname or "", server.port or 5432) as proxy:
        yield proxy


def through(proxy: Proxy, ground: Ground) -> str:
    """Return the address of the server at the other end of the wire."""
    server = urlsplit(ground.url)
    return server._replace(netloc=f"{server.username}@127.0.0.1:{proxy.port}").geturl()


@asynccontextmanager
async def role(ground: Ground, *options: str) -> AsyncIterator[str]:
    """Make a role that may do everything in the schema; give its address."""
    name = f"postroom_test_{uuid4().hex[:8]}"
    server = urlsplit(ground.url)
    async with ground.connected() as connection:
        await connection.execute(f"create role {name} login {' '.join(options)}")
        try:
            yield server._replace(netloc=f"{name}@{server.hostname}:{server.port}").geturl()
        finally:
            await connection.execute(
                "select pg_terminate_backend(pid) from pg_stat_activity where usename = $1", name
            )
            await connection.execute(f"drop role {name}")


async def unsent(ground: Ground) -> list[str]:
    """Return the ids of all ready rows."""
    rows = await ground.sql("select id from postroom_outbox where state = 'ready' order by seq")
    return [row["id"] for row in rows]


async def test_a_server_that_is_not_there_is_told_and_may_come(
    ground: Ground, proxy: Proxy
) -> None:
    proxy.refuse()
    store = PostgresqlStore(through(proxy, ground), schema=ground.schema)

    with pytest.raises(StoreUnavailable):
        await store.open()
    proxy.restore()
    await store.open()

    assert len(await lease(store)) == 64
    await store.close()


async def test_a_wire_cut_without_a_word_hangs_nobody(ground: Ground, proxy: Proxy) -> None:
    store = await ground.store(impatient=True, url=through(proxy, ground))
    lanes = await lease(store)
    await ground.put(message("a"))
    (entry,) = await ground.look(store, lanes)
    proxy.silence()

    async with asyncio.timeout(20):
        for call in (store.settle(lanes, sent(entry), keep=False), lease(store), store.stats()):
            with pytest.raises(StoreUnavailable, match="no answer in time"):
                await call
    proxy.restore()

    assert await store.settle(lanes, sent(entry), keep=False) == {entry.seq}


async def test_connections_that_died_while_idle_are_replaced(ground: Ground, proxy: Proxy) -> None:
    store = await ground.store(url=through(proxy, ground))
    await asyncio.gather(*(lease(store, f"relay-{number}") for number in range(4)))

    proxy.reset()
    for _ in range(8):
        await lease(store)


async def test_a_backend_ended_inside_a_transaction_changes_nothing(ground: Ground) -> None:
    store = await ground.store()
    lanes = await lease(store)
    await ground.put(message("a"), message("b"))
    entries = await ground.look(store, lanes)

    async with ground.connected() as person, person.transaction():
        await person.execute("select from postroom_outbox where id = 'b' for update")
        settling = asyncio.ensure_future(store.settle(lanes, sent(*entries), keep=False))
        await waiting(ground, person)
        await ground.sql(
            "select pg_terminate_backend(pid) from pg_stat_activity "
            "where $1 = any (pg_blocking_pids(pid))",
            person.get_server_pid(),
        )
        with pytest.raises(StoreUnavailable, match=r"08003|57P01"):
            await settling

    assert await unsent(ground) == ["a", "b"]
    assert len(await store.settle(lanes, sent(*entries), keep=False)) == 2


@pytest.mark.parametrize("how", ["restarted", "killed"])
async def test_a_server_that_was_away_is_used_again(how: str) -> None:
    """Within the next call; nothing is lost and nothing was charged."""
    if not installed():
        pytest.skip("no PostgreSQL that could be started")
    server = PostgresqlServer(installed()[-1])
    try:
        server.start()
        ground = Ground(server.url, "own")
        store = await ground.store()
        await store.migrate()
        lanes = await lease(store)
        await ground.put(message("a"), message("b"))
        entries = await ground.look(store, lanes)

        server.stop() if how == "restarted" else server.kill()
        with pytest.raises(StoreUnavailable):
            await store.settle(lanes, sent(*entries), keep=False)
        server.start()

        assert await ground.look(store, lanes) == entries
        assert len(await store.settle(lanes, sent(*entries), keep=False)) == 2
        await store.close()
    finally:
        server.remove()


async def test_a_demoted_server_is_left_for_the_new_one(ground: Ground) -> None:
    """The same connection would stay with the standby for ever."""
    async with role(ground, "superuser") as url:
        name = urlsplit(url).username
        store = await ground.store(url=url)
        lanes = await lease(store)
        await ground.sql(f"alter role {name} set default_transaction_read_only = on")
        await store.close()
        await store.open()

        with pytest.raises(StoreUnavailable, match="25006"):
            await lease(store)
        await ground.sql(f"alter role {name} set default_transaction_read_only = off")

        assert await lease(store) == lanes
        await store.close()


async def test_a_server_without_a_connection_left_is_told(ground: Ground) -> None:
    async with role(ground, "connection limit 0") as url:
        with pytest.raises(StoreUnavailable, match="max_connections"):
            await PostgresqlStore(url).open()


async def test_a_database_that_does_not_exist_is_told(ground: Ground) -> None:
    url = urlsplit(ground.url)._replace(path="/no_such_database").geturl()

    with pytest.raises(StoreUnavailable, match="create it"):
        await PostgresqlStore(url).open()


async def test_a_lock_held_too_long_is_told(ground: Ground) -> None:
    store = await ground.store(impatient=True)
    lanes = await lease(store)
    await ground.put(message("a"))
    entries = await ground.look(store, lanes)
    async with ground.connected() as person, person.transaction():
        await person.execute("select from postroom_outbox for update")

        with pytest.raises(StoreUnavailable, match="transaction that stays open"):
            await store.settle(lanes, sent(*entries), keep=False)
        assert ids(await ground.look(store, lanes)) == ["a"]

    assert len(await store.settle(lanes, sent(*entries), keep=False)) == 1


async def test_a_statement_that_takes_too_long_is_ended(ground: Ground) -> None:
    store = await ground.store(impatient=True)
    lanes = await lease(store)
    async with ground.connected() as person, person.transaction():
        await person.execute("lock table postroom_outbox in access exclusive mode")

        with pytest.raises(StoreUnavailable, match="57014"):
            await ground.look(store, lanes)

    assert await ground.look(store, lanes) == []


@pytest.mark.parametrize("state", ["40001", "40P01"])
async def test_a_transaction_that_met_another_is_run_again(ground: Ground, state: str) -> None:
    store = await ground.store()
    runs = 0

    async def unlucky(work: Work) -> int:
        nonlocal runs
        runs += 1
        if runs < 3:
            await work.script(f"do $$ begin raise exception using errcode = '{state}'; end $$")
        return runs

    assert await store._database.write(unlucky) == 3


async def test_a_transaction_that_meets_others_for_ever_is_given_up(ground: Ground) -> None:
    store = await ground.store()

    async def unlucky(work: Work) -> None:
        await work.script("do $$ begin raise exception using errcode = '40001'; end $$")

    with pytest.raises(StoreUnavailable, match="40001"):
        await store._database.write(unlucky)


@pytest.mark.parametrize(
    "state",
    [
        *("08006", "25006", "25P03", "25P04", "28000", "28P01", "3D000", "53000", "53100", "53200"),
        *("53300", "53400", "55P03", "57014", "57P01", "57P02", "57P03", "57P04", "57P05", "58030"),
    ],
)
async def test_what_waiting_may_cure_is_an_outage(ground: Ground, state: str) -> None:
    store = await ground.store()

    async def unlucky(work: Work) -> None:
        await work.script(f"do $$ begin raise exception using errcode = '{state}'; end $$")

    with pytest.raises(StoreUnavailable, match=state):
        await store._database.write(unlucky)


@pytest.mark.parametrize("state", ["22012", "23505", "42501", "42601", "P0001", "XX000"])
async def test_what_waiting_cannot_cure_is_none(ground: Ground, state: str) -> None:
    store = await ground.store()

    async def wrong(work: Work) -> None:
        await work.script(f"do $$ begin raise exception using errcode = '{state}'; end $$")

    with pytest.raises(StoreError, match=state) as caught:
        await store._database.write(wrong)
    assert not isinstance(caught.value, StoreUnavailable)


async def test_tables_that_were_dropped_are_told_and_made_again(ground: Ground) -> None:
    store = await ground.store()
    await lease(store)
    async with ground.connected() as person:
        quoted = ground.schema.replace('"', '""')
        await person.execute(f'drop schema "{quoted}" cascade')

    with pytest.raises(SchemaMismatch, match="postroom init"):
        await lease(store)
    await store.migrate()

    assert len(await lease(store)) == 64


async def test_another_fault_of_the_tables_is_no_outage(ground: Ground) -> None:
    store = await ground.store()
    await ground.sql("alter table postroom_relay rename column lease to rent")

    with pytest.raises(StoreError, match="42703") as caught:
        await lease(store)

    assert not isinstance(caught.value, StoreUnavailable)


async def test_newer_tables_are_left_alone(ground: Ground) -> None:
    store = await ground.store()
    await ground.sql("insert into postroom_schema values (99, 'later', 0)")

    with pytest.raises(SchemaMismatch, match="upgrade Postroom"):
        await lease(store)


async def test_a_store_that_is_not_open_says_so(ground: Ground) -> None:
    store = PostgresqlStore(ground.url)

    with pytest.raises(StoreError, match=r"store\.open"):
        await store.stats()
    with pytest.raises(StoreError, match=r"store\.open"):
        await store.wait(SECOND)


def test_no_error_repeats_a_password() -> None:
    store = PostgresqlStore("postgresql://ann:s3cr3t@127.0.0.1:1/shop")

    with pytest.raises(StoreUnavailable) as caught:
        asyncio.run(store.open())

    assert "s3cr3t" not in str(caught.value)


async def test_a_cancelled_write_goes_on_to_its_end(ground: Ground) -> None:
    store = await ground.store()
    lanes = await lease(store)
    await ground.put(message("a"))
    entries = await ground.look(store, lanes)

    async with ground.connected() as person:
        transaction = person.transaction()
        await transaction.start()
        await person.execute("select from postroom_outbox for update")
        settling = asyncio.ensure_future(store.settle(lanes, sent(*entries), keep=True))
        await waiting(ground, person)
        settling.cancel()
        await transaction.rollback()
        await asyncio.gather(settling, return_exceptions=True)

    assert settling.cancelled()
    assert len(await store.find(Query(states=[State.SENT]), limit=9)) == 1


async def test_a_cancelled_read_leaves_the_store_working(ground: Ground) -> None:
    store = await ground.store()
    lanes = await lease(store)
    async with ground.connected() as person, person.transaction():
        await person.execute("lock table postroom_outbox in access exclusive mode")
        reading = asyncio.ensure_future(ground.look(store, lanes))
        await waiting(ground, person)
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)

    assert await asyncio.gather(*(ground.look(store, lanes) for _ in range(8))) == [[]] * 8


BROKEN = {
    "headers that are no JSON": "headers = '{broken'",
    "headers that are a list": "headers = '[1]'",
    "a header that is a number": "headers = '{\"a\": 1}'",
    "a moment beyond the calendar": "expires_at = 9000000000000000000",
}


@pytest.mark.parametrize("change", BROKEN.values(), ids=BROKEN.keys())
async def test_a_row_that_cannot_be_read_stops_no_other(ground: Ground, change: str) -> None:
    store = await ground.store()
    lanes = await lease(store)
    await ground.put(message("a"), message("b"), message("c"))
    await ground.sql(f"update postroom_outbox set {change} where id = 'b'")  # noqa: S608

    entries = await ground.look(store, lanes)
    found = await store.find(Query(), limit=9)

    assert ids(entries) == ["a", "b", "c"]
    assert [entry.unreadable is None for entry in entries] == [True, False, True]
    assert [entry.unreadable for entry in found] == [entry.unreadable for entry in entries]


async def test_errors_of_the_client_library_are_told_apart() -> None:
    """By type and code; the texts are for people."""
    unreachable: list[Any] = [OSError("no route"), asyncpg.ConnectionDoesNotExistError("gone")]

    assert all(isinstance(translate(one, "here"), StoreUnavailable) for one in unreachable)
    assert not isinstance(translate(asyncpg.DataError("bad"), "here"), StoreUnavailable)
