"""What a message adds to a business transaction: the same one with it and without."""

import asyncio
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from decimal import Decimal
from pathlib import Path

from sqlalchemy import Engine, create_engine, insert
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from bench import stage
from bench.report import Result, compared
from bench.scale import Scale
from postroom.connections.sqlalchemy import begin_immediately
from postroom.outbox import SyncOutbox
from postroom.stores.sqlite import SqliteStore

Place = Callable[[stage.OrderPlaced, SyncOutbox | None], None]
"""Commits an order; with an outbox, its message too."""


class _Tables(DeclarativeBase):
    pass


class _Order(_Tables):
    __tablename__ = "orders"
    number: Mapped[int] = mapped_column(primary_key=True)
    customer: Mapped[str]
    amount: Mapped[str]
    placed_at: Mapped[str]


def measure(directory: Path, scale: Scale) -> Iterator[Result]:
    """Commit orders in turn with and without a message, in databases of their own."""
    for name, shop in (
        ("sqlite3", _sqlite3),
        ("SQLAlchemy Connection", _connection),
        ("SQLAlchemy Session", _session),
    ):
        pairs = _pairs(directory / name.rpartition(" ")[2], shop, scale)
        title = f"put, {name}{scale.suffix}"
        yield compared(title, pairs, unit="us/transaction", goal=1.5, bound="at most")


def _pairs(
    directory: Path, shop: Callable[[Path], AbstractContextManager[Place]], scale: Scale
) -> list[tuple[float, float]]:
    """Alternate; the first round only warms up."""
    directory.mkdir()
    count = scale.transactions
    pairs = []
    for name in ("with.db", "without.db"):
        asyncio.run(stage.new_outbox(directory / name, iter(())))
    outbox = SyncOutbox(SqliteStore(directory / "with.db"))
    with shop(directory / "with.db") as put, shop(directory / "without.db") as plain:
        for first in range(0, (scale.rounds + 1) * count, count):
            without = _micros(plain, None, first, count)
            pairs.append((_micros(put, outbox, first, count), without))
    return pairs[1:]


def _micros(place: Place, outbox: SyncOutbox | None, first: int, count: int) -> float:
    events = [stage.order(number) for number in range(first, first + count)]
    began = time.perf_counter()
    for event in events:
        place(event, outbox)
    return (time.perf_counter() - began) / count * 1_000_000


@contextmanager
def _sqlite3(path: Path) -> Iterator[Place]:
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute(
            "create table orders (number integer primary key, customer text, amount text,"
            " placed_at text)"
        )

        def place(event: stage.OrderPlaced, outbox: SyncOutbox | None) -> None:
            connection.execute("begin immediate")
            connection.execute(
                "insert into orders values (?, ?, ?, ?)",
                (event.number, event.customer, str(event.amount), event.placed_at.isoformat()),
            )
            if outbox is not None:
                outbox.put(connection, event)
            connection.execute("commit")

        yield place


@contextmanager
def _connection(path: Path) -> Iterator[Place]:
    with _engine(path) as engine:

        def place(event: stage.OrderPlaced, outbox: SyncOutbox | None) -> None:
            with engine.begin() as connection:
                connection.execute(insert(_Order).values(**_columns(event)))
                if outbox is not None:
                    outbox.put(connection, event)

        yield place


@contextmanager
def _session(path: Path) -> Iterator[Place]:
    with _engine(path) as engine:

        def place(event: stage.OrderPlaced, outbox: SyncOutbox | None) -> None:
            with Session(engine) as session, session.begin():
                session.add(_Order(**_columns(event)))
                if outbox is not None:
                    outbox.put(session, event)

        yield place


@contextmanager
def _engine(path: Path) -> Iterator[Engine]:
    engine = begin_immediately(create_engine(f"sqlite:///{path}"))
    _Tables.metadata.create_all(engine)
    try:
        yield engine
    finally:
        engine.dispose()


def _columns(event: stage.OrderPlaced) -> dict[str, int | str | Decimal]:
    return {
        "number": event.number,
        "customer": event.customer,
        "amount": str(event.amount),
        "placed_at": event.placed_at.isoformat(),
    }
