"""A consumer in each kind of transaction that its user may have."""

import asyncio
import inspect
import sqlite3
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import async_sessionmaker, create_async_engine
from sqlalchemy.orm import sessionmaker

from postroom import events
from postroom.brokers.memory import MemoryBroker
from postroom.codecs import encode
from postroom.connections import aiosqlite_transactions, run, run_async, sqlite3_transactions
from postroom.connections.sqlalchemy import begin_immediately
from postroom.consumer import Consumer
from postroom.events import Event
from postroom.message import Message, message
from postroom.retry import Backoff, RetryPolicy
from postroom.statement import Statement
from postroom.store import Writer
from postroom.stores.sqlite import SqliteStore

KINDS = ["sqlite3", "aiosqlite", "connection", "session", "async connection", "async session"]
SHORT = RetryPolicy(
    max_attempts=3, backoff=Backoff(initial=timedelta(milliseconds=5), factor=1, jitter=0)
)


@message("shop.order-placed", key="customer", aliases=("shop.OrderPlaced",))
@dataclass(frozen=True)
class OrderPlaced:
    """An order, and how the handler should take it."""

    customer: str
    number: int
    trouble: str = ""


@message("shop.invoiced", key="customer")
@dataclass(frozen=True)
class Invoiced:
    """What the handler puts in turn."""

    customer: str
    number: int


Handle = Callable[[OrderPlaced, Any], Any]


class Billing:
    """A consumer, its database, and a broker in memory."""

    def __init__(self, kind: str, path: Path) -> None:
        self.kind = kind
        self.path = path
        self.events: list[Event] = []
        self.broker = MemoryBroker()
        self.store: Writer = SqliteStore(path)
        self.patience = 5.0
        """Seconds that sqlite3 waits for a lock."""
        self.closing: Callable[[], Any] = lambda: None
        self.invoke: Handle = lambda _order, _context: None
        """Called in the handler, after the effect was written."""

    def consumer(self, name: str = "billing", **options: Any) -> Consumer:
        """Return a consumer that writes an effect row for each order and puts `Invoiced`."""
        begin, awaits = self._transactions()
        consumer = Consumer(
            name,
            begin=begin,
            store=self.store,
            retry=options.pop("retry", SHORT),
            observers=[self.events.append, *options.pop("observers", ())],
            **options,
        )
        sql = "insert into effect (consumer, customer, number) values (:name, :customer, :number)"

        def row(order: OrderPlaced) -> dict[str, str | int]:
            return {"name": name, "customer": order.customer, "number": order.number}

        def handle(order: OrderPlaced, context: Any) -> None:
            run(context.connection, Statement(sql, [row(order)]))
            context.put(Invoiced(order.customer, order.number))
            self.invoke(order, context)

        async def handle_async(order: OrderPlaced, context: Any) -> None:
            await run_async(context.connection, Statement(sql, [row(order)]))
            await context.put(Invoiced(order.customer, order.number))
            awaited: Any = self.invoke(order, context)
            if inspect.isawaitable(awaited):
                await awaited

        consumer.on(OrderPlaced)(handle_async if awaits else handle)
        return consumer

    def effects(self, name: str = "billing") -> list[tuple[str, int]]:
        """Return the committed effects in the order of their commits."""
        sql = "select customer, number from effect where consumer = ? order by rowid"
        return [tuple(row) for row in self.query(sql, name)]

    def query(self, sql: str, *values: object) -> list[Any]:
        """Ask the database on a connection of its own."""
        with closing(sqlite3.connect(self.path)) as connection:
            return connection.execute(sql, values).fetchall()

    async def publish(self, *orders: OrderPlaced | Message) -> list[Message]:
        """Send orders to the broker."""
        made = [order if isinstance(order, Message) else _message(order) for order in orders]
        results = await self.broker.publish(made, timeout=timedelta(seconds=5))
        assert list(results) == [None] * len(made)
        return made

    async def consume(self, *consumers: Consumer, until: Callable[[], bool]) -> None:
        """Run the consumers until the condition holds (looked at after every event)."""
        stop, happened = asyncio.Event(), asyncio.Event()
        loop = asyncio.get_running_loop()

        def observe(_event: Event) -> None:
            loop.call_soon_threadsafe(happened.set)

        for consumer in consumers:
            consumer.observe(observe)
        running = [asyncio.ensure_future(one.run(self.broker, stop)) for one in consumers]
        try:
            async with asyncio.timeout(20):
                while not until() and not any(task.done() for task in running):
                    await happened.wait()
                    happened.clear()
        finally:
            stop.set()
            await asyncio.gather(*running)

    def count(self, kind: type[Event]) -> int:
        """Count the events of a kind."""
        return sum(isinstance(event, kind) for event in self.events)

    def done(self, count: int) -> Callable[[], bool]:
        """Return a condition: so many deliveries are acknowledged."""
        return lambda: self.count(events.Acknowledged) >= count

    def _transactions(self) -> tuple[Callable[[], Any], bool]:
        url = f"sqlite:///{self.path}"
        match self.kind:
            case "sqlite3":
                return sqlite3_transactions(self.path, timeout=self.patience), False
            case "aiosqlite":
                return aiosqlite_transactions(self.path, timeout=self.patience), True
            case "connection" | "session":
                engine = begin_immediately(sa.create_engine(url))
                self.closing = engine.dispose
                return (
                    engine.begin if self.kind == "connection" else sessionmaker(engine).begin
                ), False
            case _:
                awaited = begin_immediately(create_async_engine(f"sqlite+aiosqlite:///{self.path}"))
                self.closing = awaited.dispose
                return (
                    awaited.begin
                    if self.kind == "async connection"
                    else async_sessionmaker(awaited).begin
                ), True


def _message(order: OrderPlaced) -> Message:
    made = encode(order)
    return Message(id=made.id, type=made.type, topic=made.type, payload=made.payload, key=made.key)


async def billing_on(kind: str, path: Path) -> AsyncIterator[Billing]:
    """Give a consumer's surroundings and close them."""
    store = SqliteStore(path)
    await store.open()
    await store.migrate()
    await store.close()
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("create table effect (consumer, customer, number)")
    billing = Billing(kind, path)
    await billing.broker.open()
    yield billing
    await billing.broker.close()
    closed = billing.closing()
    if asyncio.iscoroutine(closed):
        await closed


@pytest.fixture(params=KINDS)
async def billing(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Billing]:
    async for one in billing_on(request.param, tmp_path / "billing.db"):
        yield one


@pytest.fixture
async def simple(tmp_path: Path) -> AsyncIterator[Billing]:
    """Return a consumer on sqlite3, for what does not depend on the kind."""
    async for one in billing_on("sqlite3", tmp_path / "billing.db"):
        yield one


def numbers(effects: Sequence[tuple[str, int]], customer: str) -> list[int]:
    """Return the numbers of one customer's effects, in order."""
    return [number for name, number in effects if name == customer]
