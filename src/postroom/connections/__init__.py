"""Run a statement on the connection that the caller already holds; never commit, never connect.

The clients are imported only when one of their connections shows up.
"""

from collections.abc import Awaitable, Callable
from functools import cache
from typing import Any, Protocol

from postroom.connections.asyncio import (
    AsyncSqliteConnection,
    aiosqlite_transactions,
)
from postroom.connections.dbapi import SqliteConnection, sqlite3_transactions
from postroom.connections.outages import explain, outage
from postroom.errors import NoTransaction, PutRefused
from postroom.statement import Statement

__all__ = [
    "AsyncConnection",
    "SyncConnection",
    "aiosqlite_transactions",
    "outage",
    "require_transaction",
    "require_transaction_async",
    "run",
    "run_async",
    "sqlite3_transactions",
]


class OwnTransaction(Protocol):
    """A transaction of a store that is not SQL (the memory store); it runs statements itself."""

    @property
    def in_transaction(self) -> bool:
        """Whether it is neither committed nor rolled back yet."""
        ...

    def execute(self, statement: Statement, /) -> int:
        """Run the statement and return how many rows it affected."""
        ...


class SqlalchemyConnection(Protocol):
    """A SQLAlchemy `Connection`, `Session` or `scoped_session`."""

    def begin_nested(self) -> object:
        """Open a savepoint."""
        ...

    def commit(self) -> None:
        """Commit; tells it from its async counterpart."""
        ...


class AsyncSqlalchemyConnection(Protocol):
    """A SQLAlchemy `AsyncConnection`, `AsyncSession` or `async_scoped_session`."""

    def begin_nested(self) -> object:
        """Open a savepoint."""
        ...

    def commit(self) -> Awaitable[None]:
        """Commit; tells it from its sync counterpart."""
        ...


SyncConnection = SqliteConnection | SqlalchemyConnection | OwnTransaction
"""What `SyncOutbox.put` joins: sqlite3, SQLAlchemy `Connection` and `Session`, memory."""

AsyncConnection = AsyncSqliteConnection | AsyncSqlalchemyConnection | OwnTransaction
"""What `Outbox.put` joins: aiosqlite, SQLAlchemy `AsyncConnection` and `AsyncSession`, memory."""


def run(connection: SyncConnection, statement: Statement) -> int:
    """Run the statement in the connection's transaction; return the rows affected, summed.

    All rows of a statement are written, or none of them.
    """
    try:
        return _sync(type(connection))[0](connection, statement)
    except Exception as error:
        explain(error)
        raise


async def run_async(connection: AsyncConnection, statement: Statement) -> int:
    """Run the statement in the connection's transaction; return the rows affected, summed.

    All rows of a statement are written, or none of them.
    """
    try:
        return await _async(type(connection))[0](connection, statement)
    except Exception as error:
        explain(error)
        raise


def require_transaction(connection: SyncConnection) -> None:
    """Raise `NoTransaction`, with the cure, unless a transaction is open that can be joined."""
    _sync(type(connection))[1](connection)


async def require_transaction_async(connection: AsyncConnection) -> None:
    """Raise `NoTransaction`, with the cure, unless a transaction is open that can be joined."""
    await _async(type(connection))[1](connection)


_Sync = tuple[Callable[[Any, Statement], int], Callable[[Any], None]]
_Async = tuple[Callable[[Any, Statement], Awaitable[int]], Callable[[Any], Awaitable[None]]]


@cache
def _sync(cls: type) -> _Sync:
    match _client(cls):
        case "sqlite3":
            from postroom.connections import dbapi  # noqa: PLC0415

            return dbapi.run, dbapi.require
        case "sqlalchemy":
            from postroom.connections import sqlalchemy  # noqa: PLC0415 - only where it is used

            return sqlalchemy.run, sqlalchemy.require
        case "own":
            return _run_own, _require_own
        case "aiosqlite" | "sqlalchemy.ext.asyncio":
            raise PutRefused(
                f"{cls.__name__} is asynchronous: use Outbox and await its put, or pass its "
                "synchronous counterpart"
            )
    raise _unsupported(cls)


@cache
def _async(cls: type) -> _Async:
    match _client(cls):
        case "aiosqlite":
            from postroom.connections import asyncio  # noqa: PLC0415

            return asyncio.run, asyncio.require
        case "sqlalchemy.ext.asyncio":
            from postroom.connections import sqlalchemy  # noqa: PLC0415 - only where it is used

            return sqlalchemy.run_async, sqlalchemy.require_async
        case "own":
            return _run_own_async, _require_own_async
        case "sqlite3" | "sqlalchemy":
            raise PutRefused(
                f"{cls.__name__} is synchronous and would block the event loop: use SyncOutbox, "
                "in a thread of its own"
            )
    raise _unsupported(cls)


_CLIENTS = ("sqlalchemy.ext.asyncio", "sqlalchemy", "sqlite3", "aiosqlite")


def _client(cls: type) -> str:
    """Return which client library a connection's class, or a base of it, comes from."""
    # Engines and session factories come from them too, but have neither of these.
    if not hasattr(cls, "in_transaction") and not hasattr(cls, "begin_nested"):
        return ""
    modules = [f"{base.__module__}." for base in cls.__mro__]
    for client in _CLIENTS:
        if any(module.startswith(f"{client}.") for module in modules):
            return client
    return "own" if hasattr(cls, "execute") and not hasattr(cls, "executemany") else ""


def _unsupported(cls: type) -> PutRefused:
    return PutRefused(
        f"cannot join a transaction of {cls.__module__}.{cls.__qualname__}; pass a connection of "
        "sqlite3 or aiosqlite, or a SQLAlchemy Connection, Session, AsyncConnection or AsyncSession"
    )


def _run_own(connection: OwnTransaction, statement: Statement) -> int:
    return connection.execute(statement)


async def _run_own_async(connection: OwnTransaction, statement: Statement) -> int:
    return connection.execute(statement)


def _require_own(connection: OwnTransaction) -> None:
    if not connection.in_transaction:
        raise NoTransaction(
            "this transaction is over or not begun; use `with store.begin() as connection:`"
        )


async def _require_own_async(connection: OwnTransaction) -> None:
    _require_own(connection)
