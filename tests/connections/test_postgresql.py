"""What is particular about PostgreSQL's clients: refusals, failed transactions, round trips."""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any
from urllib.parse import urlsplit

import asyncpg
import psycopg
import psycopg2
import psycopg_pool
import pytest
from psycopg.rows import dict_row
from psycopg2.extras import RealDictCursor
from psycopg2.pool import ThreadedConnectionPool

from postroom import Inbox, Outbox, SyncOutbox, message
from postroom.connections import (
    asyncpg_transactions,
    psycopg2_transactions,
    psycopg_transactions,
    run,
)
from postroom.errors import NoTransaction, PutRefused, StoreUnavailable
from postroom.statement import Statement
from tests.connections.conftest import SERVERS, TABLE
from tests.connections.shops import POSTGRESQL_KINDS, Kind
from tests.connections.turns import counting
from tests.postgresql import Ground, ground

WRITE = "insert into orders (id) values ('a')"
DRIVERS = ["psycopg", "psycopg2"]
ASYNC_DRIVERS = ["asyncpg", "psycopg"]


@message("shop.order-placed", key="order_id")
@dataclass
class OrderPlaced:
    """What the shop announces."""

    order_id: str


EVENT = OrderPlaced("a")
kinds = pytest.mark.parametrize(
    "kind", POSTGRESQL_KINDS, ids=[one.name for one in POSTGRESQL_KINDS]
)


@pytest.fixture(params=SERVERS[:1])
def place(request: pytest.FixtureRequest) -> Any:
    """Return a schema of the test's own."""
    with ground(request.param.url, TABLE) as made:
        yield made


def messages(place: Ground) -> int:
    """Count the committed messages."""
    return len(place.query("select 1 from postroom_outbox"))


@kinds
async def test_many_messages_are_one_round_trip(place: Ground, kind: Kind) -> None:
    parts = urlsplit(place.url)
    with counting(parts.hostname or "", parts.port or 5432) as turns:
        behind = replace(place, url=place.url.replace(f":{parts.port}/", f":{turns.port}/"))
        async with kind.connect(behind, place.store) as shop:
            await shop.begin()
            await shop.put(EVENT, EVENT)  # a client may prepare the statement
            before = turns.count
            await shop.put(*[EVENT] * 500)
            after = turns.count
            await shop.commit()

    assert after - before == 1
    assert messages(place) == 502


@kinds
async def test_a_failed_transaction_is_refused_and_then_serves_again(
    place: Ground, kind: Kind
) -> None:
    async with kind.connect(place, place.store) as shop:
        await shop.begin()
        await shop.order("a")
        with suppress(Exception):
            await shop.order("a")
        with pytest.raises(NoTransaction, match="roll it back"):
            await shop.put(EVENT)
        with pytest.raises(NoTransaction, match="roll it back"):
            await shop.first("shipping", "0")
        await shop.rollback()
        await shop.begin()
        await shop.order("b")
        with suppress(Exception):
            async with shop.savepoint():
                await shop.order("b")
        await shop.put(EVENT)
        await shop.commit()

    assert place.query("select id from orders") == [("b",)]
    assert messages(place) == 1


@kinds
async def test_missing_tables_are_said(place: Ground, kind: Kind) -> None:
    place.query("drop table postroom_outbox")
    async with kind.connect(place, place.store) as shop:
        await shop.begin()
        with pytest.raises(Exception, match="postroom_outbox") as caught:
            await shop.put(EVENT)
        await shop.rollback()

    assert any("postroom init" in note for note in caught.value.__notes__)


def test_psycopg_in_autocommit(place: Ground) -> None:
    """Refused alone, taken in a block with a transaction, also in a pipeline."""
    outbox = SyncOutbox(place.store)
    with psycopg.connect(place.url, autocommit=True) as connection:
        with pytest.raises(NoTransaction, match=r"connection\.transaction\(\)"):
            outbox.put(connection, EVENT)
        with connection.transaction():
            outbox.put(connection, EVENT)
        with connection.transaction(), connection.pipeline():
            outbox.put(connection, EVENT, EVENT)
            first = Inbox(place.store, "billing").first(connection, "m")
            again = Inbox(place.store, "billing").first(connection, "m")
        with connection.pipeline():
            connection.execute("select 1")
            with pytest.raises(NoTransaction):
                outbox.put(connection, EVENT)

    assert messages(place) == 3
    assert (first, again) == (True, False)


async def test_psycopg_async_in_autocommit(place: Ground) -> None:
    outbox = Outbox(place.store)
    connecting = psycopg.AsyncConnection.connect(place.url, autocommit=True)
    async with await connecting as connection:
        with pytest.raises(NoTransaction, match=r"async with connection\.transaction\(\)"):
            await outbox.put(connection, EVENT)
        async with connection.transaction(), connection.pipeline():
            await outbox.put(connection, EVENT, EVENT)
            first = await Inbox(place.store, "billing").first_async(connection, "m")

    assert messages(place) == 2
    assert first


@pytest.mark.parametrize("factory", [psycopg.RawCursor, psycopg.ClientCursor])
def test_psycopg_with_cursors_and_rows_of_the_callers_choice(
    place: Ground, factory: type[Any]
) -> None:
    with psycopg.connect(place.url, cursor_factory=factory, row_factory=dict_row) as connection:
        connection.execute("select 1")
        SyncOutbox(place.store).put(connection, EVENT, EVENT)
        first = Inbox(place.store, "billing").first(connection, "m")

    assert messages(place) == 2
    assert first


def test_psycopg_with_many_rows(place: Ground) -> None:
    with psycopg.connect(place.url, options=place.options) as connection:
        connection.execute("select 1")
        rows = [{"id": "a"}, {"id": "b"}]
        affected = run(connection, Statement("insert into orders values (:id)", rows))

    assert affected == 2


async def test_psycopg_async_with_many_rows(place: Ground) -> None:
    kind = next(one for one in POSTGRESQL_KINDS if one.name == "psycopg-async")
    async with kind.connect(place, place.store) as shop:
        await shop.begin()
        rows = [{"id": "a"}, {"id": "b"}]
        affected = await shop.run(Statement("insert into orders values (:id)", rows))
        await shop.rollback()

    assert affected == 2


def test_psycopg2_in_autocommit(place: Ground) -> None:
    connection = psycopg2.connect(place.url, cursor_factory=RealDictCursor)
    connection.autocommit = True
    with pytest.raises(NoTransaction, match="autocommit = False"):
        SyncOutbox(place.store).put(connection, EVENT)
    with connection.cursor() as cursor:
        cursor.execute("begin")
        SyncOutbox(place.store).put(connection, EVENT)
        cursor.execute("commit")
    connection.close()

    assert messages(place) == 1


@pytest.mark.parametrize("of_the_engine", [True, False], ids=["engine", "connection"])
@pytest.mark.parametrize("driver", DRIVERS)
def test_autocommit_is_refused(place: Ground, driver: str, *, of_the_engine: bool) -> None:
    level: dict[str, Any] = {"isolation_level": "AUTOCOMMIT"}
    engine = place.engine(driver, **(level if of_the_engine else {}))
    with engine.connect() as plain:
        connection = plain if of_the_engine else plain.execution_options(**level)
        with connection.begin(), pytest.raises(NoTransaction, match="AUTOCOMMIT"):
            SyncOutbox(place.store).put(connection, EVENT)
    engine.dispose()


@pytest.mark.parametrize("of_the_engine", [True, False], ids=["engine", "connection"])
@pytest.mark.parametrize("driver", ASYNC_DRIVERS)
async def test_autocommit_is_refused_async(
    place: Ground, driver: str, *, of_the_engine: bool
) -> None:
    level: dict[str, Any] = {"isolation_level": "AUTOCOMMIT"}
    engine = place.async_engine(driver, **(level if of_the_engine else {}))
    async with engine.connect() as connection:
        if not of_the_engine:
            await connection.execution_options(**level)
        async with connection.begin():
            with pytest.raises(NoTransaction, match="AUTOCOMMIT"):
                await Outbox(place.store).put(connection, EVENT)
    await engine.dispose()


async def test_a_connection_given_back_to_its_pool(place: Ground) -> None:
    async with asyncpg.create_pool(place.url, min_size=1, max_size=1) as pool:
        async with pool.acquire() as connection, connection.transaction():
            await Outbox(place.store).put(connection, EVENT)

        with pytest.raises(NoTransaction, match="given back"):
            await Outbox(place.store).put(connection, EVENT)


async def test_pools_are_no_connections(place: Ground) -> None:
    pool: Any
    async with asyncpg.create_pool(place.url, min_size=1, max_size=1) as pool:
        with pytest.raises(PutRefused, match="pass a connection"):
            await Outbox(place.store).put(pool, EVENT)
    with (
        psycopg_pool.ConnectionPool(place.url, min_size=1) as pool,
        pytest.raises(PutRefused, match="pass a connection"),
    ):
        SyncOutbox(place.store).put(pool, EVENT)


async def test_the_wrong_outbox_says_which_is_right(place: Ground) -> None:
    wrong: Any
    with psycopg.connect(place.url) as wrong, pytest.raises(PutRefused, match="use SyncOutbox"):
        await Outbox(place.store).put(wrong, EVENT)
    async with await psycopg.AsyncConnection.connect(place.url) as wrong:
        with pytest.raises(PutRefused, match="use Outbox"):
            SyncOutbox(place.store).put(wrong, EVENT)


# Ready-made transactions


class Changed(Exception):
    """The caller changed its mind."""


async def test_asyncpg_transactions(place: Ground) -> None:
    settings = {"search_path": place.path}
    async with asyncpg.create_pool(
        place.url, server_settings=settings, min_size=1, max_size=1
    ) as pool:
        begin = asyncpg_transactions(pool, isolation="serializable")
        async with begin() as connection:
            await connection.execute(WRITE)
            level = await connection.fetchval("show transaction_isolation")
            inside = place.query("select id from orders")
        with suppress(Changed):
            async with begin() as connection:
                await connection.execute("insert into orders (id) values ('b')")
                raise Changed
        async with begin() as connection, connection.transaction():
            await Outbox(place.store).put(connection, EVENT)

    assert (level, inside) == ("serializable", [])
    assert place.query("select id from orders") == [("a",)]
    assert messages(place) == 1


async def test_asyncpg_transactions_do_not_wait_for_ever(place: Ground) -> None:
    async with asyncpg.create_pool(place.url, min_size=1, max_size=1) as pool:
        begin = asyncpg_transactions(pool, patience=timedelta(milliseconds=10))
        async with begin():
            with pytest.raises(StoreUnavailable, match="no connection"):
                async with begin():
                    pytest.fail("two have the one connection")


def _psycopg_pool(place: Ground) -> Any:
    return psycopg_pool.ConnectionPool(
        place.url, kwargs={"options": place.options}, min_size=1, max_size=1, open=True
    )


def _psycopg2_pool(place: Ground) -> Any:
    return ThreadedConnectionPool(1, 1, place.url, options=place.options)


@pytest.mark.parametrize(
    ("make", "pool_of"),
    [(psycopg_transactions, _psycopg_pool), (psycopg2_transactions, _psycopg2_pool)],
    ids=["psycopg", "psycopg2"],
)
def test_sync_transactions(
    place: Ground, make: Callable[[Any], Any], pool_of: Callable[[Ground], Any]
) -> None:
    pool = pool_of(place)
    begin = make(pool)

    def swallow() -> None:
        with begin() as connection:
            SyncOutbox(place.store).put(connection, EVENT)
            with suppress(psycopg.IntegrityError, psycopg2.IntegrityError):
                connection.cursor().execute(WRITE)

    with begin() as connection:
        SyncOutbox(place.store).put(connection, EVENT)
        connection.cursor().execute(WRITE)
        inside = messages(place)
    with suppress(Changed), begin() as connection:
        SyncOutbox(place.store).put(connection, EVENT)
        raise Changed
    with pytest.raises(NoTransaction, match="roll it back"):
        swallow()
    with begin() as connection:
        SyncOutbox(place.store).put(connection, EVENT)
    pool.close() if make is psycopg_transactions else pool.closeall()

    assert inside == 0
    assert messages(place) == 2


async def test_async_psycopg_transactions(place: Ground) -> None:
    async with psycopg_pool.AsyncConnectionPool(
        place.url, kwargs={"options": place.options}, min_size=1, max_size=1
    ) as pool:
        begin = psycopg_transactions(pool)

        async def swallow() -> None:
            async with begin() as connection:
                with suppress(psycopg.IntegrityError):
                    await connection.execute(WRITE)

        async with begin() as connection:
            await Outbox(place.store).put(connection, EVENT)
            await connection.execute(WRITE)
        with suppress(Changed):
            async with begin() as connection:
                await Outbox(place.store).put(connection, EVENT)
                raise Changed
        with pytest.raises(NoTransaction, match="roll it back"):
            await swallow()

    assert messages(place) == 1
