"""Every store keeps the contract."""

import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from pathlib import Path

from postroom._clock import Clock
from postroom.statement import Statement
from postroom.store import Store
from postroom.stores.memory import MemoryStore
from postroom.stores.sqlite import SqliteStore
from postroom.testing.conformance.stage import Run
from postroom.testing.conformance.store_suite import StoreSuite


class TestSqliteStore(StoreSuite):
    """On a file of its own for every test."""

    def make_store(self, clock: Clock, directory: Path) -> Store:
        """Return a store on the file of this test."""
        return SqliteStore(directory / "store.db", clock=clock)

    @asynccontextmanager
    async def transaction(self, store: Store) -> AsyncIterator[Run]:
        """Begin on a connection of the caller's own."""
        assert isinstance(store, SqliteStore)
        with closing(sqlite3.connect(store.path, isolation_level=None)) as connection:
            connection.execute("begin immediate")

            async def run(statement: Statement) -> int:
                cursor = connection.executemany(statement.sql, statement.rows)
                return cursor.rowcount

            yield run
            connection.execute("commit")


class TestMemoryStore(StoreSuite):
    """The rules in plain Python."""

    def make_store(self, clock: Clock, directory: Path) -> Store:
        """Return an empty store; there is no file."""
        del directory
        return MemoryStore(clock=clock)

    @asynccontextmanager
    async def transaction(self, store: Store) -> AsyncIterator[Run]:
        """Begin in the store itself."""
        assert isinstance(store, MemoryStore)
        async with store.begin() as transaction:

            async def run(statement: Statement) -> int:
                return transaction.run(statement)

            yield run
