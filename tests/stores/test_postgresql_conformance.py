"""The PostgreSQL store keeps the contract, on every version of the server that is here."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from uuid import uuid4

import asyncpg
import pytest

from postroom._clock import Clock
from postroom.store import Store
from postroom.stores.postgresql import PostgresqlStore
from postroom.stores.postgresql.sweeping import Budget, Progress
from postroom.testing.conformance.stage import Run
from postroom.testing.conformance.store_suite import StoreSuite
from tests.postgresql import AWKWARD
from tests.servers import Server, needed, postgresql_servers
from tests.stores.postgresql import drop, run


class TestPostgresqlStore(StoreSuite):
    """In a schema of its own for every test."""

    looks_twice = True

    @pytest.fixture(autouse=True, params=needed(postgresql_servers(), "PostgreSQL"))
    async def _schema(self, request: pytest.FixtureRequest) -> AsyncIterator[None]:
        server: Server = request.param
        self.url = server.url
        self.schema = AWKWARD + uuid4().hex[:8]
        yield
        await drop(self.url, self.schema)

    def make_store(self, clock: Clock, directory: Path) -> Store:  # noqa: ARG002 - no files
        """Return a store on the schema of this test."""
        store = PostgresqlStore(self.url, schema=self.schema, clock=clock)
        # A search that a busy machine makes slow would else be put off: see Budget.
        store._progress = Progress(keys=Budget(clock.elapsed), below=Budget(clock.elapsed))
        return store

    @asynccontextmanager
    async def transaction(self, store: Store) -> AsyncIterator[Run]:
        """Begin on a connection of the caller's own."""
        assert isinstance(store, PostgresqlStore)
        connection = await asyncpg.connect(store.dsn)
        try:
            async with connection.transaction():
                yield lambda statement: run(connection, statement)
        finally:
            await connection.close()
