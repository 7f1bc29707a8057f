"""PostgreSQL for tests: a schema of its own for every test, with a name that needs quoting."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import asyncpg

from postroom.connections.paramstyle import bind
from postroom.message import Message
from postroom.statement import Statement
from postroom.store import Addressed, Writer
from postroom.stores.postgresql.names import identifier

AWKWARD = "It's \"a\" schema: %s, {0} "
"""A legal name that breaks whatever is put together without quoting."""


async def drop(url: str, schema: str) -> None:
    """Remove a schema and everything in it."""
    connection = await asyncpg.connect(url)
    try:
        await connection.execute(
            f"set client_min_messages = warning; drop schema if exists {identifier(schema)} cascade"
        )
    finally:
        await connection.close()


@asynccontextmanager
async def connected(url: str) -> AsyncIterator[Any]:
    """Give a connection of the caller's own."""
    connection = await asyncpg.connect(url)
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
