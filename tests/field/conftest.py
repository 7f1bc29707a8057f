"""A small shop in a database of its own, and processes that are killed while they work on it."""

import asyncio
import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
import pytest

from postroom.connections import sqlite3_transactions
from postroom.stores.sqlite import SqliteStore
from tests.postgresql import Ground, ground
from tests.servers import needed, postgresql_servers


@dataclass(frozen=True, slots=True)
class Shop:
    """The database of a shop: a store and a table of orders."""

    store: Any

    @property
    def address(self) -> str:
        """How a process is told where the database is."""
        return str(self.store.path)

    @contextmanager
    def begin(self) -> Iterator[Any]:
        """Give a connection in a transaction that is committed at the end."""
        begin = sqlite3_transactions(self.store.path)
        with begin() as connection:
            yield connection
        begin.close()

    def query(self, sql: str) -> list[tuple[Any, ...]]:
        """Run a query on a connection of its own."""
        with closing(sqlite3.connect(self.store.path)) as connection:
            return connection.execute(sql).fetchall()

    def orders(self) -> set[str]:
        """Return the committed orders, or effects."""
        return {row[0] for row in self.query("select id from orders")}

    def announced(self) -> set[str]:
        """Return the orders whose messages are committed."""
        return {row[0] for row in self.query("select key from postroom_outbox")}

    def seen(self) -> int:
        """Count the committed rows of the inbox."""
        return len(self.query("select consumer from postroom_inbox"))


@dataclass(frozen=True, slots=True)
class PostgresqlShop(Shop):
    """A schema of a shop in PostgreSQL."""

    place: Ground

    @property
    def address(self) -> str:
        """How a process is told where the database is."""
        return f"{self.place.url}#{self.place.schema}"

    @contextmanager
    def begin(self) -> Iterator[Any]:
        """Give a connection in a transaction that is committed at the end."""
        with (
            psycopg.connect(self.place.url, options=self.place.options) as connection,
            connection.transaction(),
        ):
            yield connection

    def query(self, sql: str) -> list[tuple[Any, ...]]:
        """Run a query on a connection of its own."""
        return self.place.query(sql)


SERVERS: list[Any] = list(needed(postgresql_servers(), "PostgreSQL"))


@pytest.fixture(params=SERVERS)
def postgresql_shop(request: pytest.FixtureRequest) -> Iterator[PostgresqlShop]:
    """Return a shop in a schema of its own, on every version of the server."""
    with ground(request.param.url, "create table orders (id text primary key)") as place:
        yield PostgresqlShop(place.store, place)


@pytest.fixture(params=[pytest.param(None, id="sqlite"), *SERVERS])
def shop(request: pytest.FixtureRequest) -> Iterator[Shop]:
    """Return a shop, once on every kind of database."""
    if request.param is None:
        yield request.getfixturevalue("small_shop")
        return
    with ground(request.param.url, "create table orders (id text primary key)") as place:
        yield PostgresqlShop(place.store, place)


@pytest.fixture
def small_shop(tmp_path: Path) -> Shop:
    store = SqliteStore(tmp_path / "shop.db")

    async def prepare() -> None:
        await store.open()
        await store.migrate()
        await store.close()

    # In a thread, because the tests' own event loop lives in this one.
    with ThreadPoolExecutor(max_workers=1) as thread:
        thread.submit(asyncio.run, prepare()).result()
    with closing(sqlite3.connect(store.path)) as connection:
        connection.execute("create table orders (id text primary key)")
    return Shop(store)


Kill = Callable[..., None]


@pytest.fixture
def killed_at(request: pytest.FixtureRequest) -> Kill:
    """Return a function that starts a process and kills it when it has reached a point."""

    def kill(
        kind: str, work: str, point: str, *, stop_at: str | None = None, times: int = 1
    ) -> None:
        on_postgresql = "postgresql_shop" in request.fixturenames
        shop: Shop = request.getfixturevalue("postgresql_shop" if on_postgresql else "small_shop")
        arguments = [shop.address, kind, work, stop_at or point]
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.field.stopping", *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=Path(__file__).parents[2],
        )
        with process:
            assert process.stdout is not None
            for line in process.stdout:
                times -= line.strip() == point
                if times == 0:
                    break
            os.kill(process.pid, signal.SIGKILL)
        assert process.returncode == -signal.SIGKILL

    return kill
