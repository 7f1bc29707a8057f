"""A business transaction with several clients, and its message if there is an outbox.

A customer is looked up, an order with two lines is inserted, and a product's stock is lowered:
four statements.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from typing import Any

import psycopg
import sqlalchemy as sa
from sqlalchemy.engine import URL, make_url
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from bench import stage
from bench.postgresql.ground import Ground
from postroom.outbox import Outbox

TABLES = (
    "create table customers (name text primary key, city text not null)",
    "create table orders (number bigint primary key, customer text, amount text, placed_at text)",
    "create table lines (number bigint, line int, product int, primary key (number, line))",
    "create table products (number int primary key, stock int not null) with (fillfactor = 50)",
    """insert into customers select 'customer-' || lpad(n::text, 4, '0'), 'Ghent'
    from generate_series(0, 999) as n""",
    "insert into products select n, 1000000000 from generate_series(0, 999) as n",
)
EMPTY = "truncate orders, lines, postroom_outbox"
_FIND = "select city from customers where name = {0}"
_ORDER = "insert into orders values ({0}, {1}, {2}, {3})"
_LINES = "insert into lines values ({0}, 1, {1}), ({0}, 2, {2})"
_STOCK = "update products set stock = stock - 1 where number = {0}"
_NUMBERED = ("$1", "$2", "$3", "$4")

Put = Callable[[Any, stage.OrderPlaced], Awaitable[object]]
"""What comes last in the transaction, on its connection."""
Place = Callable[[int, stage.OrderPlaced, Put | None], Awaitable[None]]
"""Commits an order on the connection of that number, with what is put into it."""
Shop = Callable[[Ground, int], AbstractAsyncContextManager[Place]]


def putting(outbox: Outbox) -> Put:
    """Put the order's message into the outbox."""
    return outbox.put


async def plain_row(connection: Any, event: stage.OrderPlaced) -> None:
    """Insert another row of the shop's own instead, through asyncpg."""
    await connection.execute("insert into lines values ($1, 3, $2)", event.number, 3)


class _Tables(DeclarativeBase):
    pass


class _Customer(_Tables):
    __tablename__ = "customers"
    name: Mapped[str] = mapped_column(primary_key=True)
    city: Mapped[str]


class _Order(_Tables):
    __tablename__ = "orders"
    number: Mapped[int] = mapped_column(sa.BigInteger, primary_key=True)
    customer: Mapped[str]
    amount: Mapped[str]
    placed_at: Mapped[str]


class _Line(_Tables):
    __tablename__ = "lines"
    number: Mapped[int] = mapped_column(sa.BigInteger, primary_key=True)
    line: Mapped[int] = mapped_column(primary_key=True)
    product: Mapped[int]


class _Product(_Tables):
    __tablename__ = "products"
    number: Mapped[int] = mapped_column(primary_key=True)
    stock: Mapped[int]


@asynccontextmanager
async def with_asyncpg(ground: Ground, size: int) -> AsyncIterator[Place]:
    """Use asyncpg."""
    find, order, lines, stock = _written(_NUMBERED)
    async with _asyncpg(ground, size) as connections:

        async def place(number: int, event: stage.OrderPlaced, put: Put | None) -> None:
            connection = connections[number]
            one, other = _products(event)
            async with connection.transaction():
                await connection.fetchval(find, event.customer)
                await connection.execute(order, *_columns(event))
                await connection.execute(lines, event.number, one, other)
                await connection.execute(stock, one)
                if put is not None:
                    await put(connection, event)

        yield place


@asynccontextmanager
async def leanest(ground: Ground, size: int) -> AsyncIterator[Place]:
    """Use asyncpg, and nothing but one INSERT."""
    _, order, _, _ = _written(_NUMBERED)
    async with _asyncpg(ground, size) as connections:

        async def place(number: int, event: stage.OrderPlaced, put: Put | None) -> None:
            async with connections[number].transaction():
                await connections[number].execute(order, *_columns(event))
                if put is not None:
                    await put(connections[number], event)

        yield place


@asynccontextmanager
async def with_psycopg(ground: Ground, size: int) -> AsyncIterator[Place]:
    """Use psycopg."""
    find, order, lines, stock = _written(("%s", "%s", "%s", "%s"))
    lines = "insert into lines values (%s, 1, %s), (%s, 2, %s)"
    async with AsyncExitStack() as stack:
        connections = [
            await stack.enter_async_context(
                await psycopg.AsyncConnection.connect(
                    ground.url, options=f"-c search_path={ground.schema}"
                )
            )
            for _ in range(size)
        ]

        async def place(number: int, event: stage.OrderPlaced, put: Put | None) -> None:
            connection = connections[number]
            one, other = _products(event)
            async with connection.transaction():
                found = await connection.execute(find, [event.customer])
                await found.fetchone()
                await connection.execute(order, _columns(event))
                await connection.execute(lines, [event.number, one, event.number, other])
                await connection.execute(stock, [one])
                if put is not None:
                    await put(connection, event)

        yield place


@asynccontextmanager
async def with_sqlalchemy(ground: Ground, size: int) -> AsyncIterator[Place]:
    """Use the ORM of SQLAlchemy on asyncpg."""
    engine = create_async_engine(
        _driven(ground.url),
        pool_size=size,
        connect_args={"server_settings": {"search_path": ground.schema}},
    )

    async def place(_number: int, event: stage.OrderPlaced, put: Put | None) -> None:
        one, other = _products(event)
        async with AsyncSession(engine) as session, session.begin():
            await session.get_one(_Customer, event.customer)
            number, customer, amount, placed_at = _columns(event)
            session.add(
                _Order(number=number, customer=customer, amount=amount, placed_at=placed_at)
            )
            for line, product in ((1, one), (2, other)):
                session.add(_Line(number=number, line=line, product=product))
            lowered = sa.update(_Product).values(stock=_Product.stock - 1)
            await session.execute(lowered.where(_Product.number == one))
            if put is not None:
                await put(session, event)

    try:
        yield place
    finally:
        await engine.dispose()


@asynccontextmanager
async def _asyncpg(ground: Ground, size: int) -> AsyncIterator[list[Any]]:
    connections = [await ground.connect() for _ in range(size)]
    try:
        yield connections
    finally:
        await asyncio.gather(*(connection.close() for connection in connections))


def _written(places: tuple[str, ...]) -> tuple[str, str, str, str]:
    """Return the statements with these placeholders."""
    return (
        _FIND.format(*places),
        _ORDER.format(*places),
        _LINES.format(*places),
        _STOCK.format(*places),
    )


def _driven(url: str) -> URL:
    return make_url(url).set(drivername="postgresql+asyncpg")


def _products(event: stage.OrderPlaced) -> tuple[int, int]:
    return event.number % 1000, event.number * 7 % 1000


def _columns(event: stage.OrderPlaced) -> tuple[int, str, str, str]:
    return event.number, event.customer, str(event.amount), event.placed_at.isoformat()
