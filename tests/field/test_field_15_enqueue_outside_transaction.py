"""Enqueue outside the business transaction: refused, and no kill separates order and message."""

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.orm import Session

from postroom import Message, SyncOutbox
from postroom.errors import NoTransaction

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
