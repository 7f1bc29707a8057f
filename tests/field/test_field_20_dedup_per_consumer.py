"""Dedup key without the consumer: two consumers of one message each run once."""

import sqlite3
from contextlib import closing
from typing import Any

import pytest

from postroom import Inbox, Message

MESSAGE = Message(type="shop.order-placed", payload=b"{}")


class Failed(Exception):
    """The handler's first attempt."""


class Consumer:
    """A consumer in its shortest form: inbox row and effect in one transaction."""

    def __init__(self, shop: Any, name: str, *, failures: int = 0) -> None:
        self._path = shop.store.path
        self._inbox = Inbox(shop.store, name)
        self._name = name
        self._failures = failures

    def deliver(self) -> bool:
        """Handle the message; return whether it was the first sight."""
        with closing(sqlite3.connect(self._path)) as connection, connection:
            connection.execute("BEGIN IMMEDIATE")
            if not self._inbox.first(connection, MESSAGE.id):
                return False
            connection.execute("insert into orders (id) values (?)", [self._name])
            if self._failures:
                self._failures -= 1
                raise Failed
            return True


def test_each_consumer_runs_once(small_shop: Any) -> None:
    billing = Consumer(small_shop, "billing", failures=1)
    shipping = Consumer(small_shop, "shipping")

    with pytest.raises(Failed):
        billing.deliver()
    ran = [shipping.deliver(), billing.deliver(), shipping.deliver(), billing.deliver()]

    assert ran == [True, True, False, False]
    assert small_shop.orders() == {"billing", "shipping"}
    assert small_shop.seen() == 2


def test_names_are_not_confused(small_shop: Any) -> None:
    """Consumer and id are two columns: no way of cutting them apart makes two pairs one."""
    path = small_shop.store.path
    pairs = [("a", "bc"), ("ab", "c"), ("a ", "bc"), ("A", "bc"), ("a", "bc "), ("a", "BC")]
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("BEGIN IMMEDIATE")
        seen = [Inbox(small_shop.store, name).first(connection, id_) for name, id_ in pairs]

    assert all(seen)
    assert small_shop.seen() == len(pairs)
