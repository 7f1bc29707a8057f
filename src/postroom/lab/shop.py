"""The shop's own business: orders on one side, effects on the other."""

import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

from postroom.message import Message, message

TOPIC = "shop.order-placed"

_SHOP = """
CREATE TABLE IF NOT EXISTS customers (
    name TEXT PRIMARY KEY,
    orders INTEGER NOT NULL
);
CREATE TABLE IF NOT EXISTS orders (
    message_id TEXT PRIMARY KEY,
    customer TEXT NOT NULL REFERENCES customers DEFERRABLE INITIALLY DEFERRED,
    n INTEGER NOT NULL,
    amount INTEGER NOT NULL,
    placed_at REAL NOT NULL,
    UNIQUE (customer, n)
);
"""

_EFFECTS = """
CREATE TABLE IF NOT EXISTS effects (
    place INTEGER PRIMARY KEY AUTOINCREMENT,
    message_id TEXT NOT NULL,
    customer TEXT NOT NULL,
    n INTEGER NOT NULL,
    amount INTEGER NOT NULL,
    at REAL NOT NULL
);
"""


@message(TOPIC, key="customer", version="n")
@dataclass(frozen=True, slots=True, kw_only=True)
class OrderPlaced:
    """A customer's n-th order."""

    customer: str
    n: int
    amount: int
    """In cents."""
    note: str = ""
    """What the customer wrote; the consumers stumble over some of it."""


POISON = "poison"
"""A note that no consumer can read."""


def connect(path: Path, *, patience: float = 10) -> sqlite3.Connection:
    """Open a database of the shop; transactions are begun by hand."""
    connection = sqlite3.connect(path, timeout=patience, isolation_level=None)
    connection.execute("PRAGMA foreign_keys = ON")
    return connection


def open_shop(path: Path, customers: int) -> None:
    """Create the order services' tables, with that many customers."""
    with closing(connect(path)) as connection:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.executescript(_SHOP)
        connection.executemany(
            "INSERT OR IGNORE INTO customers (name, orders) VALUES (?, 0)",
            [(customer(number),) for number in range(customers)],
        )


def open_effects(path: Path) -> None:
    """Create a consumer's table."""
    with closing(connect(path)) as connection:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.executescript(_EFFECTS)


def customer(number: int) -> str:
    """Return a customer's name."""
    return f"customer-{number:03}"


def next_order(connection: sqlite3.Connection, name: str, *, amount: int, note: str) -> OrderPlaced:
    """Count the customer's orders up by one, in the caller's transaction.

    Every order of a customer contends on this row, so the count is the order of the commits.
    """
    (n,) = connection.execute("SELECT orders FROM customers WHERE name = ?", (name,)).fetchone()
    connection.execute("UPDATE customers SET orders = ? WHERE name = ?", (n + 1, name))
    return OrderPlaced(customer=name, n=n + 1, amount=amount, note=note)


def write_order(connection: sqlite3.Connection, order: OrderPlaced, sent: Message) -> None:
    """Write the order down, with the id of the message that announces it."""
    connection.execute(
        "INSERT INTO orders (message_id, customer, n, amount, placed_at) VALUES (?, ?, ?, ?, ?)",
        (sent.id, order.customer, order.n, order.amount, time.time()),
    )


def write_effect(connection: sqlite3.Connection, order: OrderPlaced, message_id: str) -> None:
    """Write down that an order was shipped, or billed."""
    connection.execute(
        "INSERT INTO effects (message_id, customer, n, amount, at) VALUES (?, ?, ?, ?, ?)",
        (message_id, order.customer, order.n, order.amount, time.time()),
    )


@contextmanager
def transaction(connection: sqlite3.Connection) -> Iterator[sqlite3.Connection]:
    """Run one transaction that holds the database's write lock from its first moment."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield connection
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


@contextmanager
def savepoint(connection: sqlite3.Connection, name: str) -> Iterator[sqlite3.Connection]:
    """Run a part of a transaction that can be undone by itself."""
    connection.execute(f"SAVEPOINT {name}")
    try:
        yield connection
    except BaseException:
        connection.execute(f"ROLLBACK TO {name}")
        connection.execute(f"RELEASE {name}")
        raise
    connection.execute(f"RELEASE {name}")
