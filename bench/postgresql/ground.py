"""Where it is measured: a schema of its own for each measurement, filled in SQL."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

import asyncpg

from bench import stage
from postroom.codecs import encode
from postroom.lane import lane_of
from postroom.stores.postgresql import PostgresqlStore

LATER = 4_000_000_000_000_000
"""A moment that does not come, in microseconds since 1970."""
FILL = """
insert into postroom_outbox
    (id, lane, key, version, type, topic, payload, state, blocks, settled_at, due_at)
select '01950000-0000-7000-8000-' || lpad(to_hex(n), 12, '0'), {lane}, {key}, n, $1, $1, $2,
    '{state}', {blocks}, {settled}, {due}
from generate_series(cast($4 as bigint), cast($5 as bigint)) as n
where $3::smallint[] is not null
"""
_CUSTOMER = "'customer-' || lpad((n % {count})::text, 4, '0')"
_LANE = "($3::smallint[])[1 + n % {count}]"


@dataclass(frozen=True, slots=True)
class Ground:
    """A schema in a database, and a folder for what processes leave for each other."""

    url: str
    schema: str
    directory: Path
    payload: bytes = encode(stage.order(0), topic=stage.topic()).payload
    """Of every message that is filled in."""

    def store(self) -> PostgresqlStore:
        """Return a store there, not open."""
        return PostgresqlStore(self.url, schema=self.schema)

    async def connect(self) -> Any:
        """Return a connection that finds the tables without their schema."""
        return await asyncpg.connect(self.url, server_settings={"search_path": self.schema})

    @asynccontextmanager
    async def unprepared(self) -> AsyncIterator[Any]:
        """Give a connection that prepares nothing by name, like those of the store."""
        connection = await asyncpg.connect(self.url, statement_cache_size=0)
        try:
            yield connection
        finally:
            await connection.close()

    @asynccontextmanager
    async def connected(self) -> AsyncIterator[Any]:
        """Give a connection that finds the tables without their schema."""
        connection = await self.connect()
        try:
            yield connection
        finally:
            await connection.close()

    async def sql(self, *statements: str) -> None:
        """Run statements, each by itself."""
        async with self.connected() as connection:
            for statement in statements:
                await connection.execute(statement)

    async def value(self, query: str, *values: object) -> Any:
        """Return the first column of the first row."""
        async with self.connected() as connection:
            return await connection.fetchval(query, *values)

    async def add(self, count: int, first: int = 0, **columns: str) -> None:
        """Add messages: customers and lanes evenly mixed, unless the columns say else."""
        given = {
            "lane": _LANE.format(count=stage.CUSTOMERS),
            "key": _CUSTOMER.format(count=stage.CUSTOMERS),
            "state": "ready",
            "blocks": "false",
            "settled": "null",
            "due": "null",
            **columns,
        }
        lanes = [lane_of(stage.customer(number), "") for number in range(stage.CUSTOMERS)]
        async with self.connected() as connection:
            await connection.execute(
                FILL.format(**given), stage.topic(), self.payload, lanes, first, first + count - 1
            )

    async def settled_down(self) -> None:
        """Write out what was filled in, so that what is measured next does not wait for it."""
        async with self.connected() as connection:
            try:
                await connection.execute("checkpoint")
            except asyncpg.InsufficientPrivilegeError:
                return

    async def emptied(self) -> None:
        """Take all messages away."""
        await self.sql("truncate postroom_outbox")


@contextmanager
def prepared(url: str, name: str, directory: Path) -> Iterator[Ground]:
    """Give a new schema with the tables, and drop it afterwards."""
    ground = Ground(url, f"postroom_bench_{name}_{uuid4().hex[:8]}", directory)
    asyncio.run(_migrate(ground))
    try:
        yield ground
    finally:
        asyncio.run(ground.sql(f"drop schema {ground.schema} cascade"))


async def _migrate(ground: Ground) -> None:
    store = ground.store()
    await store.open()
    await store.migrate()
    await store.close()
