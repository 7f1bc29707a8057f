"""The six kinds of connection that a caller may hold, behind one set of verbs."""

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from shutil import copyfile
from typing import Any

import aiosqlite
import pytest
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session

from postroom import Inbox, Message, Outbox, SyncOutbox
from postroom.connections import run, run_async
from postroom.connections.sqlalchemy import begin_immediately
from postroom.statement import Statement
from postroom.stores.sqlite import SqliteStore

TABLE = "create table orders (id text primary key)"
ORDER = "insert into orders (id) values (:id)"


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

    def __init__(self, path: Path) -> None:
        self._connection = sqlite3.connect(path, isolation_level=None)

    def orders(self) -> list[str]:
        """Return the committed orders."""
        return self._column("select id from orders order by rowid")

    def messages(self) -> list[str]:
        """Return the ids of the committed messages, in order."""
        return self._column("select id from postroom_outbox order by seq")

    def inbox(self) -> int:
        """Count the committed rows of the inbox."""
        return len(self._column("select consumer from postroom_inbox"))

    def query(self, sql: str) -> list[tuple[Any, ...]]:
        """Run a query of the test's own."""
        return self._connection.execute(sql).fetchall()

    def _column(self, sql: str) -> list[str]:
        return [row[0] for row in self.query(sql)]

    def close(self) -> None:
        """Disconnect."""
        self._connection.close()


@pytest.fixture
def watcher(path: Path) -> Iterator[Watcher]:
    watcher = Watcher(path)
    yield watcher
    watcher.close()


class SyncShop:
    """A caller with a synchronous connection."""

    def __init__(self, connection: Any, store: SqliteStore, execute: Callable[..., Any]) -> None:
        self.connection = connection
        self._outbox = SyncOutbox(store)
        self._store = store
        self._execute = execute

    async def begin(self) -> None:
        """Begin a transaction."""
        if isinstance(self.connection, sqlite3.Connection):
            self.connection.execute("BEGIN")
        else:
            self.connection.begin()

    async def order(self, name: str) -> None:
        """Write an order."""
        self._execute(ORDER, {"id": name})

    async def put(self, *events: object, **options: Any) -> Sequence[Message]:
        """Put events into the outbox."""
        return self._outbox.put(self.connection, *events, **options)

    async def first(self, consumer: str, message_id: str) -> bool:
        """Ask the inbox."""
        return Inbox(self._store, consumer).first(self.connection, message_id)

    async def run(self, statement: Statement) -> int:
        """Run a statement."""
        return run(self.connection, statement)

    async def commit(self) -> None:
        """Commit."""
        self.connection.commit()

    async def rollback(self) -> None:
        """Roll back."""
        self.connection.rollback()

    @asynccontextmanager
    async def savepoint(self) -> AsyncIterator[None]:
        """Open a savepoint for a block."""
        if isinstance(self.connection, sqlite3.Connection):
            with _bare_savepoint(self.connection):
                yield
        else:
            with self.connection.begin_nested():
                yield


class AsyncShop:
    """A caller with an asynchronous connection."""

    def __init__(self, connection: Any, store: SqliteStore, execute: Callable[..., Any]) -> None:
        self.connection = connection
        self._outbox = Outbox(store)
        self._store = store
        self._execute = execute

    async def begin(self) -> None:
        """Begin a transaction."""
        if isinstance(self.connection, aiosqlite.Connection):
            await self.connection.execute("BEGIN")
        else:
            await self.connection.begin()

    async def order(self, name: str) -> None:
        """Write an order."""
        await self._execute(ORDER, {"id": name})

    async def put(self, *events: object, **options: Any) -> Sequence[Message]:
        """Put events into the outbox."""
        return await self._outbox.put(self.connection, *events, **options)

    async def first(self, consumer: str, message_id: str) -> bool:
        """Ask the inbox."""
        return await Inbox(self._store, consumer).first_async(self.connection, message_id)

    async def run(self, statement: Statement) -> int:
        """Run a statement."""
        return await run_async(self.connection, statement)

    async def commit(self) -> None:
        """Commit."""
        await self.connection.commit()

    async def rollback(self) -> None:
        """Roll back."""
        await self.connection.rollback()

    @asynccontextmanager
    async def savepoint(self) -> AsyncIterator[None]:
        """Open a savepoint for a block."""
        if not isinstance(self.connection, aiosqlite.Connection):
            async with self.connection.begin_nested():
                yield
            return
        await self.connection.execute("SAVEPOINT part")
        try:
            yield
        except BaseException:
            await self.connection.execute("ROLLBACK TO part")
            raise
        finally:
            await self.connection.execute("RELEASE part")


Shop = SyncShop | AsyncShop


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of connection, and how to open it."""

    name: str
    connect: Callable[[Path, SqliteStore], AbstractAsyncContextManager[Shop]]


@contextmanager
def _bare_savepoint(connection: sqlite3.Connection) -> Iterator[None]:
    connection.execute("SAVEPOINT part")
    try:
        yield
    except BaseException:
        connection.execute("ROLLBACK TO part")
        raise
    finally:
        connection.execute("RELEASE part")


@asynccontextmanager
async def _sqlite3(path: Path, store: SqliteStore) -> AsyncIterator[Shop]:
    connection = sqlite3.connect(path)
    yield SyncShop(connection, store, connection.execute)
    connection.close()


@asynccontextmanager
async def _aiosqlite(path: Path, store: SqliteStore) -> AsyncIterator[Shop]:
    async with aiosqlite.connect(path) as connection:
        yield AsyncShop(connection, store, connection.execute)


@asynccontextmanager
async def _connection(path: Path, store: SqliteStore) -> AsyncIterator[Shop]:
    engine = begin_immediately(sa.create_engine(f"sqlite:///{path}"))
    with engine.connect() as connection:
        yield SyncShop(connection, store, connection.exec_driver_sql)
    engine.dispose()


@asynccontextmanager
async def _session(path: Path, store: SqliteStore) -> AsyncIterator[Shop]:
    engine = begin_immediately(sa.create_engine(f"sqlite:///{path}"))
    with Session(engine) as session:
        yield SyncShop(session, store, lambda sql, values: session.execute(sa.text(sql), values))
    engine.dispose()


@asynccontextmanager
async def _async_connection(path: Path, store: SqliteStore) -> AsyncIterator[Shop]:
    engine = begin_immediately(create_async_engine(f"sqlite+aiosqlite:///{path}"))
    async with engine.connect() as connection:
        yield AsyncShop(connection, store, connection.exec_driver_sql)
    await engine.dispose()


@asynccontextmanager
async def _async_session(path: Path, store: SqliteStore) -> AsyncIterator[Shop]:
    engine = begin_immediately(create_async_engine(f"sqlite+aiosqlite:///{path}"))
    async with AsyncSession(engine) as session:
        yield AsyncShop(session, store, lambda sql, values: session.execute(sa.text(sql), values))
    await engine.dispose()


KINDS = (
    Kind("sqlite3", _sqlite3),
    Kind("aiosqlite", _aiosqlite),
    Kind("Connection", _connection),
    Kind("Session", _session),
    Kind("AsyncConnection", _async_connection),
    Kind("AsyncSession", _async_session),
)


@pytest.fixture(params=KINDS, ids=[kind.name for kind in KINDS])
async def shop(
    request: pytest.FixtureRequest, path: Path, store: SqliteStore
) -> AsyncIterator[Shop]:
    """Return a caller, once with each kind of connection."""
    async with request.param.connect(path, store) as shop:
        yield shop
