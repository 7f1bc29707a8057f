"""The public API as its users call it. Never run: mypy and pyright read it, both strictly."""

import asyncio
import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TypedDict, assert_type
from uuid import UUID

import aiosqlite
import asyncpg
import psycopg
import psycopg2
from psycopg2.pool import ThreadedConnectionPool
from psycopg_pool import AsyncConnectionPool, ConnectionPool
from sqlalchemy import Connection, create_engine
from sqlalchemy.ext.asyncio import (
    AsyncConnection,
    AsyncSession,
    async_sessionmaker,
    create_async_engine,
)
from sqlalchemy.orm import Session, sessionmaker

from postroom import (
    AsyncContext,
    Backoff,
    Consumer,
    Context,
    Desk,
    Entry,
    Inbox,
    Limits,
    Message,
    Outbox,
    Postroom,
    Query,
    Relay,
    RelayOptions,
    RetryPolicy,
    Route,
    Routes,
    Settings,
    State,
    SyncOutbox,
    message,
)
from postroom.broker import Broker
from postroom.brokers.memory import MemoryBroker
from postroom.brokers.sqlite import EmbeddedBroker
from postroom.connections import (
    aiosqlite_transactions,
    asyncpg_transactions,
    psycopg2_transactions,
    psycopg_transactions,
    sqlite3_transactions,
)
from postroom.connections.sqlalchemy import begin_immediately
from postroom.drivers import open_broker, open_store
from postroom.events import Dead, Event
from postroom.integrations.sqlalchemy import SessionOutbox
from postroom.store import Store
from postroom.stores.memory import MemoryStore, MemoryTransaction
from postroom.stores.sqlite import SqliteStore
from postroom.testing.clock import ManualClock
from postroom.testing.scripted import ScriptedBroker


@message("shop.order-placed", aliases=("orders.placed",), key="order_id", version="version")
@dataclass
class OrderPlaced:
    """An event."""

    order_id: UUID
    version: int


class Shipped(TypedDict):
    """An event that cannot bear a stamp."""

    order_id: str


class Aggregate:
    """Records its own events."""

    def pull_events(self) -> list[object]:
        """Return what was recorded, and forget it."""
        return []


def stores_and_brokers() -> tuple[Sequence[Store], Sequence[Broker]]:
    """Every driver keeps its contract."""
    clock = ManualClock(datetime.now(UTC))
    stores: list[Store] = [SqliteStore("shop.db"), MemoryStore(clock=clock)]
    stores.append(open_store("sqlite:///shop.db"))
    brokers: list[Broker] = [
        EmbeddedBroker("broker.db"),
        MemoryBroker(clock=clock),
        ScriptedBroker(clock=clock),
        open_broker("memory:"),
    ]
    return stores, brokers


def put(store: Store, order: OrderPlaced) -> None:
    """Every synchronous connection can be joined."""
    outbox = SyncOutbox(store, routes=Routes([Route(on_dead="park")]), limits=Limits())
    with sqlite3_transactions("shop.db")() as connection:
        assert_type(connection, sqlite3.Connection)
        assert_type(outbox.put(connection, order), tuple[Message, ...])
    engine = begin_immediately(create_engine("sqlite:///shop.db"))
    with engine.begin() as core:
        assert_type(core, Connection)
        outbox.put(core, order, order, headers={"tenant": "7"})
    with sessionmaker(engine).begin() as session:
        assert_type(session, Session)
        outbox.put(session, order, key=order.order_id, version=order.version)
    with MemoryStore().begin() as transaction:
        outbox.put(transaction, Shipped(order_id="1"), type="shop.shipped")


async def put_async(store: Store, order: OrderPlaced) -> None:
    """Every asynchronous connection can be joined."""
    outbox = Outbox(store)
    async with aiosqlite_transactions("shop.db")() as connection:
        assert_type(connection, aiosqlite.Connection)
        assert_type(await outbox.put(connection, order), tuple[Message, ...])
    engine = begin_immediately(create_async_engine("sqlite+aiosqlite:///shop.db"))
    async with engine.begin() as core:
        assert_type(core, AsyncConnection)
        await outbox.put(core, order, deliver_at=datetime.now(UTC) + timedelta(hours=1))
    async with async_sessionmaker(engine).begin() as session:
        assert_type(session, AsyncSession)
        await outbox.put(session, Message(type="raw", payload=b"", content_type="image/png"))
    async with MemoryStore().begin() as transaction:
        await outbox.put(transaction, order)


def put_on_postgresql(
    store: Store, order: OrderPlaced, pool: ConnectionPool[psycopg.Connection[tuple[str]]]
) -> None:
    """Every synchronous client of PostgreSQL can be joined."""
    outbox = SyncOutbox(store)
    with psycopg.connect("postgresql://db") as connection, connection.transaction():
        outbox.put(connection, order)
        assert_type(Inbox(store, "billing").first(connection, "id"), bool)
    with psycopg_transactions(pool)() as lent:
        assert_type(lent, psycopg.Connection[tuple[str]])
        outbox.put(lent, order)
    outbox.put(psycopg2.connect("postgresql://db"), order)
    with psycopg2_transactions(ThreadedConnectionPool(1, 8, "postgresql://db"))() as legacy:
        outbox.put(legacy, order)


async def put_on_postgresql_async(
    store: Store,
    order: OrderPlaced,
    pool: AsyncConnectionPool[psycopg.AsyncConnection[tuple[str]]],
    single: asyncpg.Connection,
    asyncpg_pool: asyncpg.Pool,
) -> None:
    """Every asynchronous client of PostgreSQL can be joined."""
    outbox = Outbox(store)
    async with await psycopg.AsyncConnection.connect("postgresql://db") as connection:
        await outbox.put(connection, order)
    async with psycopg_transactions(pool)() as lent:
        assert_type(lent, psycopg.AsyncConnection[tuple[str]])
        await outbox.put(lent, order)
    await outbox.put(single, order)
    async with asyncpg_transactions(asyncpg_pool, isolation="serializable")() as pooled:
        await outbox.put(pooled, order)


def sessions(store: Store, session: Session, later: AsyncSession) -> None:
    """What is put into a session is written at its commit."""
    outbox = SessionOutbox(store, routes=Routes([Route()]), limits=Limits())
    assert_type(outbox.bind(sessionmaker(create_engine("sqlite://"))), sessionmaker[Session])
    bound = outbox.bind(async_sessionmaker(create_async_engine("sqlite+aiosqlite://")))
    assert_type(bound, async_sessionmaker[AsyncSession])
    outbox.collect(Aggregate, lambda aggregate: aggregate.pull_events())
    assert_type(outbox.put(session, OrderPlaced(UUID(int=0), 1), key="7"), tuple[Message, ...])
    outbox.put(later, Message(type="raw", payload=b""))


async def refused(store: Store, session: Session, later: AsyncSession) -> None:
    """A checker finds what is no connection, or one of the other kind."""
    SyncOutbox(store).put("shop.db", object())  # type: ignore[arg-type]
    SyncOutbox(store).put(create_engine("sqlite://"), object())  # type: ignore[arg-type]
    SyncOutbox(store).put(later, object())  # type: ignore[arg-type]
    await Outbox(store).put(session, object())  # type: ignore[arg-type]
    SyncOutbox(store).put(ConnectionPool("postgresql://"), object())  # type: ignore[arg-type]
    SyncOutbox(store).put(session, object(), keys="7")  # type: ignore[call-arg]


def first(store: Store, session: Session) -> bool:
    """An inbox can be used without a consumer."""
    return Inbox(store, "billing").first(session, "id")


def handlers(store: Store) -> None:
    """A consumer takes any way to begin a transaction."""
    engine = create_engine("sqlite:///shop.db")
    policy = RetryPolicy(max_attempts=3, backoff=Backoff(initial=timedelta(seconds=1)))
    plain = Consumer("billing", begin=sqlite3_transactions("b.db"), store=store, retry=policy)
    Consumer("core", begin=engine.begin, store=store)
    Consumer("orm", begin=sessionmaker(engine).begin, store=store)
    Consumer("memory", begin=MemoryStore().begin, store=store)

    @plain.on(OrderPlaced)
    def bill(order: OrderPlaced, context: Context[sqlite3.Connection]) -> None:
        context.connection.execute("SELECT ?", (context.idempotency_key("charge"),))
        assert_type(context.put(order), tuple[Message, ...])

    @plain.on("shop.raw")
    def keep(raw: Message, context: Context[MemoryTransaction]) -> None:
        assert_type(raw.payload, bytes)
        assert_type(context.message, Message)

    many = async_sessionmaker(create_async_engine("sqlite+aiosqlite:///shop.db")).begin
    asynchronous = Consumer("mail", begin=many, store=store)

    @asynchronous.on(OrderPlaced)
    async def write(order: OrderPlaced, context: AsyncContext[AsyncSession]) -> None:
        await context.connection.flush()
        assert_type(await context.put(order), tuple[Message, ...])


async def run(consumer: Consumer, broker: EmbeddedBroker, store: Store) -> None:
    """The steps run alone, or put together."""

    def alarm(event: Event) -> None:
        if isinstance(event, Dead):
            assert_type(event.entry, Entry)

    stop = asyncio.Event()
    options = RelayOptions(lease=timedelta(seconds=30))
    relay = Relay(store, broker, options=options, observers=[alarm])
    assert_type((await relay.step()).sent, int)
    await relay.run(stop)
    await consumer.run(broker, stop)
    async with Postroom(Settings(store="sqlite:///shop.db")) as postroom:
        assert_type(postroom, Postroom)
        assert_type(postroom.desk, Desk)
        async with postroom.running_relay() as running:
            running.wake()
        await postroom.run_consumer(consumer, stop)


async def look(desk: Desk) -> int:
    """A person at the desk."""
    dead = Query(states=[State.DEAD], created_before=datetime.now(UTC))
    assert_type(await desk.find(dead), Sequence[Entry])
    return await desk.replay(dead, dry_run=True)
