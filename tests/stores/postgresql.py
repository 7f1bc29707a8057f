"""PostgreSQL for tests: a schema of its own for every test, with a name that needs quoting."""

import asyncio
import time
from collections.abc import AsyncIterator, Collection, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import asyncpg

from postroom.connections.paramstyle import bind
from postroom.lane import Lane
from postroom.message import Entry, Message
from postroom.outcome import Sent, Settled
from postroom.statement import Statement
from postroom.store import Addressed, Writer
from postroom.stores.postgresql import PostgresqlStore
from postroom.stores.postgresql.database import Patience
from postroom.stores.postgresql.marks import Marks
from postroom.stores.postgresql.names import identifier
from postroom.stores.postgresql.sweeping import Budget, Progress
from postroom.testing.clock import ManualClock


async def drop(url: str, schema: str) -> None:
    """Remove a schema and everything in it."""
    connection = await asyncpg.connect(url)
    try:
        await connection.execute(f"drop schema if exists {identifier(schema)} cascade")
    finally:
        await connection.close()


@asynccontextmanager
async def connected(url: str) -> AsyncIterator[Any]:
    """Give a connection of the caller's own."""
    connection = await asyncpg.connect(url, statement_cache_size=0)
    try:
        yield connection
    finally:
        await connection.close()


async def run(connection: Any, statement: Statement) -> int:
    """Run a statement as a caller would; return the affected rows, summed."""
    sql, rows = bind(statement, "numeric_dollar")
    affected = 0
    for row in rows:
        status = await connection.execute(sql, *row)
        affected += int(status.rpartition(" ")[2])
    return affected


async def put(connection: Any, store: Writer, *messages: Message, route: str = "default") -> int:
    """Insert messages in the transaction of that connection."""
    return await run(connection, store.insert([Addressed(route, one) for one in messages]))


LEASE = timedelta(seconds=15)
RENEWAL = timedelta(seconds=5)
SECOND = timedelta(seconds=1)
ALL = 1_000_000

Plant = tuple[str, str, str]
"""A query, a part of it, and what stands there instead."""


@dataclass(frozen=True, slots=True)
class Ground:
    """A schema with tables, stores on it, and the short words of the tests."""

    url: str
    schema: str
    clock: ManualClock = field(default_factory=ManualClock)
    stores: list[PostgresqlStore] = field(default_factory=list)

    async def store(
        self,
        *plants: Plant,
        impatient: bool = False,
        timed: bool = True,
        url: str | None = None,
    ) -> PostgresqlStore:
        """Return an open store, as a process of its own has it; with mistakes planted in it.

        It looks for a higher mark at every read after the clock moved on. `timed` stores take
        their time from the clock of the test, the others from the database.
        """
        patience = Patience(
            connect=SECOND if impatient else 20 * SECOND,
            statement=SECOND if impatient else 20 * SECOND,
        )
        store = PostgresqlStore(
            url or self.url,
            schema=self.schema,
            clock=self.clock if timed else None,
            patience=patience,
        )
        store._marks = Marks(self.clock.elapsed)
        store._progress = Progress(
            keys=Budget(self.clock.elapsed), below=Budget(self.clock.elapsed)
        )
        store._sql = store._database._sql = planted(store, plants)
        self.stores.append(store)
        await store.open()
        return store

    @asynccontextmanager
    async def connected(self) -> AsyncIterator[Any]:
        """Give a connection that finds the tables without their schema."""
        async with connected(self.url) as connection:
            await connection.execute(f"set search_path = {identifier(self.schema)}")
            yield connection

    async def put(self, *messages: Message) -> None:
        """Commit messages from a connection of the caller's."""
        async with self.connected() as connection:
            await put(connection, self.stores[0], *messages)

    async def sql(self, text: str, *values: object) -> list[Any]:
        """Run a statement of the test's own."""
        async with self.connected() as connection:
            rows: list[Any] = await connection.fetch(text, *values)
            return rows

    async def look(self, store: PostgresqlStore, lanes: Sequence[Lane]) -> list[Entry]:
        """Read after a pause, so that marks rise as far as they may."""
        self.clock.advance(1)
        return list(await store.read(lanes, limit=ALL, per_lane=ALL, max_bytes=2**40))

    async def raised(
        self, store: PostgresqlStore, lanes: Sequence[Lane], *, within: float = 20
    ) -> bool:
        """Let the marks rise as far as they may; return whether they could before the time is up.

        Transactions of others, in any database of the server, hold them back as well.
        """
        await self.proposed(store, lanes)
        return await self.ripened(store, lanes, within=within)

    async def proposed(self, store: PostgresqlStore, lanes: Sequence[Lane]) -> None:
        """Let the store find out how far the marks could rise."""
        store._marks._stirred = True
        store._marks._candidate = None
        await self.look(store, lanes)

    async def ripened(
        self, store: PostgresqlStore, lanes: Sequence[Lane], *, within: float = 20
    ) -> bool:
        """Let the marks rise as far as was proposed; return whether they could."""
        deadline = time.monotonic() + within
        candidate = store._marks._candidate
        while store._marks._candidate is candidate:
            if time.monotonic() > deadline:
                return False
            await self.look(store, lanes)
        return True


def planted(store: PostgresqlStore, plants: Collection[Plant]) -> dict[str, str]:
    """Return the queries of the store with these mistakes in them."""
    queries = dict(store._sql)
    for name, part, instead in plants:
        assert part in queries[name], f"{name} has changed: plant the mistake anew"
        queries[name] = queries[name].replace(part, instead)
    return queries


async def lease(store: PostgresqlStore, relay: str = "relay") -> list[Lane]:
    """Renew with the usual times and return the owned lanes."""
    lanes = await store.lease(relay, routes={"default": True}, lease=LEASE, renewal=RENEWAL)
    return list(lanes)


def message(message_id: str, key: str | None = "k") -> Message:
    """Return a message that is told by its id."""
    return Message(id=message_id, key=key, type="test.happened", topic="test", payload=b"{}")


def sent(*entries: Entry) -> list[Settled]:
    """Settle as confirmed."""
    return [Settled(entry, Sent()) for entry in entries]


def ids(entries: Sequence[Entry]) -> list[str]:
    """Return the ids in order."""
    return [entry.message.id for entry in entries]


async def waiting(ground: Ground, connection: Any) -> None:
    """Return when somebody waits for a lock that this connection holds."""
    pid = connection.get_server_pid()
    while not await ground.sql(
        "select from pg_stat_activity where $1 = any (pg_blocking_pids(pid))", pid
    ):
        await asyncio.sleep(0)


async def expire(ground: Ground, store: PostgresqlStore, relay: str) -> list[Lane]:
    """Let the lease of everybody else run out, and take over as `relay`."""
    ground.clock.advance(LEASE + SECOND)
    await lease(store, relay)
    ground.clock.advance(RENEWAL)
    return await lease(store, relay)
