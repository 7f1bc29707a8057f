"""A database of the shop in a schema of a PostgreSQL database."""

from collections.abc import Iterator, Sequence
from contextlib import AbstractAsyncContextManager, contextmanager
from datetime import timedelta
from importlib.util import find_spec
from typing import Any

import asyncpg

from postroom.lab.database import Hands, Rows, Till, Write
from postroom.lab.databases.asyncpg import (
    LOST,
    AsyncpgHands,
    AsyncpgTill,
    connect,
    numbered,
    translated,
)
from postroom.lab.databases.line import Line
from postroom.stores.postgresql import PostgresqlStore
from postroom.stores.postgresql.database import Patience

PATIENCE = timedelta(seconds=1)
LOCK_PATIENCE = "1500ms"
"""How long writers wait for a row that another one has locked."""
IDLE = "5s"
"""How long the server waits for a consumer in the middle of a transaction before it ends it."""


def psycopg_installed() -> bool:
    """Say whether half of the shop can work with psycopg."""
    return find_spec("psycopg") is not None and find_spec("psycopg_pool") is not None


class PostgresqlDatabase:
    """One schema. Nothing is kept in a session, so a pooler may stand between."""

    numbered = "bigserial PRIMARY KEY"

    def __init__(self, address: str, schema: str, *, name: str, line: Line) -> None:
        """Name the schema; nothing is connected."""
        self.name = name
        self.schema = schema
        self._address = address
        self._line = line
        self._reader: Any = None
        self._begin = (
            f"BEGIN ISOLATION LEVEL READ COMMITTED; SET LOCAL search_path = {schema};"
            f" SET LOCAL lock_timeout = '{LOCK_PATIENCE}'"
        )

    def create(self, tables: str, rows: Sequence[Write] = ()) -> None:
        """Make tables, and put rows into them; the schema is there."""
        with translated():
            self._line.run(self._create(tables, rows))

    def till(self, number: int = 0) -> Till:
        """Return a connection to take orders on: of asyncpg, or, every second one, of psycopg."""
        store = PostgresqlStore(self._address, schema=self.schema)
        if number % 2 and psycopg_installed():
            from postroom.lab.databases.psycopg import PsycopgTill  # noqa: PLC0415 - an extra

            return PsycopgTill(self._address, self._begin, store)
        return AsyncpgTill(self._address, self._begin, store, self._line)

    def hands(self) -> AbstractAsyncContextManager[Hands]:
        """Give a consumer's way to the database: billing works with psycopg."""
        local = self._begin.partition(";")[2]
        local += f"; SET LOCAL idle_in_transaction_session_timeout = '{IDLE}'"
        if self.name == "billing" and psycopg_installed():
            from postroom.lab.databases.psycopg import psycopg_hands  # noqa: PLC0415 - an extra

            return psycopg_hands(self._address, local)
        return AsyncpgHands.opened(self._address, local)

    def store(self, *, patience: timedelta = PATIENCE) -> PostgresqlStore:
        """Return the product's store in this schema, not opened."""
        return PostgresqlStore(
            self._address,
            schema=self.schema,
            patience=Patience(connect=patience, statement=patience),
        )

    def at_once(self, sql: str, *values: object) -> int:
        """Run a statement in a transaction of its own; return how many rows it affected."""
        with translated():
            status = self._line.run(self._on_reader("execute", numbered(sql), values))
        count: str = status.rpartition(" ")[2]
        return int(count)

    def aside(self) -> "PostgresqlDatabase":
        """Return itself: transactions do not keep each other out."""
        return self

    def read(self, sql: str, *values: object) -> Rows:
        """Return the rows of a query, for the judge."""
        with translated():
            rows: Rows = self._line.run(self._on_reader("fetch", numbered(sql), values))
            return rows

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep every writer out for the length of a block; readers pass.

        Every transaction of the shop writes to one of these tables, and none to both: nobody can
        wait for us while we wait for them.
        """
        till = self.till()
        till.begin()
        till.rows("SET LOCAL lock_timeout = '10s'")
        till.rows("LOCK TABLE postroom_outbox, postroom_inbox IN EXCLUSIVE MODE")
        yield
        till.rollback()
        till.close()

    def remove(self) -> None:
        """Drop the schema, and forget the connection."""
        try:
            self.read(f"DROP SCHEMA IF EXISTS {self.schema} CASCADE")
        finally:
            self.close()

    def close(self) -> None:
        """Disconnect."""
        reader, self._reader = self._reader, None
        if reader is not None:
            self._line.run(_terminated(reader))

    async def _create(self, tables: str, rows: Sequence[Write]) -> None:
        reader = await self._connected()
        async with reader.transaction():
            await reader.execute(tables)
            for sql, values in rows:
                await reader.execute(numbered(sql), *values)

    async def _on_reader(self, what: str, sql: str, values: Sequence[object]) -> Any:
        """Call the method of the connection; one that was lost is tried again, once."""
        reader = await self._connected()
        try:
            return await getattr(reader, what)(sql, *values)
        except (*LOST, asyncpg.OperatorInterventionError):
            reader.terminate()
        reader = await self._connected()
        return await getattr(reader, what)(sql, *values)

    async def _connected(self) -> Any:
        if self._reader is None or self._reader.is_closed():
            self._reader = await connect(
                self._address, server_settings={"search_path": self.schema}
            )
        return self._reader


async def _terminated(connection: Any) -> None:
    connection.terminate()
