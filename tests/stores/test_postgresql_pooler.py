"""Everything but wake-ups works behind a pooler in transaction mode."""

import logging
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from uuid import uuid4

import asyncpg
import pytest

from postroom._clock import Clock
from postroom.store import Store
from postroom.stores.postgresql import PostgresqlStore
from postroom.testing.conformance.stage import Run
from postroom.testing.conformance.store_suite import StoreSuite
from tests.postgresql import AWKWARD
from tests.servers import Server, needed, postgresql_servers
from tests.stores.pgbouncer import SESSIONS, pooled
from tests.stores.postgresql import Ground, connected, drop, lease, run


class DeafStore(PostgresqlStore):
    """What the store is behind a pooler."""

    features = replace(PostgresqlStore.features, wakes=False)


@pytest.fixture(scope="module", params=needed(postgresql_servers()[-1:], "PostgreSQL"))
def server(request: pytest.FixtureRequest) -> Server:
    """The newest server."""
    server: Server = request.param
    return server


@pytest.fixture(scope="module")
def url(server: Server) -> Iterator[str]:
    """Its address through a pooler."""
    with pooled(server.url) as url:
        yield url


class TestBehindPooler(StoreSuite):
    """The whole suite."""

    @pytest.fixture(autouse=True)
    async def _schema(self, url: str) -> AsyncIterator[None]:
        self.url = url
        self.schema = AWKWARD + uuid4().hex[:8]
        yield
        await drop(self.url, self.schema)

    def make_store(self, clock: Clock, directory: Path) -> Store:  # noqa: ARG002 - no files
        """Return a store on the schema of this test."""
        return DeafStore(self.url, schema=self.schema, clock=clock)

    @asynccontextmanager
    async def transaction(self, store: Store) -> AsyncIterator[Run]:
        """Begin on a connection of the caller's own."""
        assert isinstance(store, PostgresqlStore)
        connection = await asyncpg.connect(store.dsn, statement_cache_size=0)
        try:
            async with connection.transaction():
                yield lambda statement: run(connection, statement)
        finally:
            await connection.close()


@pytest.fixture
async def ground(url: str) -> AsyncIterator[Ground]:
    """A schema behind the pooler."""
    ground = Ground(url, f"pooled {uuid4().hex[:8]}")
    await (await ground.store()).migrate()
    yield ground
    for store in ground.stores:
        await store.close()
    await drop(url, ground.schema)


async def test_it_is_said_once_that_nothing_is_heard(
    ground: Ground, caplog: pytest.LogCaptureFixture
) -> None:
    store = await ground.store(timed=False)

    with caplog.at_level(logging.WARNING, "postroom.stores.postgresql"):
        for _ in range(3):
            await store.wait(timedelta(milliseconds=5))

    (record,) = [one for one in caplog.records if one.name.startswith("postroom")]
    assert "pooler" in record.getMessage()


async def test_a_direct_connection_is_not_taken_for_a_pooler(
    ground: Ground, server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    store = PostgresqlStore(server.url, schema=ground.schema)
    await store.open()

    await store.wait(timedelta(milliseconds=5))

    assert store._listener is not None
    assert not store._listener.deaf
    assert "pooler" not in caplog.text
    await store.close()


async def test_nothing_stays_behind_in_a_session(ground: Ground, server: Server) -> None:
    """Whoever gets the server's connection next finds it as it was."""
    with pooled(server.url) as untouched:
        before = await state(untouched)
        store = PostgresqlStore(untouched, schema=ground.schema)
        await store.open()
        lanes = await lease(store)

        for _ in range(20):
            await store.read(lanes, limit=9, per_lane=9, max_bytes=999)
            await store.sweep(lanes, limit=9, orphans=True)
            await store.settle(lanes, [], keep=True)
            await store.wait(timedelta(0))
            assert store._reader is not None
            await store._reader.open()
            assert not store._reader.ready

        after = await state(untouched)
        await store.close()

    assert after == before


async def state(url: str) -> set[tuple[object, ...]]:
    """Return what all sessions of that pooler hold: as many transactions as it has, at once."""
    found: set[tuple[object, ...]] = set()
    async with AsyncExitStack() as stack:
        for _ in range(SESSIONS):
            session = await stack.enter_async_context(connected(url))
            await stack.enter_async_context(session.transaction())
            for query in (
                "select name, setting from pg_settings where context = 'user'",
                "select mode from pg_locks where locktype = 'advisory' and pid = pg_backend_pid()",
                "select statement from pg_prepared_statements where name <> ''",
                "select pg_listening_channels()",
            ):
                found |= {tuple(row) for row in await session.fetch(query)}
    return found
