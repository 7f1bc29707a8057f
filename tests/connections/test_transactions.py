"""Ready-made transactions for callers without SQLAlchemy."""

import sqlite3
from contextlib import suppress
from pathlib import Path
from typing import Any

import aiosqlite
import pytest

from postroom.connections import aiosqlite_transactions, sqlite3_transactions

WRITE = "insert into orders (id) values (?)"


def test_sqlite3_commits_at_the_end(path: Path, watcher: Any) -> None:
    begin = sqlite3_transactions(path)
    with begin() as connection:
        connection.execute(WRITE, ["a"])
        inside = watcher.orders()
    begin.close()

    assert inside == []
    assert watcher.orders() == ["a"]


def test_sqlite3_rolls_back_on_an_error(path: Path, watcher: Any) -> None:
    begin = sqlite3_transactions(path)
    for error in (KeyError, KeyboardInterrupt, sqlite3.OperationalError):
        with suppress(error), begin() as connection:
            connection.execute(WRITE, ["a"])
            raise error
    with begin() as connection:
        connection.execute(WRITE, ["b"])
    begin.close()

    assert watcher.orders() == ["b"]


def test_sqlite3_keeps_its_connection(path: Path) -> None:
    begin = sqlite3_transactions(path)
    with begin() as first:
        pass
    with begin() as second:
        pass
    begin.close()

    assert first is second
    with pytest.raises(sqlite3.ProgrammingError):
        second.execute("select 1")


def test_sqlite3_may_be_ended_by_the_block(path: Path, watcher: Any) -> None:
    """A block that rolls back by itself has nothing to commit, which is said."""

    def write_and_undo() -> None:
        with sqlite3_transactions(path)() as connection:
            connection.execute(WRITE, ["a"])
            connection.rollback()

    with pytest.raises(sqlite3.OperationalError, match="no transaction"):
        write_and_undo()

    assert watcher.orders() == []


async def test_aiosqlite_commits_at_the_end(path: Path, watcher: Any) -> None:
    begin = aiosqlite_transactions(path)
    async with begin() as connection:
        await connection.execute(WRITE, ["a"])
        inside = watcher.orders()

    assert inside == []
    assert watcher.orders() == ["a"]


async def test_aiosqlite_rolls_back_on_an_error(path: Path, watcher: Any) -> None:
    begin = aiosqlite_transactions(path)
    for error in (KeyError, aiosqlite.OperationalError):
        with suppress(error):
            async with begin() as connection:
                await connection.execute(WRITE, ["a"])
                raise error
    async with begin() as connection:
        await connection.execute(WRITE, ["b"])

    assert watcher.orders() == ["b"]
