"""A message shares the fate of the caller's transaction, over every kind of connection."""

import sqlite3
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import asyncpg
import psycopg
import psycopg2
import pytest
from sqlalchemy.exc import IntegrityError

from postroom import Inbox, Message, message
from postroom.errors import InvalidMessage, MessageTooLarge, NoTransaction, PutRefused
from postroom.statement import Statement
from postroom.stores.sqlite import SqliteStore

ORDER = "insert into orders (id) values (:id)"


DUPLICATE = (
    sqlite3.IntegrityError,
    asyncpg.UniqueViolationError,
    psycopg.IntegrityError,
    psycopg2.IntegrityError,
    IntegrityError,
)


@pytest.fixture
def watcher(shop: Any) -> Any:
    """Watch the database of the caller's kind."""
    return shop.watcher


@message("shop.order-placed", key="order_id")
@dataclass
class OrderPlaced:
    """What the shop announces."""

    order_id: str


class Changed(Exception):
    """The caller changed its mind."""


async def test_commit_keeps_the_order_and_its_message(shop: Any, watcher: Any) -> None:
    await shop.begin()
    await shop.order("a")
    (placed,) = await shop.put(OrderPlaced("a"))
    before = watcher.messages()
    await shop.commit()

    assert before == []
    assert watcher.orders() == ["a"]
    assert watcher.messages() == [placed.id]


async def test_what_is_returned_is_what_was_written(shop: Any, watcher: Any) -> None:
    await shop.begin()
    (placed,) = await shop.put(OrderPlaced("a"), version=7, headers={"tenant": "zürich"})
    await shop.commit()

    row = watcher.query(
        "select id, type, key, version, topic, content_type, headers, payload from postroom_outbox"
    )
    assert row == [
        (
            placed.id,
            "shop.order-placed",
            "a",
            7,
            "shop.order-placed",
            "application/json",
            '{"tenant":"zürich"}',
            b'{"order_id":"a"}',
        )
    ]
    assert placed.topic == "shop.order-placed"


async def test_rollback_leaves_nothing(shop: Any, watcher: Any) -> None:
    await shop.begin()
    await shop.order("a")
    await shop.put(OrderPlaced("a"), OrderPlaced("b"))
    await shop.rollback()

    assert watcher.orders() == []
    assert watcher.messages() == []


async def test_a_savepoint_that_rolls_back_takes_its_message_along(shop: Any, watcher: Any) -> None:
    await shop.begin()
    (kept,) = await shop.put(OrderPlaced("a"))
    with suppress(Changed):
        async with shop.savepoint():
            await shop.order("b")
            await shop.put(OrderPlaced("b"), OrderPlaced("b"))
            raise Changed
    await shop.order("a")
    await shop.commit()

    assert watcher.orders() == ["a"]
    assert watcher.messages() == [kept.id]


async def test_a_released_savepoint_is_undone_by_the_rollback(shop: Any, watcher: Any) -> None:
    await shop.begin()
    async with shop.savepoint():
        await shop.order("a")
        await shop.put(OrderPlaced("a"))
    inside = watcher.messages()
    await shop.rollback()

    assert inside == []
    assert watcher.orders() == []
    assert watcher.messages() == []


async def test_the_connection_is_used_again(shop: Any, watcher: Any) -> None:
    """After a commit, after a rollback and after a refusal nothing is left behind."""
    await shop.begin()
    await shop.put(OrderPlaced("a"))
    await shop.commit()
    await shop.begin()
    await shop.put(OrderPlaced("b"), OrderPlaced("c"))
    await shop.rollback()
    with pytest.raises(NoTransaction):
        await shop.put(OrderPlaced("d"))
    await shop.begin()
    await shop.order("e")
    await shop.put(OrderPlaced("e"))
    await shop.commit()

    assert watcher.orders() == ["e"]
    assert watcher.query("select key from postroom_outbox order by seq") == [("a",), ("e",)]


async def test_refused_without_a_transaction(shop: Any, watcher: Any) -> None:
    with pytest.raises(NoTransaction, match=r"begin|not in a transaction"):
        await shop.put(OrderPlaced("a"))

    assert watcher.messages() == []


async def test_refused_after_the_connection_was_closed(shop: Any, watcher: Any) -> None:
    closing = shop.connection.close()
    if closing is not None:
        await closing

    with pytest.raises(NoTransaction):
        await shop.put(OrderPlaced("a"))
    assert watcher.messages() == []


async def test_a_refused_event_spoils_nothing(shop: Any, watcher: Any) -> None:
    """The caller may go on in the same transaction; of the refused call nothing was written."""
    await shop.begin()
    await shop.order("a")
    with pytest.raises(InvalidMessage):
        await shop.put(OrderPlaced("a"), OrderPlaced("\0"))
    with pytest.raises(MessageTooLarge):
        await shop.put(OrderPlaced("a"), Message(type="big", payload=bytes(2**21)))
    with pytest.raises(PutRefused):
        await shop.put(object())
    await shop.commit()

    assert watcher.orders() == ["a"]
    assert watcher.messages() == []


async def test_a_call_writes_all_its_messages_or_none(shop: Any, watcher: Any) -> None:
    """The database refuses the second row; the caller goes on and commits all the same."""
    known = Message(type="shop.known", payload=b"1")
    await shop.begin()
    await shop.put(known)
    with pytest.raises(DUPLICATE):
        async with shop.savepoint():
            await shop.put(OrderPlaced("a"), known, OrderPlaced("b"))
    await shop.order("a")
    await shop.commit()

    assert watcher.messages() == [known.id]
    assert watcher.orders() == ["a"]


async def test_sqlite_needs_no_savepoint_to_go_on(file_shop: Any) -> None:
    """PostgreSQL ignores what follows an error; SQLite does not, and no row may be left."""
    known = Message(type="shop.known", payload=b"1")
    await file_shop.begin()
    await file_shop.put(known)
    with pytest.raises(DUPLICATE):
        await file_shop.put(OrderPlaced("a"), known, OrderPlaced("b"))
    await file_shop.commit()

    assert file_shop.watcher.messages() == [known.id]


async def test_many_messages_keep_their_order(shop: Any, watcher: Any) -> None:
    await shop.begin()
    written = await shop.put(*(OrderPlaced(str(number)) for number in range(50)))
    await shop.commit()

    assert watcher.messages() == [each.id for each in written]


async def test_nothing_to_put_needs_nothing(shop: Any) -> None:
    assert await shop.put() == ()


async def test_first_sight_is_told_from_a_copy(shop: Any, watcher: Any) -> None:
    await shop.begin()
    seen = [
        await shop.first("billing", "m1"),
        await shop.first("billing", "m1"),
        await shop.first("shipping", "m1"),
        await shop.first("billing", "M1"),
    ]
    await shop.commit()

    assert seen == [True, False, True, True]
    assert watcher.inbox() == 3


async def test_a_copy_is_the_first_where_the_first_was_rolled_back(shop: Any) -> None:
    """Three copies: the first rolls back, the second commits, the third is a duplicate."""
    seen = []
    for end in (shop.rollback, shop.commit, shop.commit):
        await shop.begin()
        seen.append(await shop.first("billing", "m1"))
        await end()

    assert seen == [True, True, False]


async def test_first_sight_needs_a_transaction_and_an_id(shop: Any) -> None:
    with pytest.raises(NoTransaction):
        await shop.first("billing", "m1")
    await shop.begin()
    with pytest.raises(ValueError, match="missing id"):
        await shop.first("billing", "")
    await shop.rollback()


async def test_a_statement_without_rows_does_nothing(shop: Any) -> None:
    await shop.begin()

    assert await shop.run(Statement(ORDER, [])) == 0


@pytest.mark.parametrize("name", ["", "a\0b"])
def test_a_consumer_needs_a_name(store: SqliteStore, name: str) -> None:
    with pytest.raises(ValueError, match="name"):
        Inbox(store, name)
