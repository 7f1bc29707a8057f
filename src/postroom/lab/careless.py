"""Order services that put a message where no transaction holds it, and heed the refusal.

The outbox refuses the put and names the cure; the service does what it says. Without the check
the message would be durable at once, and announce orders that are rolled back a moment later.
"""

import sqlite3
from contextlib import closing
from importlib.util import find_spec

from postroom.errors import NoTransaction
from postroom.lab import plants, shop
from postroom.lab.brief import Brief
from postroom.lab.journal import Journal


class Mishap(Exception):
    """What goes wrong after the message was put."""


def run(brief: Brief, journal: Journal) -> None:
    """Write orders on connections of several kinds; every second order fails and is undone."""
    journal.write("ready")
    with closing(sqlite3.connect(brief.places.file("shop"), timeout=10)) as connection:
        connection.isolation_level = None
        for number in range(brief.orders):
            try:
                _in_autocommit(connection, brief, journal, number)
            except Mishap:
                connection.rollback()
    if find_spec("sqlalchemy") is not None:
        from postroom.lab import careless_session  # noqa: PLC0415 - only where it is installed

        careless_session.run(brief, journal)
    journal.write("done", orders=brief.orders)


def _in_autocommit(
    connection: sqlite3.Connection, brief: Brief, journal: Journal, number: int
) -> None:
    """Announce first, and begin the transaction only then."""
    outbox = plants.outbox(brief)
    name = shop.customer(number % brief.customers)
    fails = number % 2 == 1
    try:
        order = shop.OrderPlaced(customer=name, n=_count(connection, name) + 1, amount=number)
        (sent,) = outbox.put(connection, order)
        connection.execute("BEGIN IMMEDIATE")
    except NoTransaction as error:
        journal.write("put-refused", error=error.reason)
        connection.execute("BEGIN IMMEDIATE")
        order = shop.OrderPlaced(customer=name, n=_count(connection, name) + 1, amount=number)
        (sent,) = outbox.put(connection, order)
    connection.execute("UPDATE customers SET orders = ? WHERE name = ?", (order.n, name))
    connection.execute(*shop.order_row(order, sent))
    if fails:
        raise Mishap
    connection.execute("COMMIT")


def _count(connection: sqlite3.Connection, name: str) -> int:
    row = connection.execute("SELECT orders FROM customers WHERE name = ?", (name,)).fetchone()
    return int(row[0])
