"""An SQLite store on a file of its own, for what is special about SQLite."""

import sqlite3
from collections.abc import AsyncIterator, Callable
from contextlib import closing
from pathlib import Path

import pytest

from postroom.message import Message
from postroom.store import Addressed
from postroom.stores.sqlite import SqliteStore
from postroom.testing.clock import ManualClock

Put = Callable[..., None]


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
async def sqlite_store(tmp_path: Path, clock: ManualClock) -> AsyncIterator[SqliteStore]:
    """An open store with its tables."""
    store = SqliteStore(tmp_path / "store.db", clock=clock)
    await store.open()
    await store.migrate()
    yield store
    await store.close()


@pytest.fixture
def put() -> Put:
    """Commit messages from a connection of the caller's."""

    def commit(store: SqliteStore, *messages: Message) -> None:
        statement = store.insert([Addressed("default", message) for message in messages])
        with closing(sqlite3.connect(store.path)) as connection:
            connection.executemany(statement.sql, statement.rows)
            connection.commit()

    return commit
