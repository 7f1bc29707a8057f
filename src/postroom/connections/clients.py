"""Which client library a connection belongs to, and what runs statements on it.

The clients are imported only when one of their connections shows up.
"""

import inspect
from collections.abc import Awaitable, Callable
from functools import cache
from typing import Any, NamedTuple, Protocol

from postroom.errors import NoTransaction, PutRefused
from postroom.statement import Statement


class OwnTransaction(Protocol):
    """A transaction of a store that is not SQL (the memory store); it runs statements itself."""

    @property
    def in_transaction(self) -> bool:
        """Whether it is neither committed nor rolled back yet."""
        ...

    def execute(self, statement: Statement, /) -> int:
        """Run the statement and return how many rows it affected."""
        ...


class SyncClient(NamedTuple):
    """How statements run on the connections of one client."""

    run: Callable[[Any, Statement], int]
    require: Callable[[Any], None]


class AsyncClient(NamedTuple):
    """How statements run on the connections of one asynchronous client."""

    run: Callable[[Any, Statement], Awaitable[int]]
    require: Callable[[Any], Awaitable[None]]


@cache
def sync_client(cls: type) -> SyncClient:
    """Return the client of a connection's class; raises PutRefused if there is none."""
    match _client(cls):
        case "sqlite3":
            from postroom.connections import dbapi

            return SyncClient(dbapi.run, dbapi.require)
        case "sqlalchemy":
            from postroom.connections import sqlalchemy

            return SyncClient(sqlalchemy.run, sqlalchemy.require)
        case "psycopg":
            from postroom.connections import psycopg

            return SyncClient(psycopg.run, psycopg.require)
        case "psycopg2":
            from postroom.connections import psycopg2

            return SyncClient(psycopg2.run, psycopg2.require)
        case "own":
            return SyncClient(_run_own, _require_own)
        case "":
            raise _unsupported(cls)
    raise PutRefused(
        f"{cls.__name__} is asynchronous: use Outbox and await its put, or pass its synchronous "
        "counterpart"
    )


@cache
def async_client(cls: type) -> AsyncClient:
    """Return the client of a connection's class; raises PutRefused if there is none."""
    match _client(cls):
        case "aiosqlite":
            from postroom.connections import asyncio

            return AsyncClient(asyncio.run, asyncio.require)
        case "sqlalchemy.ext.asyncio":
            from postroom.connections import sqlalchemy

            return AsyncClient(sqlalchemy.run_async, sqlalchemy.require_async)
        case "asyncpg":
            from postroom.connections import asyncpg

            return AsyncClient(asyncpg.run, asyncpg.require)
        case "psycopg, awaited":
            from postroom.connections import psycopg

            return AsyncClient(psycopg.run_async, psycopg.require_async)
        case "own":
            return AsyncClient(_run_own_async, _require_own_async)
        case "":
            raise _unsupported(cls)
    raise PutRefused(
        f"{cls.__name__} is synchronous and would block the event loop: use SyncOutbox, in a "
        "thread of its own"
    )


_CLIENTS = {
    "sqlalchemy.ext.asyncio": "begin_nested",
    "sqlalchemy": "begin_nested",
    "sqlite3": "in_transaction",
    "aiosqlite": "in_transaction",
    "asyncpg": "is_in_transaction",
    "psycopg": "transaction",
    "psycopg2": "get_transaction_status",
}
"""The clients, and what only their connections have: pools and factories come from them too."""


def _client(cls: type) -> str:
    """Return which client library a connection's class, or a base of it, comes from."""
    modules = [f"{base.__module__}." for base in cls.__mro__]
    for client, telling in _CLIENTS.items():
        if hasattr(cls, telling) and any(module.startswith(f"{client}.") for module in modules):
            awaited = client == "psycopg" and inspect.iscoroutinefunction(
                getattr(cls, "commit", None)
            )
            return f"{client}, awaited" if awaited else client
    own = hasattr(cls, "in_transaction") and hasattr(cls, "execute")
    return "own" if own and not hasattr(cls, "executemany") else ""


def _unsupported(cls: type) -> PutRefused:
    return PutRefused(
        f"cannot join a transaction of {cls.__module__}.{cls.__qualname__}; pass a connection of "
        "sqlite3, aiosqlite, asyncpg, psycopg or psycopg2, or a SQLAlchemy Connection, Session, "
        "AsyncConnection or AsyncSession"
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
