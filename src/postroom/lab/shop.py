"""The shop's own business: orders on one side, effects on the other."""

import time
from collections.abc import Sequence
from dataclasses import dataclass

from postroom.lab.database import Database, Till, Write
from postroom.message import Message, message

TOPIC = "shop.order-placed"
CONSUMERS = ("shipping", "billing")

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
    placed_at DOUBLE PRECISION NOT NULL,
    UNIQUE (customer, n)
);
"""

_EFFECTS = """
CREATE TABLE IF NOT EXISTS served (
    customer TEXT PRIMARY KEY,
    effects INTEGER NOT NULL
);
CREATE TABLE IF NOT EXISTS effects (
    place {numbered},
    message_id TEXT NOT NULL,
    customer TEXT NOT NULL,
    n INTEGER NOT NULL,
    amount INTEGER NOT NULL,
    at DOUBLE PRECISION NOT NULL
);
"""

_SERVE = (
    "INSERT INTO served (customer, effects) VALUES (?, 1)"
    " ON CONFLICT (customer) DO UPDATE SET effects = served.effects + 1"
)


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


def open_shop(database: Database, customers: int) -> None:
    """Create the order services' tables, with that many customers."""
    add = "INSERT INTO customers (name, orders) VALUES (?, 0)"
    database.create(_SHOP, [(add, (customer(number),)) for number in range(customers)])


def open_effects(database: Database) -> None:
    """Create a consumer's tables."""
    database.create(_EFFECTS.format(numbered=database.numbered))


def customer(number: int) -> str:
    """Return a customer's name."""
    return f"customer-{number:03}"


def place(till: Till, name: str, *, amount: int, note: str = "") -> Message:
    """Place a customer's next order and announce it, in the till's transaction.

    Every order of a customer contends on the customer's row and counts it up under its lock, so
    the count is the order of the commits.
    """
    n = next_number(till, name)
    order = OrderPlaced(customer=name, n=n, amount=amount, note=note)
    sent = till.put(order)
    write_order(till, order, sent)
    return sent


def next_number(till: Till, name: str) -> int:
    """Count a customer's orders up; nobody else can until the transaction ends."""
    sql = "UPDATE customers SET orders = orders + 1 WHERE name = ? RETURNING orders"
    ((n,),) = till.rows(sql, name)
    return int(n)


def write_order(till: Till, order: OrderPlaced, sent: Message) -> None:
    """Write the order down, in the till's transaction."""
    sql, values = order_row(order, sent)
    till.rows(sql, *values)


def order_row(order: OrderPlaced, sent: Message) -> Write:
    """Return what writes an order down, with the id of the message that announces it."""
    return (
        "INSERT INTO orders (message_id, customer, n, amount, placed_at) VALUES (?, ?, ?, ?, ?)",
        (sent.id, order.customer, order.n, order.amount, time.time()),
    )


def effect(order: OrderPlaced, message_id: str) -> Sequence[Write]:
    """Return what writes down that an order was shipped, or billed.

    The customer's row is locked first, so that the places of a customer's effects are the order
    of their commits.
    """
    return (
        (_SERVE, (order.customer,)),
        (
            "INSERT INTO effects (message_id, customer, n, amount, at) VALUES (?, ?, ?, ?, ?)",
            (message_id, order.customer, order.n, order.amount, time.time()),
        ),
    )
