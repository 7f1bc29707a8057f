"""A pool that a module makes when it is imported, before there is an event loop."""

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import asyncpg
import psycopg_pool
import pytest
import sqlalchemy as sa

from postroom.connections import asyncpg_transactions, outage, psycopg_transactions
from postroom.errors import StoreUnavailable
from postroom.lab.servers.proxy import Proxy
from tests.connections.conftest import SERVERS


@pytest.fixture(params=SERVERS[:1])
def url(request: pytest.FixtureRequest) -> str:
    """Return the address of one server."""
    return str(request.param.url)


@pytest.fixture
def foreign() -> Iterator[asyncio.AbstractEventLoop]:
    """Return a loop that never runs, as there is one when a module is imported."""
    loop = asyncio.new_event_loop()
    yield loop
    loop.close()


def asyncpg_pool(url: str, loop: asyncio.AbstractEventLoop) -> asyncpg.Pool:
    return asyncpg.create_pool(url, loop=loop, min_size=2, max_size=3)


async def backends(begin: Callable[[], Any], times: int) -> set[int]:
    """Have as many transactions at once, and return the processes that served them."""
    together = asyncio.Barrier(times)

    async def one() -> int:
        async with begin() as connection:
            await together.wait()
            return int(await connection.fetchval("select pg_backend_pid()"))

    return set(await asyncio.gather(*[one() for _ in range(times)]))


async def test_asyncpg_is_opened_once_by_the_first_transactions(
    url: str, foreign: asyncio.AbstractEventLoop
) -> None:
    pool = asyncpg_pool(url, foreign)
    begin = asyncpg_transactions(pool)

    async with asyncio.timeout(10):
        first = await backends(begin, 3)
        assert await backends(begin, 3) == first
    assert len(first) == 3
    await pool.close()


def test_asyncpg_by_a_function_has_a_pool_for_each_loop(url: str) -> None:
    made: list[asyncpg.Pool] = []

    def pool() -> asyncpg.Pool:
        made.append(asyncpg.create_pool(url, min_size=1, max_size=2))
        return made[-1]

    begin = asyncpg_transactions(pool)

    async def use() -> None:
        assert len(await backends(begin, 2)) == 2
        await backends(begin, 1)
        await made[-1].close()

    asyncio.run(use())
    asyncio.run(use())
    assert len(made) == 2


@pytest.mark.parametrize("by_function", [True, False])
async def test_asyncpg_that_was_first_used_in_an_outage_works_after_it(
    url: str, foreign: asyncio.AbstractEventLoop, *, by_function: bool
) -> None:
    server = sa.make_url(url)
    with Proxy(server.host or "", server.port or 5432) as proxy:
        behind = server.set(port=proxy.port).render_as_string(hide_password=False)
        pool = asyncpg_pool(behind, foreign)
        begin = asyncpg_transactions((lambda: pool) if by_function else pool)
        proxy.refuse()
        with pytest.raises(StoreUnavailable) as caught:
            await backends(begin, 1)
        proxy.restore()
        async with asyncio.timeout(10):
            assert len(await backends(begin, 2)) == 2
        await pool.close()

    assert outage(caught.value) is not None


async def test_asyncpg_that_was_closed_says_so(url: str) -> None:
    pool = await asyncpg.create_pool(url, min_size=0, max_size=1)
    begin = asyncpg_transactions(pool)
    await pool.close()

    with pytest.raises(StoreUnavailable, match="the pool gives no connection: pool is closed"):
        await backends(begin, 1)


async def test_psycopg_async_is_opened_by_the_first_transactions(url: str) -> None:
    pool = psycopg_pool.AsyncConnectionPool(url, min_size=1, max_size=3, open=False, timeout=10)
    begin = psycopg_transactions(pool)

    async def one() -> None:
        async with begin() as connection:
            await connection.execute("select 1")

    await asyncio.gather(*[one() for _ in range(4)])
    await pool.close()
    with pytest.raises(psycopg_pool.PoolClosed, match="closed") as caught:
        await one()

    assert outage(caught.value) == "the pool of connections is closed"


def test_psycopg_is_opened_by_the_first_transaction(url: str) -> None:
    pool = psycopg_pool.ConnectionPool(url, min_size=1, max_size=1, open=False, timeout=10)
    begin = psycopg_transactions(pool)

    for _ in range(2):
        with begin() as connection:
            connection.execute("select 1")
    pool.close()
    with pytest.raises(psycopg_pool.PoolClosed, match="closed") as caught, begin():
        pytest.fail("lent by a closed pool")

    assert outage(caught.value) == "the pool of connections is closed"
