"""Callers with every kind of connection, behind one set of verbs."""

import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import (
    AbstractAsyncContextManager,
    AsyncExitStack,
    asynccontextmanager,
    contextmanager,
)
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiosqlite
import asyncpg
import psycopg
import psycopg2
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session

from postroom import Inbox, Message, Outbox, SyncOutbox
from postroom.connections import run, run_async
from postroom.connections.sqlalchemy import begin_immediately
from postroom.statement import Statement
from postroom.store import Writer
from postroom.stores.sqlite import SqliteStore
from tests.postgresql import Ground

ORDER = "insert into orders (id) values (:id)"


class SyncShop:
    """A caller with a synchronous connection."""

    watcher: Any
    """Somebody else's connection to the same database."""

    def __init__(
        self,
        connection: Any,
        store: Writer,
        execute: Callable[..., Any],
        *,
        sql: str = ORDER,
        begin: Callable[[], Any] | None = None,
    ) -> None:
        self.connection = connection
        self._outbox = SyncOutbox(store)
        self._store = store
        self._execute = execute
        self._sql = sql
        self._begin = begin or connection.begin

    async def begin(self) -> None:
        """Begin a transaction."""
        self._begin()

    async def order(self, name: str) -> None:
        """Write an order."""
        self._execute(self._sql, {"id": name})

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
        if hasattr(self.connection, "begin_nested"):
            with self.connection.begin_nested():
                yield
        elif isinstance(self.connection, psycopg.Connection):
            with self.connection.transaction():
                yield
        else:
            with _bare_savepoint(self._execute):
                yield


class AsyncShop:
    """A caller with an asynchronous connection."""

    watcher: Any
    """Somebody else's connection to the same database."""

    def __init__(
        self,
        connection: Any,
        store: Writer,
        execute: Callable[..., Awaitable[Any]],
        *,
        sql: str = ORDER,
        begin: Callable[[], Awaitable[Any]] | None = None,
    ) -> None:
        self.connection = connection
        self._outbox = Outbox(store)
        self._store = store
        self._execute = execute
        self._sql = sql
        self._begin = begin or connection.begin

    async def begin(self) -> None:
        """Begin a transaction."""
        await self._begin()

    async def order(self, name: str) -> None:
        """Write an order."""
        await self._execute(self._sql, {"id": name})

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
        if isinstance(self.connection, aiosqlite.Connection):
            async with _awaited_savepoint(self.connection.execute):
                yield
        elif hasattr(self.connection, "begin_nested"):
            async with self.connection.begin_nested():
                yield
        else:
            async with self.connection.transaction():
                yield


class AsyncpgShop(AsyncShop):
    """A caller with a connection of asyncpg, whose transactions are objects."""

    async def begin(self) -> None:
        """Begin a transaction."""
        self._transaction = self.connection.transaction()
        await self._transaction.start()

    async def order(self, name: str) -> None:
        """Write an order."""
        await self._execute("insert into orders (id) values ($1)", name)

    async def commit(self) -> None:
        """Commit."""
        await self._transaction.commit()

    async def rollback(self) -> None:
        """Roll back."""
        await self._transaction.rollback()


Shop = SyncShop | AsyncShop


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of connection, and how to open it on a file or in a schema."""

    name: str
    connect: Callable[[Any, Any], AbstractAsyncContextManager[Shop]]


@contextmanager
def _bare_savepoint(execute: Callable[[str], Any]) -> Iterator[None]:
    execute("SAVEPOINT part")
    try:
        yield
    except BaseException:
        execute("ROLLBACK TO part")
        raise
    finally:
        execute("RELEASE part")


@asynccontextmanager
async def _awaited_savepoint(execute: Callable[[str], Awaitable[Any]]) -> AsyncIterator[None]:
    await execute("SAVEPOINT part")
    try:
        yield
    except BaseException:
        await execute("ROLLBACK TO part")
        raise
    finally:
        await execute("RELEASE part")


@asynccontextmanager
async def _sqlite3(path: Path, store: SqliteStore) -> AsyncIterator[Shop]:
    connection = sqlite3.connect(path)
    yield SyncShop(connection, store, connection.execute, begin=lambda: connection.execute("BEGIN"))
    connection.close()


@asynccontextmanager
async def _aiosqlite(path: Path, store: SqliteStore) -> AsyncIterator[Shop]:
    async with aiosqlite.connect(path) as connection:
        yield AsyncShop(
            connection, store, connection.execute, begin=lambda: connection.execute("BEGIN")
        )


@asynccontextmanager
async def _connection(path: Path, store: SqliteStore) -> AsyncIterator[Shop]:
    async with _joined(begin_immediately(sa.create_engine(f"sqlite:///{path}")), store) as shop:
        yield shop


@asynccontextmanager
async def _session(path: Path, store: SqliteStore) -> AsyncIterator[Shop]:
    engine = begin_immediately(sa.create_engine(f"sqlite:///{path}"))
    async with _in_session(engine, store) as shop:
        yield shop


@asynccontextmanager
async def _async_connection(path: Path, store: SqliteStore) -> AsyncIterator[Shop]:
    engine = begin_immediately(create_async_engine(f"sqlite+aiosqlite:///{path}"))
    async with _joined_async(engine, store) as shop:
        yield shop


@asynccontextmanager
async def _async_session(path: Path, store: SqliteStore) -> AsyncIterator[Shop]:
    engine = begin_immediately(create_async_engine(f"sqlite+aiosqlite:///{path}"))
    async with _in_async_session(engine, store) as shop:
        yield shop


@asynccontextmanager
async def _joined(engine: sa.Engine, store: Writer) -> AsyncIterator[Shop]:
    with engine.connect() as connection:
        yield SyncShop(
            connection, store, lambda sql, values: connection.execute(sa.text(sql), values)
        )
    engine.dispose()


@asynccontextmanager
async def _in_session(engine: sa.Engine, store: Writer) -> AsyncIterator[Shop]:
    with Session(engine) as session:
        yield SyncShop(session, store, lambda sql, values: session.execute(sa.text(sql), values))
    engine.dispose()


@asynccontextmanager
async def _joined_async(engine: Any, store: Writer) -> AsyncIterator[Shop]:
    async with engine.connect() as connection:
        yield AsyncShop(
            connection, store, lambda sql, values: connection.execute(sa.text(sql), values)
        )
    await engine.dispose()


@asynccontextmanager
async def _in_async_session(engine: Any, store: Writer) -> AsyncIterator[Shop]:
    async with AsyncSession(engine) as session:
        yield AsyncShop(session, store, lambda sql, values: session.execute(sa.text(sql), values))
    await engine.dispose()


@asynccontextmanager
async def _asyncpg(ground: Ground, store: Writer) -> AsyncIterator[Shop]:
    connection = await asyncpg.connect(ground.url, server_settings={"search_path": ground.path})
    try:
        yield AsyncpgShop(connection, store, connection.execute, begin=connection.reset)
    finally:
        await connection.close()


@asynccontextmanager
async def _asyncpg_pool(ground: Ground, store: Writer) -> AsyncIterator[Shop]:
    settings = {"search_path": ground.path}
    async with (
        asyncpg.create_pool(ground.url, server_settings=settings, min_size=1, max_size=2) as pool,
        AsyncExitStack() as stack,
    ):
        connection = await stack.enter_async_context(pool.acquire())
        yield AsyncpgShop(connection, store, connection.execute, begin=connection.reset)


@asynccontextmanager
async def _psycopg(ground: Ground, store: Writer) -> AsyncIterator[Shop]:
    """With a transaction that the first statement begins, as it is by default."""
    with psycopg.connect(ground.url, options=ground.options) as connection:
        yield SyncShop(
            connection,
            store,
            connection.execute,
            sql="insert into orders (id) values (%(id)s)",
            begin=lambda: connection.execute("select 1"),
        )


@asynccontextmanager
async def _psycopg_async(ground: Ground, store: Writer) -> AsyncIterator[Shop]:
    connecting = psycopg.AsyncConnection.connect(ground.url, options=ground.options)
    async with await connecting as connection:
        yield AsyncShop(
            connection,
            store,
            connection.execute,
            sql="insert into orders (id) values (%(id)s)",
            begin=lambda: connection.execute("select 1"),
        )


@asynccontextmanager
async def _psycopg2(ground: Ground, store: Writer) -> AsyncIterator[Shop]:
    connection = psycopg2.connect(ground.url, options=ground.options)

    def execute(sql: str, values: Any = None) -> None:
        with connection.cursor() as cursor:
            cursor.execute(sql, values)

    yield SyncShop(
        connection,
        store,
        execute,
        sql="insert into orders (id) values (%(id)s)",
        begin=lambda: execute("select 1"),
    )
    connection.close()


def _on(driver: str, connect: Callable[[Any, Any], Any]) -> Callable[[Ground, Any], Any]:
    """Return how to connect by SQLAlchemy on that driver."""
    awaited = connect in (_joined_async, _in_async_session)

    def connected(ground: Ground, store: Any) -> Any:
        engine = ground.async_engine(driver) if awaited else ground.engine(driver)
        return connect(engine, store)

    return connected


SQLITE_KINDS = (
    Kind("sqlite3", _sqlite3),
    Kind("aiosqlite", _aiosqlite),
    Kind("Connection", _connection),
    Kind("Session", _session),
    Kind("AsyncConnection", _async_connection),
    Kind("AsyncSession", _async_session),
)

POSTGRESQL_KINDS = (
    Kind("asyncpg", _asyncpg),
    Kind("asyncpg-pool", _asyncpg_pool),
    Kind("psycopg", _psycopg),
    Kind("psycopg-async", _psycopg_async),
    Kind("psycopg2", _psycopg2),
    Kind("Connection-psycopg", _on("psycopg", _joined)),
    Kind("Connection-psycopg2", _on("psycopg2", _joined)),
    Kind("Session-psycopg", _on("psycopg", _in_session)),
    Kind("Session-psycopg2", _on("psycopg2", _in_session)),
    Kind("AsyncConnection-asyncpg", _on("asyncpg", _joined_async)),
    Kind("AsyncConnection-psycopg", _on("psycopg", _joined_async)),
    Kind("AsyncSession-asyncpg", _on("asyncpg", _in_async_session)),
    Kind("AsyncSession-psycopg", _on("psycopg", _in_async_session)),
)
