"""Enqueue outside the business transaction: refused, and no kill separates order and message."""

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import asyncpg
import psycopg
import pytest
import sqlalchemy as sa
from sqlalchemy.orm import Session

from postroom import Message, Outbox, SyncOutbox
from postroom.errors import NoTransaction
from postroom.integrations.sqlalchemy import SessionOutbox

MESSAGE = Message(type="shop.order-placed", payload=b"{}")
KINDS = ("sqlite3", "session", "aiosqlite")


def test_no_open_transaction(small_shop: Any) -> None:
    with (
        closing(sqlite3.connect(small_shop.store.path)) as connection,
        pytest.raises(NoTransaction, match="BEGIN IMMEDIATE"),
    ):
        SyncOutbox(small_shop.store).put(connection, MESSAGE)

    assert small_shop.announced() == set()


def test_an_autocommit_connection(small_shop: Any) -> None:
    """The order is committed at once; the message must not go the same way."""
    path = small_shop.store.path
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("insert into orders (id) values ('a')")
        with pytest.raises(NoTransaction, match="committed alone"):
            SyncOutbox(small_shop.store).put(connection, MESSAGE)
    engine = sa.create_engine(f"sqlite:///{path}", isolation_level="AUTOCOMMIT")
    with engine.begin() as automatic, pytest.raises(NoTransaction, match="AUTOCOMMIT"):
        SyncOutbox(small_shop.store).put(automatic, MESSAGE)
    engine.dispose()

    assert small_shop.announced() == set()


def test_a_closed_session(small_shop: Any) -> None:
    """SQLAlchemy would begin another transaction by itself, which nobody would commit."""
    engine = sa.create_engine(f"sqlite:///{small_shop.store.path}")
    with Session(engine) as session, session.begin():
        session.execute(sa.text("insert into orders (id) values ('a')"))
    with pytest.raises(NoTransaction, match="closed"):
        SyncOutbox(small_shop.store).put(session, MESSAGE)
    engine.dispose()

    assert small_shop.announced() == set()


def test_the_database_of_another_engine(small_shop: Any, tmp_path: Path) -> None:
    """A put goes where its connection goes; elsewhere there is no outbox, which is said."""
    other = sa.create_engine(f"sqlite:///{tmp_path / 'other.db'}")
    with other.begin() as connection, pytest.raises(sa.exc.OperationalError) as caught:
        SyncOutbox(small_shop.store).put(connection, MESSAGE)
    other.dispose()

    assert any("postroom init" in note for note in caught.value.__notes__)
    assert small_shop.announced() == set()


@pytest.mark.crash
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("point", ["begun", "first", "second", "committed"])
def test_killed_at_a_point(small_shop: Any, killed_at: Any, kind: str, point: str) -> None:
    killed_at(kind, "place", point)

    expected = {f"{kind}-0"} if point == "committed" else set()
    assert small_shop.orders() == expected
    assert small_shop.announced() == expected


@pytest.mark.crash
@pytest.mark.parametrize("kind", KINDS)
def test_killed_in_full_flight(small_shop: Any, killed_at: Any, kind: str) -> None:
    """Somewhere between the twentieth commit and whatever the process got to after it."""
    killed_at(kind, "place", "committed", stop_at="nowhere", times=20)

    assert len(small_shop.orders()) >= 20
    assert small_shop.orders() == small_shop.announced()


# On PostgreSQL

POSTGRESQL_KINDS = ("asyncpg", "psycopg", "late")


def test_no_open_transaction_on_postgresql(postgresql_shop: Any) -> None:
    with (
        psycopg.connect(postgresql_shop.place.url) as connection,
        pytest.raises(NoTransaction, match=r"connection\.transaction\(\)"),
    ):
        SyncOutbox(postgresql_shop.store).put(connection, MESSAGE)

    assert postgresql_shop.announced() == set()


async def test_no_open_transaction_on_asyncpg(postgresql_shop: Any) -> None:
    connection = await asyncpg.connect(postgresql_shop.place.url)
    with pytest.raises(NoTransaction, match="committed alone"):
        await Outbox(postgresql_shop.store).put(connection, MESSAGE)
    await connection.close()

    assert postgresql_shop.announced() == set()


def test_an_autocommit_connection_on_postgresql(postgresql_shop: Any) -> None:
    """The order is committed at once; the message must not go the same way."""
    place = postgresql_shop.place
    with psycopg.connect(place.url, options=place.options, autocommit=True) as connection:
        connection.execute("insert into orders (id) values ('a')")
        with pytest.raises(NoTransaction):
            SyncOutbox(place.store).put(connection, MESSAGE)
    for driver in ("psycopg", "psycopg2"):
        engine = place.engine(driver, isolation_level="AUTOCOMMIT")
        with engine.begin() as automatic, pytest.raises(NoTransaction, match="AUTOCOMMIT"):
            SyncOutbox(place.store).put(automatic, MESSAGE)
        engine.dispose()

    assert postgresql_shop.announced() == set()


@pytest.mark.parametrize("late", [True, False], ids=["at the commit", "at once"])
def test_a_closed_session_on_postgresql(postgresql_shop: Any, *, late: bool) -> None:
    """SQLAlchemy would begin another transaction by itself, which nobody would commit."""
    place = postgresql_shop.place
    engine = place.engine("psycopg")
    outbox = SessionOutbox(place.store)
    with outbox.bind(Session(engine)) as session, session.begin():
        session.execute(sa.text("insert into orders (id) values ('a')"))
    with pytest.raises(NoTransaction, match="closed"):
        outbox.put(session, MESSAGE) if late else SyncOutbox(place.store).put(session, MESSAGE)
    engine.dispose()

    assert postgresql_shop.announced() == set()


@pytest.mark.crash
@pytest.mark.parametrize("kind", POSTGRESQL_KINDS)
@pytest.mark.parametrize("point", ["begun", "first", "second", "committed"])
def test_killed_at_a_point_on_postgresql(
    postgresql_shop: Any, killed_at: Any, kind: str, point: str
) -> None:
    killed_at(kind, "place", point)

    expected = {f"{kind}-0"} if point == "committed" else set()
    assert postgresql_shop.orders() == expected
    assert postgresql_shop.announced() == expected


@pytest.mark.crash
@pytest.mark.parametrize("kind", POSTGRESQL_KINDS)
def test_killed_in_full_flight_on_postgresql(
    postgresql_shop: Any, killed_at: Any, kind: str
) -> None:
    killed_at(kind, "place", "committed", stop_at="nowhere", times=20)

    assert len(postgresql_shop.orders()) >= 20
    assert postgresql_shop.orders() == postgresql_shop.announced()


@pytest.mark.crash
@pytest.mark.parametrize("point", ["begun", "first", "second", "committed"])
def test_killed_while_handling_on_postgresql(
    postgresql_shop: Any, killed_at: Any, point: str
) -> None:
    """Inbox row and effect are always both there or both absent."""
    killed_at("asyncpg", "handle", point)

    both = 1 if point == "committed" else 0
    assert (len(postgresql_shop.orders()), postgresql_shop.seen()) == (both, both)
