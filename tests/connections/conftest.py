"""Callers with every kind of connection, each on a database of its own."""

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from shutil import copyfile
from typing import Any

import pytest

from postroom.stores.sqlite import SqliteStore
from tests.connections.shops import POSTGRESQL_KINDS, SQLITE_KINDS, Kind, Shop
from tests.postgresql import ground
from tests.servers import needed, postgresql_servers

TABLE = "create table orders (id text primary key)"
NEWEST = {"asyncpg", "psycopg", "Session-psycopg2", "AsyncSession-asyncpg"}
"""These run on every version of the server; it is the client that makes the difference."""


@pytest.fixture(scope="session")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a database file with the tables of Postroom and of a small shop."""
    path = tmp_path_factory.mktemp("template") / "shop.db"

    async def prepare() -> None:
        store = SqliteStore(path)
        await store.open()
        await store.migrate()
        await store.close()

    # In a thread, because the tests' own event loop lives in this one.
    with ThreadPoolExecutor(max_workers=1) as thread:
        thread.submit(asyncio.run, prepare()).result()
    with sqlite3.connect(path) as connection:
        connection.execute(TABLE)
    connection.close()
    return path


@pytest.fixture
def path(template: Path, tmp_path: Path) -> Path:
    """Return a database file of the test's own."""
    path = tmp_path / "shop.db"
    copyfile(template, path)
    return path


@pytest.fixture
def store(path: Path) -> SqliteStore:
    """Return the store of the file, not opened: a put needs nothing but its SQL."""
    return SqliteStore(path)


class Watcher:
    """Somebody else's connection: sees only what is committed."""

    def __init__(self, query: Callable[[str], list[Any]]) -> None:
        self.query = query

    def orders(self) -> list[str]:
        """Return the committed orders."""
        return self._column("select id from orders order by id")

    def messages(self) -> list[str]:
        """Return the ids of the committed messages, in order."""
        return self._column("select id from postroom_outbox order by seq")

    def inbox(self) -> int:
        """Count the committed rows of the inbox."""
        return len(self._column("select consumer from postroom_inbox"))

    def _column(self, sql: str) -> list[str]:
        return [row[0] for row in self.query(sql)]


@pytest.fixture
def watcher(path: Path) -> Iterator[Watcher]:
    """Watch the test's SQLite file."""
    with _watching(path) as made:
        yield made


@contextmanager
def _watching(path: Path) -> Iterator[Watcher]:
    connection = sqlite3.connect(path, isolation_level=None)
    yield Watcher(lambda sql: connection.execute(sql).fetchall())
    connection.close()


SERVERS: list[Any] = list(needed(postgresql_servers(), "PostgreSQL"))


def _parameters() -> list[Any]:
    """Return every kind of connection with the place where it connects to."""
    kinds = [pytest.param((kind, None), id=kind.name) for kind in SQLITE_KINDS]
    for number, server in enumerate(SERVERS):
        for kind in POSTGRESQL_KINDS:
            if number == 0 or kind.name in NEWEST:
                (place,) = server.values
                kinds.append(
                    pytest.param((kind, place), id=f"{kind.name}-{server.id}", marks=server.marks)
                )
    return kinds


@pytest.fixture(params=_parameters())
async def shop(request: pytest.FixtureRequest) -> AsyncIterator[Shop]:
    """Return a caller, once with each kind of connection."""
    kind: Kind
    kind, server = request.param
    if server is None:
        async with _on_file(kind, request.getfixturevalue("path")) as shop:
            yield shop
        return
    with ground(server.url, TABLE) as made:
        async with kind.connect(made, made.store) as shop:
            shop.watcher = Watcher(made.query)
            yield shop


@pytest.fixture(params=SQLITE_KINDS, ids=[kind.name for kind in SQLITE_KINDS])
async def file_shop(request: pytest.FixtureRequest, path: Path) -> AsyncIterator[Shop]:
    """Return a caller, once with each kind of connection to an SQLite file."""
    async with _on_file(request.param, path) as shop:
        yield shop


@asynccontextmanager
async def _on_file(kind: Kind, path: Path) -> AsyncIterator[Shop]:
    async with kind.connect(path, SqliteStore(path)) as shop:
        with _watching(path) as shop.watcher:
            yield shop
