"""Connections of aiosqlite."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol
from weakref import WeakKeyDictionary

from postroom.connections.dbapi import BATCH, CLOSED, NOT_BEGUN, Cursor
from postroom.errors import NoTransaction
from postroom.statement import Statement

if TYPE_CHECKING:
    import aiosqlite


class AsyncSqliteConnection(Protocol):
    """An open `aiosqlite.Connection`."""

    @property
    def in_transaction(self) -> bool:
        """Whether a transaction is open."""
        ...

    def execute(self, sql: str, parameters: Any = ...) -> Awaitable[Cursor]:
        """Run a statement."""
        ...

    def executemany(self, sql: str, parameters: Any) -> Awaitable[Cursor]:
        """Run a statement once for each set of parameters."""
        ...


async def run(connection: AsyncSqliteConnection, statement: Statement) -> int:
    """Run the statement; SQLite understands `:names` itself."""
    rows = statement.rows
    if len(rows) == 1:
        return (await connection.execute(statement.sql, rows[0])).rowcount
    if not rows:
        return 0
    await connection.execute(f"SAVEPOINT {BATCH}")
    try:
        affected = (await connection.executemany(statement.sql, rows)).rowcount
    except BaseException:
        # A full disk, for one, has rolled the whole transaction back already.
        if connection.in_transaction:
            await connection.execute(f"ROLLBACK TO {BATCH}")
            await connection.execute(f"RELEASE {BATCH}")
        raise
    await connection.execute(f"RELEASE {BATCH}")
    return affected


async def require(connection: AsyncSqliteConnection) -> None:
    """Raise `NoTransaction` unless a transaction is open."""
    try:
        begun = connection.in_transaction
    except ValueError as error:
        raise NoTransaction(CLOSED) from error
    if not begun:
        raise NoTransaction(NOT_BEGUN.replace("connection.execute", "await connection.execute"))


def aiosqlite_transactions(
    path: str | PathLike[str], **arguments: Any
) -> "Callable[[], AbstractAsyncContextManager[aiosqlite.Connection]]":
    """Return a function that opens a transaction on the database file, for `async with`.

    Each `async with begin() as connection:` commits at the end and rolls back on an error. It
    begins with BEGIN IMMEDIATE, so that two writers wait for each other at the beginning and not
    in the middle. Every transaction has a connection of its own, closed with it. `arguments` go
    to `aiosqlite.connect`.
    """
    import aiosqlite

    turns: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Lock] = WeakKeyDictionary()
    owners: WeakKeyDictionary[asyncio.Lock, asyncio.Task[object] | None] = WeakKeyDictionary()

    @asynccontextmanager
    async def begin() -> AsyncIterator[aiosqlite.Connection]:
        # One writes at a time: waiting here is fair and quick, waiting in SQLite is neither.
        # Whoever begins twice in one task is told by SQLite.
        turn = turns.setdefault(asyncio.get_running_loop(), asyncio.Lock())
        me = asyncio.current_task()
        queued = owners.get(turn) is not me
        if queued:
            await turn.acquire()
            owners[turn] = me
        try:
            async with transaction() as connection:
                yield connection
        finally:
            if queued:
                owners[turn] = None
                turn.release()

    @asynccontextmanager
    async def transaction() -> AsyncIterator[aiosqlite.Connection]:
        async with aiosqlite.connect(Path(path), isolation_level=None, **arguments) as connection:
            await connection.execute("BEGIN IMMEDIATE")
            try:
                yield connection
                await connection.execute("COMMIT")
            except BaseException:
                if connection.in_transaction:
                    await connection.execute("ROLLBACK")
                raise

    return begin
