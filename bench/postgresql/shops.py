"""A business transaction with several clients: an order, and its message if there is an outbox."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager

import psycopg
from sqlalchemy.engine import URL, make_url
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from bench import stage
from bench.postgresql.ground import Ground
from postroom.outbox import Outbox

TABLE = """
create table orders (number bigint primary key, customer text, amount text, placed_at text)
"""
_INSERT = "insert into orders values ({})"

Place = Callable[[int, stage.OrderPlaced, Outbox | None], Awaitable[None]]
"""Commits an order on the connection of that number; with an outbox, its message too."""
Shop = Callable[[Ground, int], AbstractAsyncContextManager[Place]]


class _Tables(DeclarativeBase):
    pass


class _Order(_Tables):
    __tablename__ = "orders"
    number: Mapped[int] = mapped_column(primary_key=True)
    customer: Mapped[str]
    amount: Mapped[str]
    placed_at: Mapped[str]


@asynccontextmanager
async def with_asyncpg(ground: Ground, size: int) -> AsyncIterator[Place]:
    """Use asyncpg."""
    insert = _INSERT.format("$1, $2, $3, $4")
    connections = [await ground.connect() for _ in range(size)]

    async def place(number: int, event: stage.OrderPlaced, outbox: Outbox | None) -> None:
        connection = connections[number]
        async with connection.transaction():
            await connection.execute(insert, *_columns(event))
            if outbox is not None:
                await outbox.put(connection, event)

    try:
        yield place
    finally:
        await asyncio.gather(*(connection.close() for connection in connections))


@asynccontextmanager
async def with_psycopg(ground: Ground, size: int) -> AsyncIterator[Place]:
    """Use psycopg."""
    insert = _INSERT.format("%s, %s, %s, %s")
    async with AsyncExitStack() as stack:
        connections = [
            await stack.enter_async_context(
                await psycopg.AsyncConnection.connect(
                    ground.url, options=f"-c search_path={ground.schema}"
                )
            )
            for _ in range(size)
        ]

        async def place(number: int, event: stage.OrderPlaced, outbox: Outbox | None) -> None:
            connection = connections[number]
            async with connection.transaction():
                await connection.execute(insert, _columns(event))
                if outbox is not None:
                    await outbox.put(connection, event)

        yield place


@asynccontextmanager
async def with_sqlalchemy(ground: Ground, size: int) -> AsyncIterator[Place]:
    """Use the ORM of SQLAlchemy on asyncpg."""
    engine = create_async_engine(
        _driven(ground.url),
        pool_size=size,
        connect_args={"server_settings": {"search_path": ground.schema}},
    )

    async def place(_number: int, event: stage.OrderPlaced, outbox: Outbox | None) -> None:
        async with AsyncSession(engine) as session, session.begin():
            number, customer, amount, placed_at = _columns(event)
            session.add(
                _Order(number=number, customer=customer, amount=amount, placed_at=placed_at)
            )
            if outbox is not None:
                await outbox.put(session, event)

    try:
        yield place
    finally:
        await engine.dispose()


def _driven(url: str) -> URL:
    return make_url(url).set(drivername="postgresql+asyncpg")


def _columns(event: stage.OrderPlaced) -> tuple[int, str, str, str]:
    return event.number, event.customer, str(event.amount), event.placed_at.isoformat()
