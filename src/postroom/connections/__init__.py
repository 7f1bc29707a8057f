"""Run a statement on the connection that the caller already holds; never commit, never connect."""

from collections.abc import Awaitable
from typing import Protocol

from postroom.connections.asyncio import AsyncSqliteConnection, aiosqlite_transactions
from postroom.connections.asyncpg import AsyncpgConnection, asyncpg_transactions
from postroom.connections.clients import OwnTransaction, async_client, sync_client
from postroom.connections.dbapi import SqliteConnection, sqlite3_transactions
from postroom.connections.outages import conflict, explain, outage
from postroom.connections.psycopg import (
    AsyncPsycopgConnection,
    PsycopgConnection,
    psycopg_transactions,
)
from postroom.connections.psycopg2 import Psycopg2Connection, psycopg2_transactions
from postroom.statement import Statement

__all__ = [
    "AsyncConnection",
    "SyncConnection",
    "aiosqlite_transactions",
    "asyncpg_transactions",
    "conflict",
    "outage",
    "psycopg2_transactions",
    "psycopg_transactions",
    "require_transaction",
    "require_transaction_async",
    "run",
    "run_async",
    "sqlite3_transactions",
]


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


SyncConnection = (
    SqliteConnection
    | PsycopgConnection
    | Psycopg2Connection
    | SqlalchemyConnection
    | OwnTransaction
)
"""What `SyncOutbox.put` joins: sqlite3, psycopg, psycopg2, SQLAlchemy `Connection`, `Session`."""

AsyncConnection = (
    AsyncSqliteConnection
    | AsyncpgConnection
    | AsyncPsycopgConnection
    | AsyncSqlalchemyConnection
    | OwnTransaction
)
"""What `Outbox.put` joins: aiosqlite, asyncpg, psycopg, `AsyncConnection`, `AsyncSession`."""


def run(connection: SyncConnection, statement: Statement) -> int:
    """Run the statement in the connection's transaction; return the rows affected, summed.

    All rows of a statement are written, or none of them. Where the transaction had failed before,
    nothing is written and NoTransaction is raised.
    """
    client = sync_client(type(connection))
    try:
        return client.run(connection, statement)
    except Exception as error:
        explain(error, statement)
        raise


async def run_async(connection: AsyncConnection, statement: Statement) -> int:
    """Run the statement in the connection's transaction; return the rows affected, summed.

    All rows of a statement are written, or none of them. Where the transaction had failed before,
    nothing is written and NoTransaction is raised.
    """
    client = async_client(type(connection))
    try:
        return await client.run(connection, statement)
    except Exception as error:
        explain(error, statement)
        raise


def require_transaction(connection: SyncConnection) -> None:
    """Raise `NoTransaction`, with the cure, unless a transaction is open that can be joined."""
    sync_client(type(connection)).require(connection)


def require_transaction_async(connection: AsyncConnection) -> Awaitable[None]:
    """Raise `NoTransaction`, with the cure, unless a transaction is open that can be joined."""
    return async_client(type(connection)).require(connection)
