"""One message, one effect, on PostgreSQL: through every client, and through every conflict."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import asyncpg
import psycopg_pool
import pytest
from psycopg2.pool import ThreadedConnectionPool
from sqlalchemy.ext.asyncio import async_sessionmaker
from sqlalchemy.orm import sessionmaker

from postroom import events
from postroom.connections import (
    asyncpg_transactions,
    psycopg2_transactions,
    psycopg_transactions,
    run,
    run_async,
)
from postroom.statement import Statement
from tests.consumer.conftest import Billing, OrderPlaced, _message, numbers
from tests.postgresql import Ground, ground
from tests.servers import Server, needed, postgresql_servers

SERVERS: list[Any] = list(needed(postgresql_servers(), "PostgreSQL"))
TABLES = (
    "create table effect (place serial, consumer text, customer text, number int)",
    "create table stock (article text primary key, pieces int not null)",
    "insert into stock values ('a', 100), ('b', 100)",
)
SIZE = 8


class PostgresqlBilling(Billing):
    """A consumer whose database is a schema in PostgreSQL."""

    def __init__(self, kind: str, place: Ground, begin: Callable[[], Any]) -> None:
        super().__init__(kind, Path())
        self.store = place.store
        self.place = place
        self.begin = begin

    def effects(self, name: str = "billing") -> list[tuple[str, int]]:
        """Return the committed effects in the order in which they were written."""
        sql = "select customer, number from effect where consumer = %s order by place"
        return self.query(sql, name)

    def query(self, sql: str, *values: object) -> list[Any]:
        """Ask the database on a connection of its own."""
        return self.place.query(sql, *values)

    def _transactions(self) -> tuple[Callable[[], Any], bool]:
        return self.begin, "async" in self.kind


async def _asyncpg(place: Ground, stack: AsyncExitStack) -> Callable[[], Any]:
    pool = await stack.enter_async_context(
        asyncpg.create_pool(
            place.url, server_settings={"search_path": place.path}, min_size=1, max_size=SIZE
        )
    )
    return asyncpg_transactions(pool)


async def _psycopg(place: Ground, stack: AsyncExitStack) -> Callable[[], Any]:
    pool = psycopg_pool.ConnectionPool(
        place.url, kwargs={"options": place.options}, min_size=1, max_size=SIZE, open=True
    )
    stack.callback(pool.close)
    return psycopg_transactions(pool)


async def _async_psycopg(place: Ground, stack: AsyncExitStack) -> Callable[[], Any]:
    pool = psycopg_pool.AsyncConnectionPool(
        place.url, kwargs={"options": place.options}, min_size=1, max_size=SIZE, open=False
    )
    await stack.enter_async_context(pool)
    return psycopg_transactions(pool)


async def _psycopg2(place: Ground, stack: AsyncExitStack) -> Callable[[], Any]:
    pool = ThreadedConnectionPool(1, SIZE, place.url, options=place.options)
    stack.callback(pool.closeall)
    return psycopg2_transactions(pool)


async def _core(place: Ground, stack: AsyncExitStack) -> Callable[[], Any]:
    engine = place.engine("psycopg", pool_size=SIZE)
    stack.callback(engine.dispose)
    return engine.begin


async def _session(place: Ground, stack: AsyncExitStack) -> Callable[[], Any]:
    engine = place.engine("psycopg2", pool_size=SIZE)
    stack.callback(engine.dispose)
    return sessionmaker(engine).begin


async def _async_core(place: Ground, stack: AsyncExitStack) -> Callable[[], Any]:
    engine = place.async_engine("asyncpg", pool_size=SIZE)
    stack.push_async_callback(engine.dispose)
    return engine.begin


async def _async_session(place: Ground, stack: AsyncExitStack) -> Callable[[], Any]:
    engine = place.async_engine("psycopg", pool_size=SIZE)
    stack.push_async_callback(engine.dispose)
    return async_sessionmaker(engine).begin


KINDS = {
    "async asyncpg": _asyncpg,
    "psycopg": _psycopg,
    "async psycopg": _async_psycopg,
    "psycopg2": _psycopg2,
    "connection psycopg": _core,
    "session psycopg2": _session,
    "async connection asyncpg": _async_core,
    "async session psycopg": _async_session,
}


async def _pool_itself(place: Ground, stack: AsyncExitStack) -> Callable[[], Any]:
    pool = psycopg_pool.ConnectionPool(
        place.url, kwargs={"options": place.options}, min_size=1, max_size=SIZE, open=True
    )
    stack.callback(pool.close)

    @contextmanager
    def begin() -> Iterator[Any]:
        with pool.connection() as connection:
            connection.execute("select 1")
            yield connection

    return begin


BEGUN_ANEW = {"psycopg2": _psycopg2, "the pool of psycopg": _pool_itself}
"""Where a rollback is followed by another transaction, without a word."""


def _parameters() -> list[Any]:
    """Return every kind on the first server; on the others one, for it is the client's part."""
    return [
        pytest.param((kind, server.values[0]), id=f"{kind}-{server.id}", marks=server.marks)
        for number, server in enumerate(SERVERS)
        for kind in (KINDS if number == 0 else ["async asyncpg"])
    ]


@pytest.fixture(params=_parameters())
async def billing(request: pytest.FixtureRequest) -> AsyncIterator[PostgresqlBilling]:
    async with _billing_on(*request.param) as billing:
        yield billing


@pytest.fixture(params=SERVERS)
async def simple(request: pytest.FixtureRequest) -> AsyncIterator[PostgresqlBilling]:
    """Return a consumer on asyncpg, for what does not depend on the client."""
    async with _billing_on("async asyncpg", request.param) as billing:
        yield billing


@asynccontextmanager
async def _billing_on(kind: str, server: Server) -> AsyncIterator[PostgresqlBilling]:
    with ground(server.url, *TABLES) as place:
        async with AsyncExitStack() as stack:
            begin = await {**KINDS, **BEGUN_ANEW}[kind](place, stack)
            billing = PostgresqlBilling(kind, place, begin)
            await billing.broker.open()
            yield billing
            await billing.broker.close()


async def test_effect_inbox_row_and_what_it_puts_are_committed_together(
    billing: PostgresqlBilling,
) -> None:
    (cause,) = await billing.publish(OrderPlaced("ann", 1))

    await billing.consume(billing.consumer(), until=billing.done(1))

    assert billing.effects() == [("ann", 1)]
    assert billing.query("select consumer, message_id from postroom_inbox") == [
        ("billing", cause.id)
    ]
    ((kind, headers),) = billing.query("select type, headers from postroom_outbox")
    assert kind == "shop.invoiced"
    assert f'"causation-id":"{cause.id}"' in headers.replace(" ", "")


async def test_a_failing_handler_leaves_nothing_and_runs_again(
    billing: PostgresqlBilling,
) -> None:
    def fail_twice(_order: OrderPlaced, context: Any) -> None:
        if context.attempt < 3:
            raise ValueError("not yet")

    billing.invoke = fail_twice
    await billing.publish(OrderPlaced("ann", 1))

    await billing.consume(billing.consumer(), until=billing.done(1))

    assert billing.effects() == [("ann", 1)]
    assert billing.count(events.HandlerFailed) == 2
    assert len(billing.query("select 1 from postroom_outbox")) == 1


async def test_copies_have_one_effect(billing: PostgresqlBilling) -> None:
    """Also when they are handled side by side: without a key nothing keeps them apart."""
    order = replace(_message(OrderPlaced("ann", 1)), key=None)
    await billing.publish(*[order] * 6)

    await billing.consume(billing.consumer(concurrency=4), until=billing.done(6))

    assert billing.effects() == [("ann", 1)]
    assert billing.count(events.Duplicate) == 5


def ran(billing: PostgresqlBilling, *statements: Statement) -> Callable[[Any], Any]:
    """Return what runs the statements on a context's connection, to be awaited if need be."""

    async def awaited(connection: Any) -> None:
        for statement in statements:
            await run_async(connection, statement)

    def plain(connection: Any) -> None:
        for statement in statements:
            run(connection, statement)

    return awaited if "async" in billing.kind else plain


async def test_a_swallowed_error_is_no_effect(billing: PostgresqlBilling) -> None:
    """PostgreSQL answers the commit with a rollback: an acknowledgement would lose the effect."""
    divide = ran(billing, Statement("select 1 / :zero", [{"zero": 0}]))

    async def swallow_async(context: Any) -> None:
        with suppress(Exception):
            await divide(context.connection)

    def swallow(_order: OrderPlaced, context: Any) -> Any:
        if context.attempt > 1:
            return None
        if "async" in billing.kind:
            return swallow_async(context)
        with suppress(Exception):
            divide(context.connection)
        return None

    billing.invoke = swallow
    await billing.publish(OrderPlaced("ann", 1))

    await billing.consume(billing.consumer(), until=billing.done(1))

    (failed,) = [one for one in billing.events if isinstance(one, events.HandlerFailed)]
    assert "use a savepoint" in failed.error
    assert billing.effects() == [("ann", 1)]


@pytest.mark.parametrize("kind", BEGUN_ANEW)
@pytest.mark.parametrize("server", SERVERS[:1])
async def test_a_handler_that_rolls_back_and_goes_on_has_failed(server: Server, kind: str) -> None:
    """Its effect would be committed without the inbox row, and once more with every copy."""
    async with _billing_on(kind, server) as billing:
        take = ran(billing, Statement("update stock set pieces = pieces - 1", [{}]))

        def invoke(_order: OrderPlaced, context: Any) -> None:
            if context.attempt == 1:
                context.connection.rollback()
            take(context.connection)

        billing.invoke = invoke
        await billing.publish(OrderPlaced("ann", 1))

        await billing.consume(billing.consumer(), until=billing.done(1))

        (failed,) = [one for one in billing.events if isinstance(one, events.HandlerFailed)]
        assert "leave that to the consumer" in failed.error
        assert billing.effects() == [("ann", 1)]
        assert billing.query("select distinct pieces from stock") == [(99,)]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("server", SERVERS[:1])
async def test_a_handler_that_rolls_back_in_sql_has_failed(server: Server, kind: str) -> None:
    """A mark that stays behind would make a copy of the message that was never handled."""
    async with _billing_on(kind, server) as billing:
        back = ran(billing, Statement("rollback", [{}]))

        def invoke(_order: OrderPlaced, context: Any) -> Any:
            return back(context.connection) if context.attempt == 1 else None

        billing.invoke = invoke
        await billing.publish(OrderPlaced("ann", 1))

        await billing.consume(billing.consumer(), until=billing.done(1))

        assert billing.effects() == [("ann", 1)]
        assert billing.count(events.HandlerFailed) == 1


async def test_a_deadlock_costs_no_attempt(billing: PostgresqlBilling) -> None:
    """Two handlers take two rows in opposite orders, and meet in between."""
    barrier, both = threading.Barrier(2), asyncio.Event()
    arrived: list[str] = []
    holding: set[str] = set()

    def take(article: str) -> Statement:
        return Statement(
            "update stock set pieces = pieces - 1 where article = :article", [{"article": article}]
        )

    quick = Statement("set local deadlock_timeout = '10ms'", [{}])
    articles = {"ann": "ab", "bob": "ba"}

    def invoke(order: OrderPlaced, context: Any) -> Any:
        first, second = (ran(billing, quick, take(one)) for one in articles[order.customer])
        meets = order.customer not in arrived
        arrived.append(order.customer)

        async def awaited() -> None:
            await first(context.connection)
            if meets:
                holding.add(order.customer)
                if len(holding) == 2:
                    both.set()
                await both.wait()
            await second(context.connection)

        if "async" in billing.kind:
            return awaited()
        first(context.connection)
        if meets:
            barrier.wait(10)
        return second(context.connection)

    billing.invoke = invoke
    await billing.publish(OrderPlaced("ann", 1), OrderPlaced("bob", 1))

    await billing.consume(billing.consumer(), until=billing.done(2))

    assert sorted(billing.effects()) == [("ann", 1), ("bob", 1)]
    assert billing.query("select pieces from stock") == [(98,), (98,)]
    assert len(arrived) == 3, "one of the two ran again"
    assert billing.count(events.HandlerFailed) == 0
    assert billing.count(events.ConsumerPaused) == 0


async def test_backends_that_are_terminated_cost_no_attempt(billing: PostgresqlBilling) -> None:
    """A restart in the middle: every connection is lost, none of the messages is charged."""
    attempts: list[int] = []
    ended = False

    def end_all(order: OrderPlaced, context: Any) -> None:
        nonlocal ended
        attempts.append(context.attempt)
        if order.number == 7 and not ended:
            ended = True
            billing.query(
                "select pg_terminate_backend(pid, 5000) from pg_locks "
                "where relation = 'effect'::regclass and pid <> pg_backend_pid()"
            )

    billing.invoke = end_all
    await billing.publish(*(OrderPlaced(f"c{number}", number) for number in range(30)))

    await billing.consume(billing.consumer(), until=lambda: len(billing.effects()) == 30)

    assert ended
    assert set(attempts) == {1}
    assert billing.count(events.HandlerFailed) == 0
    assert billing.count(events.DeadLettered) == 0


async def test_copies_under_repeatable_read(simple: PostgresqlBilling) -> None:
    """The inbox row of a parallel copy is a conflict there, and then a duplicate."""
    order = replace(_message(OrderPlaced("ann", 1)), key=None)
    begin = simple.begin

    @asynccontextmanager
    async def repeatable() -> AsyncIterator[Any]:
        async with begin() as connection:
            await connection.execute("set transaction isolation level repeatable read")
            await connection.fetch("select 1 from effect")
            yield connection

    simple.begin = repeatable
    await simple.publish(*[order] * 6)

    await simple.consume(simple.consumer(concurrency=6), until=simple.done(6))

    assert simple.effects() == [("ann", 1)]
    assert simple.count(events.Duplicate) == 5
    assert simple.count(events.HandlerFailed) == 0


async def test_the_messages_of_a_key_keep_their_order(billing: PostgresqlBilling) -> None:
    await billing.publish(*(OrderPlaced(f"c{n % 3}", n) for n in range(30)))

    await billing.consume(billing.consumer(), until=billing.done(30))

    for customer in range(3):
        own = numbers(billing.effects(), f"c{customer}")
        assert own == [n for n in range(30) if n % 3 == customer]
