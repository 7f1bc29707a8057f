"""The tables of the SQLite store: migrations, versions, prefixes."""

import asyncio
import sqlite3
import subprocess
import sys
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from postroom.errors import SchemaMismatch, StoreError
from postroom.message import Message
from postroom.store import Addressed
from postroom.stores.queries import Migration
from postroom.stores.sqlite import SqliteStore

Shape = list[tuple[str, str, str]]

_MIGRATE = """
import asyncio, sys
from postroom.stores.sqlite import SqliteStore

async def main():
    store = SqliteStore(sys.argv[1])
    await store.open()
    sys.stdin.readline()
    print(len(await store.migrate()))
    await store.close()

print("ready", flush=True)
asyncio.run(main())
"""


def shape(path: Path) -> Shape:
    """Return what SQLite knows of the tables and indexes, whatever the spacing."""
    with closing(sqlite3.connect(path)) as connection:
        rows = connection.execute("select type, name, coalesce(sql, '') from sqlite_master")
        return sorted((kind, name, " ".join(sql.split())) for kind, name, sql in rows)


async def migrated(path: Path, prefix: str = "postroom_") -> list[str]:
    store = SqliteStore(path, prefix=prefix)
    await store.open()
    try:
        return list(await store.migrate())
    finally:
        await store.close()


@pytest.mark.parametrize("prefix", ["postroom_", "mail_"])
async def test_the_printed_schema_is_the_migrated_one(tmp_path: Path, prefix: str) -> None:
    by_hand, by_code = tmp_path / "hand.db", tmp_path / "code.db"

    with closing(sqlite3.connect(by_hand)) as connection:
        connection.executescript(SqliteStore(by_hand, prefix=prefix).schema())
    names = await migrated(by_code, prefix)

    assert shape(by_hand) == shape(by_code)
    assert names == ["0001_first_tables"]
    assert await migrated(by_hand, prefix) == []


async def test_every_name_carries_the_prefix(tmp_path: Path) -> None:
    path = tmp_path / "store.db"

    await migrated(path, "mail_")

    names = {name for _, name, _ in shape(path) if not name.startswith("sqlite_")}
    assert names
    assert all(name.startswith("mail_") for name in names)


async def test_two_prefixes_share_a_file_without_meeting(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    await migrated(path, "mail_")

    assert await migrated(path, "post_") == ["0001_first_tables"]


@pytest.mark.parametrize("prefix", ["", "Mail_", "1_", "a-b", "a b", 'a"; drop table x; --'])
def test_a_prefix_that_could_be_sql_is_refused(tmp_path: Path, prefix: str) -> None:
    with pytest.raises(ValueError, match="prefix"):
        SqliteStore(tmp_path / "store.db", prefix=prefix)


async def test_the_file_uses_write_ahead_logging(sqlite_store: SqliteStore) -> None:
    with closing(sqlite3.connect(sqlite_store.path)) as connection:
        assert connection.execute("pragma journal_mode").fetchone() == ("wal",)


async def test_many_may_migrate_at_once(tmp_path: Path) -> None:
    applied = await asyncio.gather(*(migrated(tmp_path / "store.db") for _ in range(8)))

    assert sorted(len(names) for names in applied) == [0] * 7 + [1]


def test_many_processes_may_migrate_at_once(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", _MIGRATE, str(path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(4)
    ]
    for process in processes:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()

    outputs = [process.communicate()[0] for process in processes]

    assert [process.returncode for process in processes] == [0] * 4
    assert sorted(int(output) for output in outputs) == [0, 0, 0, 1]


async def test_tables_of_a_newer_version_are_left_alone(sqlite_store: SqliteStore) -> None:
    with closing(sqlite3.connect(sqlite_store.path)) as connection:
        connection.execute("insert into postroom_schema values (99, 'future', 0)")
        connection.commit()
    other = SqliteStore(sqlite_store.path)
    await other.open()

    try:
        with pytest.raises(SchemaMismatch, match="upgrade Postroom"):
            await other.stats()
        with pytest.raises(SchemaMismatch, match="upgrade Postroom"):
            await other.migrate()
    finally:
        await other.close()


async def test_tables_of_an_older_version_are_told_with_the_cure(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "store.db")
    await store.open()
    await store.migrate()
    second = Migration(version=2, name="0002_more", sql="create table postroom_more (a);\n")
    store._migrations = (*store._migrations, second)

    try:
        with pytest.raises(SchemaMismatch, match="postroom init"):
            await store.stats()
        assert await store.migrate() == ["0002_more"]
        assert (await store.stats()).schema_version == 2
    finally:
        await store.close()


async def test_a_migration_that_fails_leaves_nothing_of_itself(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "store.db")
    (first,) = store._migrations
    store._migrations = (replace(first, sql=f"{first.sql}\nselect * from nowhere;\n"),)
    await store.open()

    try:
        with pytest.raises(StoreError, match="nowhere"):
            await store.migrate()
    finally:
        await store.close()

    assert shape(store.path) == []


@pytest.mark.parametrize("lane", [-1, 64, "x", 1.5])
async def test_lanes_that_do_not_exist_are_refused(
    sqlite_store: SqliteStore, lane: float | str
) -> None:
    statement = sqlite_store.insert([Addressed("default", Message(type="t", payload=b""))])
    (row,) = statement.rows

    with (
        closing(sqlite3.connect(sqlite_store.path)) as connection,
        pytest.raises(sqlite3.IntegrityError, match="lane"),
    ):
        connection.execute(statement.sql, {**row, "lane": lane})


async def test_an_id_is_put_once(sqlite_store: SqliteStore) -> None:
    message = Message(type="t", payload=b"")
    statement = sqlite_store.insert([Addressed("default", message), Addressed("other", message)])

    with (
        closing(sqlite3.connect(sqlite_store.path)) as connection,
        pytest.raises(sqlite3.IntegrityError, match=r"postroom_outbox\.id"),
    ):
        connection.executemany(statement.sql, statement.rows)
