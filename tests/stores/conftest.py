"""What tests of one store act on: an SQLite file, a PostgreSQL schema, each of the test's own."""

import sqlite3
from collections.abc import AsyncIterator, Callable
from contextlib import closing
from pathlib import Path
from uuid import uuid4

import pytest

from postroom.message import Message
from postroom.store import Addressed
from postroom.stores.sqlite import SqliteStore
from postroom.testing.clock import ManualClock
from tests.postgresql import AWKWARD
from tests.servers import Server, needed, postgresql_servers
from tests.stores.postgresql import Ground, drop

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


@pytest.fixture(params=needed(postgresql_servers(), "PostgreSQL"))
async def ground(request: pytest.FixtureRequest) -> AsyncIterator[Ground]:
    """A schema with its tables, on every server that is here."""
    server: Server = request.param
    ground = Ground(server.url, AWKWARD + uuid4().hex[:8])
    await (await ground.store()).migrate()
    yield ground
    for store in ground.stores:
        await store.close()
    await drop(ground.url, ground.schema)
