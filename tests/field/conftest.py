"""A small shop in one database file, and processes that are killed while they work on it."""

import asyncio
import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from postroom.stores.sqlite import SqliteStore


@dataclass(frozen=True, slots=True)
class Shop:
    """The database of a shop: a store and a table of orders."""

    store: SqliteStore

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
def killed_at(small_shop: Shop) -> Kill:
    """Return a function that starts a process and kills it when it has reached a point."""

    def kill(
        kind: str, work: str, point: str, *, stop_at: str | None = None, times: int = 1
    ) -> None:
        script = Path(__file__).with_name("stopping.py")
        process = subprocess.Popen(
            [sys.executable, script, small_shop.store.path, kind, work, stop_at or point],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
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
