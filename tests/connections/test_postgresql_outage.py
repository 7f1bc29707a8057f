"""An outage of PostgreSQL is told from a fault of the handler, by every client's own errors."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, ExitStack, suppress
from datetime import timedelta
from typing import Any
from uuid import uuid4

import asyncpg
import psycopg
import psycopg2
import psycopg_pool
import pytest
import sqlalchemy as sa
from psycopg2.pool import ThreadedConnectionPool
from sqlalchemy.ext.asyncio import create_async_engine

from postroom.connections import (
    asyncpg_transactions,
    conflict,
    outage,
    psycopg_transactions,
    require_transaction_async,
)
from postroom.errors import NoTransaction, StoreUnavailable
from postroom.lab.servers.postgresql import free_port
from postroom.lab.servers.proxy import Proxy
from tests.connections.conftest import SERVERS, TABLE
from tests.connections.shops import POSTGRESQL_KINDS, Kind
from tests.postgresql import Ground, ground

OUTAGES = [
    *("08000", "08006", "25006", "28000", "28P01", "3D000", "40001", "40P01", "53100", "53300"),
    *("53000", "55P03", "57P01", "57P02", "57P03", "57P04", "57P05", "58000", "58030", "58P01"),
]
FAULTS = ["22012", "23505", "25P03", "42601", "42501", "57014", "53200", "53400", "P0001", "XX000"]
CONFLICTS = {"40001", "40P01", "55P03"}
kinds = pytest.mark.parametrize(
    "kind", POSTGRESQL_KINDS, ids=[one.name for one in POSTGRESQL_KINDS]
)


@pytest.fixture(params=SERVERS)
def place(request: pytest.FixtureRequest) -> Iterator[Ground]:
    """Return a schema of the test's own."""
    with ground(request.param.url, TABLE) as made:
        yield made


@pytest.fixture(params=SERVERS[:1])
def one_place(request: pytest.FixtureRequest) -> Iterator[Ground]:
    """Return a schema of the test's own, on one server."""
    with ground(request.param.url, TABLE) as made:
        yield made


async def error_of(work: Awaitable[Any]) -> BaseException:
    """Return the error that the work ends with."""
    with pytest.raises(Exception) as caught:  # noqa: PT011 - every client has its own
        await work
    return caught.value


@kinds
async def test_codes(one_place: Ground, kind: Kind) -> None:
    """Each code as the server sends it, judged alike through every client."""
    one_place.query("""
        create function fail() returns trigger language plpgsql as
            $$ begin raise exception using errcode = new.id; end $$;
        create trigger fail before insert on orders for each row execute function fail();
    """)
    found: dict[str, tuple[bool, bool]] = {}
    async with kind.connect(one_place, one_place.store) as shop:
        for code in (*OUTAGES, *FAULTS):
            await shop.begin()
            error = await error_of(shop.order(code))
            found[code] = outage(error) is not None, conflict(error)
            await shop.rollback()

    expected = {code: (code in OUTAGES, code in CONFLICTS) for code in (*OUTAGES, *FAULTS)}
    assert found == expected


@kinds
async def test_a_backend_that_is_terminated(one_place: Ground, kind: Kind) -> None:
    async with kind.connect(one_place, one_place.store) as shop:
        await shop.begin()
        await shop.order("a")
        one_place.query(
            "select pg_terminate_backend(pid, 5000) from pg_locks where relation = %s::regclass",
            "orders",
        )
        error = await error_of(shop.order("b"))
        with suppress(Exception):
            await shop.rollback()

    assert outage(error) is not None
    assert not conflict(error)


async def test_asyncpg_that_noticed_before_the_next_statement(one_place: Ground) -> None:
    """It then says no more than that the connection is closed, which is nobody's fault either."""
    async with asyncpg.create_pool(one_place.url, min_size=1, max_size=1) as pool:
        begin = asyncpg_transactions(pool)

        async def work() -> None:
            async with begin() as connection:
                pid = connection.get_server_pid()
                one_place.query("select pg_terminate_backend(%s, 5000)", pid)
                while not connection.is_closed():
                    await asyncio.sleep(0)
                await connection.execute("select 1")

        error = await error_of(work())

    assert isinstance(error, StoreUnavailable)
    assert outage(error) == "the connection to the database was lost"


FAREWELL = b"SFATAL\0VFATAL\0C57P01\0Mterminating connection\0\0"


@pytest.mark.parametrize("begun", [False, True])
async def test_asyncpg_that_has_read_the_farewell_and_not_the_end(
    one_place: Ground, *, begun: bool
) -> None:
    """Between the two it calls every statement an internal error of its own."""
    async with asyncpg.create_pool(one_place.url, min_size=1, max_size=1) as pool:

        def say_farewell(connection: Any) -> None:
            length = (len(FAREWELL) + 4).to_bytes(4, "big")
            connection._protocol.data_received(b"E" + length + FAREWELL)

        async def work() -> None:
            if not begun:
                async with pool.acquire() as connection:
                    say_farewell(connection)
            async with asyncpg_transactions(pool)() as connection:
                say_farewell(connection)
                await connection.execute("select 1")

        error = await error_of(work())
        async with asyncpg_transactions(pool)() as connection:
            again = await connection.fetchval("select 1")

    assert outage(error) == "the connection to the database was lost"
    assert again == 1


@pytest.mark.parametrize("lost", ["while nobody used it", "in its transaction"])
def test_a_psycopg_pool_is_whole_again_at_once(one_place: Ground, lost: str) -> None:
    """A restart of the server breaks every connection; the pool would lend them one by one."""
    with psycopg_pool.ConnectionPool(one_place.url, min_size=4, max_size=4) as pool:
        pool.wait()
        begin = psycopg_transactions(pool)
        end_all = "select pg_terminate_backend(pid, 5000) from pg_stat_activity where pid = any(%s)"
        with ExitStack() as stack:
            lent = [stack.enter_context(pool.connection()) for _ in range(4)]
            pids = [one.info.backend_pid for one in lent]
        if lost == "while nobody used it":
            one_place.query(end_all, pids)

        def work() -> None:
            with begin() as connection:
                one_place.query(end_all, pids)
                connection.execute("select 1")

        with pytest.raises(psycopg.OperationalError) as caught:
            work()
        with begin() as connection:
            row = connection.execute("select 1").fetchone()

    assert outage(caught.value) is not None
    assert row == (1,)


async def test_an_asynchronous_psycopg_pool_is_whole_again_at_once(one_place: Ground) -> None:
    async with psycopg_pool.AsyncConnectionPool(
        one_place.url, min_size=4, max_size=4, open=False
    ) as pool:
        await pool.wait()
        begin = psycopg_transactions(pool)
        async with AsyncExitStack() as stack:
            lent = [await stack.enter_async_context(pool.connection()) for _ in range(4)]
            pids = [one.info.backend_pid for one in lent]

        async def work() -> None:
            async with begin() as connection:
                one_place.query("select pg_terminate_backend(pid, 5000) from unnest(%s) pid", pids)
                await connection.execute("select 1")

        error = await error_of(work())
        async with begin() as connection:
            cursor = await connection.execute("select 1")
            row = await cursor.fetchone()

    assert outage(error) is not None
    assert row == (1,)


async def test_asyncpg_that_was_terminated(one_place: Ground) -> None:
    """It can be asked nothing any more but whether it is closed."""
    connection = await asyncpg.connect(one_place.url)
    await connection.execute("begin")
    connection.terminate()

    with pytest.raises(NoTransaction, match="closed"):
        await require_transaction_async(connection)


async def test_asyncpg_whose_statement_is_never_answered(one_place: Ground) -> None:
    """A wire that swallows everything: the rollback has a deadline, and nothing is charged."""
    url = sa.make_url(one_place.url)
    with Proxy(url.host or "", url.port or 5432) as proxy:
        behind = url.set(port=proxy.port).render_as_string(hide_password=False)
        async with asyncpg.create_pool(behind, min_size=1, max_size=1, command_timeout=0.2) as pool:

            async def work() -> None:
                async with asyncpg_transactions(pool)() as connection:
                    await connection.execute("select 1")
                    proxy.silence()
                    await connection.execute("select 1")

            error = await error_of(work())
            pool.terminate()

    assert outage(error) == "the connection to the database was lost"


async def test_asyncpg_whose_statement_is_slow(one_place: Ground) -> None:
    """The database is there; the statement took too long, which is the handler's own."""
    async with asyncpg.create_pool(one_place.url, min_size=1, max_size=1) as pool:

        async def work() -> None:
            async with asyncpg_transactions(pool)() as connection:
                await connection.execute("select pg_sleep(5)", timeout=0.05)

        error = await error_of(work())

    assert isinstance(error, TimeoutError)
    assert outage(error) is None


def _connects(url: str) -> dict[str, Callable[[], Awaitable[Any]]]:
    """Return how each client connects to an address."""

    def at_once(connect: Callable[..., Any], *arguments: Any) -> Callable[[], Awaitable[Any]]:
        async def connected() -> None:
            connect(*arguments)

        return connected

    def awaited(driver: str) -> Callable[[], Awaitable[Any]]:
        async def connected() -> None:
            engine = create_async_engine(url.replace("postgresql:", f"postgresql+{driver}:"))
            async with engine.begin():
                pytest.fail("connected")

        return connected

    def engine(driver: str) -> sa.Engine:
        return sa.create_engine(url.replace("postgresql:", f"postgresql+{driver}:"))

    return {
        "asyncpg": lambda: asyncpg.connect(url, timeout=10),
        "psycopg": at_once(psycopg.connect, url),
        "psycopg-async": lambda: psycopg.AsyncConnection.connect(url),
        "psycopg2": at_once(psycopg2.connect, url),
        "engine-psycopg": at_once(engine("psycopg").connect),
        "engine-psycopg2": at_once(engine("psycopg2").connect),
        "engine-asyncpg": awaited("asyncpg"),
        "engine-psycopg-async": awaited("psycopg"),
    }


CLIENTS = list(_connects("postgresql://nobody@127.0.0.1/none"))
clients = pytest.mark.parametrize("client", CLIENTS)


@clients
async def test_nobody_listens(client: str) -> None:
    url = f"postgresql://postgres@127.0.0.1:{free_port()}/postgres"

    error = await error_of(_connects(url)[client]())

    assert outage(error) is not None


@clients
async def test_the_database_is_not_there(one_place: Ground, client: str) -> None:
    url = sa.make_url(one_place.url).set(database="nowhere").render_as_string(hide_password=False)

    error = await error_of(_connects(url)[client]())

    assert outage(error) is not None


@clients
async def test_the_server_takes_no_more_connections(one_place: Ground, client: str) -> None:
    role = f"postroom_test_{uuid4().hex[:12]}"
    one_place.query(f"create role {role} login connection limit 0")
    url = sa.make_url(one_place.url).set(username=role).render_as_string(hide_password=False)

    try:
        error = await error_of(_connects(url)[client]())
    finally:
        one_place.query(f"drop role {role}")

    assert outage(error) is not None


def test_pools_that_are_exhausted(one_place: Ground) -> None:
    with (
        psycopg_pool.ConnectionPool(one_place.url, min_size=1, max_size=1, timeout=0.05) as pool,
        pool.connection(),
        pytest.raises(psycopg_pool.PoolTimeout) as waited,
        pool.connection(),
    ):
        pytest.fail("two have the one connection")
    legacy = ThreadedConnectionPool(1, 1, one_place.url)
    legacy.getconn()
    with pytest.raises(psycopg2.Error) as refused:
        legacy.getconn()
    legacy.closeall()

    for error in (waited.value, refused.value):
        assert outage(error) == "no connection of the pool became free in time"


async def test_a_pool_that_is_closed_or_reaches_nobody(one_place: Ground) -> None:
    url = sa.make_url(one_place.url)
    with Proxy(url.host or "", url.port or 5432) as proxy:
        behind = url.set(port=proxy.port).render_as_string(hide_password=False)
        pool = await asyncpg.create_pool(behind, min_size=0, max_size=1)
        begin = asyncpg_transactions(pool, patience=timedelta(seconds=5))

        async def work() -> None:
            async with begin():
                pytest.fail("connected")

        proxy.refuse()
        unreachable = await error_of(work())
        pool.terminate()
        closed = await error_of(work())

    assert isinstance(unreachable, StoreUnavailable)
    assert isinstance(closed, StoreUnavailable)


def test_errors_of_the_system_that_are_not_of_the_database() -> None:
    """A handler may talk to somebody else, who may be away too."""
    for error in (ConnectionRefusedError("no"), TimeoutError("late"), OSError("broken")):
        with pytest.raises(OSError) as caught:  # noqa: PT011 - the three of them
            raise error
        assert outage(caught.value) is None


def test_a_closed_connection_on_top_of_what_closed_it(one_place: Ground) -> None:
    connection = psycopg2.connect(one_place.url)
    with connection.cursor() as cursor:
        cursor.execute("select pg_backend_pid()")
        (pid,) = cursor.fetchone() or (0,)
        one_place.query("select pg_terminate_backend(%s, 5000)", pid)
        with pytest.raises(psycopg2.InterfaceError) as caught:
            _use_and_tidy_up(connection, cursor)

    assert outage(caught.value) is not None
    with pytest.raises(psycopg2.InterfaceError) as misuse:
        connection.cursor()
    assert outage(misuse.value) is None


def _use_and_tidy_up(connection: Any, cursor: Any) -> None:
    try:
        cursor.execute("select 1")
    finally:
        connection.rollback()


@pytest.mark.parametrize("driver", ["psycopg", "psycopg2"])
def test_sqlalchemy_that_goes_on_after_a_lost_connection(one_place: Ground, driver: str) -> None:
    """It says that the transaction must be rolled back, and no more of the reason."""
    engine = one_place.engine(driver)
    with engine.connect() as connection:
        transaction = connection.begin()
        pid = connection.exec_driver_sql("select pg_backend_pid()").scalar()
        one_place.query("select pg_terminate_backend(%s, 5000)", pid)
        with suppress(sa.exc.DBAPIError):
            connection.exec_driver_sql("select 1")
        with pytest.raises(sa.exc.PendingRollbackError) as caught:
            connection.exec_driver_sql("select 1")
        transaction.rollback()
    engine.dispose()

    assert outage(caught.value) == "the connection to the database was lost"
