"""A schema of its own in a PostgreSQL database, for a test, and how callers connect to it."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, cast
from uuid import uuid4

import psycopg
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from postroom.stores.postgresql import PostgresqlStore

AWKWARD = 'It\'s "a" schema: %s, {0} {conditions} '
"""A legal name that breaks whatever is put together without quoting."""


@dataclass(frozen=True, slots=True)
class Ground:
    """A schema with the tables of Postroom; removed when the test is over."""

    url: str
    schema: str
    watcher: psycopg.Connection[Any]
    """Somebody else's connection: sees only what is committed."""

    @property
    def store(self) -> PostgresqlStore:
        """The store, not opened: a put needs nothing but its SQL."""
        return PostgresqlStore(self.url, schema=self.schema)

    @property
    def path(self) -> str:
        """The search path on which the application finds its own tables."""
        return '"{}"'.format(self.schema.replace('"', '""'))

    @property
    def options(self) -> str:
        """The same as what libpq calls `options`."""
        return "-c search_path=" + self.path.replace("\\", "\\\\").replace(" ", "\\ ")

    def query(self, sql: str, *values: object) -> list[Any]:
        """Ask on the watcher's connection; values are written as `%s`."""
        cursor = self.watcher.execute(cast("Any", sql), values or None)
        return cursor.fetchall() if cursor.description else []

    def engine(self, driver: str, **options: Any) -> sa.Engine:
        """Return an engine on psycopg or psycopg2."""
        return sa.create_engine(
            self._address(driver), connect_args={"options": self.options}, **options
        )

    def async_engine(self, driver: str, **options: Any) -> AsyncEngine:
        """Return an engine on asyncpg or psycopg."""
        return create_async_engine(
            self._address(driver),
            connect_args={"server_settings": {"search_path": self.path}}
            if driver == "asyncpg"
            else {"options": self.options},
            **options,
        )

    def _address(self, driver: str) -> str:
        return self.url.replace("postgresql:", f"postgresql+{driver}:", 1)


@contextmanager
def ground(url: str, *tables: str) -> Iterator[Ground]:
    """Make the schema with these tables beside those of Postroom, and remove it at the end."""
    schema = AWKWARD + uuid4().hex[:8]
    with psycopg.connect(url, autocommit=True, options="-c client_min_messages=warning") as watcher:
        made = Ground(url, schema, watcher)
        try:
            for sql in (made.store.schema(), f"set search_path = {made.path}", *tables):
                watcher.execute(cast("Any", sql))
            yield made
        finally:
            watcher.execute(cast("Any", f"drop schema if exists {made.path} cascade"))
