"""What goes wrong with a file, and what the store says and does then."""

import asyncio
import os
import sqlite3
import tempfile
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import closing, contextmanager
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace

import pytest

from postroom.errors import SchemaMismatch, StoreError, StoreUnavailable
from postroom.lane import Lane
from postroom.message import Entry, Message
from postroom.store import Query
from postroom.stores.sqlite import SqliteStore
from postroom.stores.sqlite.schema import migrate

Put = Callable[..., None]

SECOND = timedelta(seconds=1)
NOBODY = 65534


@contextmanager
def without_privileges() -> Iterator[None]:
    """Let file permissions count, also where the tests run as root."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(0)


def permit(mode: int, *paths: Path) -> None:
    for path in paths:
        path.chmod(mode)


async def lease(store: SqliteStore, routes: int = 1) -> list[Lane]:
    names = {f"route-{number}": True for number in range(1, routes)}
    return list(
        await store.lease(
            "relay", routes={"default": True, **names}, lease=15 * SECOND, renewal=5 * SECOND
        )
    )


async def use(store: SqliteStore) -> None:
    """Open it and write to it."""
    await store.open()
    await lease(store)


async def read(store: SqliteStore) -> list[Entry]:
    lanes = await lease(store)
    return list(await store.read(lanes, limit=100, per_lane=100, max_bytes=1_000_000))


@pytest.fixture
async def opened() -> AsyncIterator[Callable[[Path], SqliteStore]]:
    """Make stores that are closed at the end."""
    stores: list[SqliteStore] = []

    def make(path: Path) -> SqliteStore:
        stores.append(SqliteStore(path, busy_timeout=timedelta(milliseconds=50)))
        return stores[-1]

    yield make
    for store in stores:
        await store.close()


Make = Callable[[Path], SqliteStore]


async def test_a_lock_held_too_long_is_told(sqlite_store: SqliteStore, opened: Make) -> None:
    store = opened(sqlite_store.path)
    await store.open()
    with closing(sqlite3.connect(store.path, isolation_level=None)) as other:
        other.execute("begin immediate")

        with pytest.raises(StoreUnavailable, match=r"held the write lock for 0\.05 s"):
            await lease(store)

    assert len(await lease(store)) == 64


async def test_reading_goes_on_while_the_lock_is_held(sqlite_store: SqliteStore, put: Put) -> None:
    lanes = await lease(sqlite_store)
    put(sqlite_store, Message(type="t", payload=b"", id="a"))
    with closing(sqlite3.connect(sqlite_store.path, isolation_level=None)) as other:
        other.execute("begin immediate")

        rows = await sqlite_store.read(lanes, limit=9, per_lane=9, max_bytes=9)
        swept = await sqlite_store.sweep(lanes, limit=9, orphans=True)

    assert [row.message.id for row in rows] == ["a"]
    assert swept.freed == 0


async def test_a_missing_file_is_a_missing_schema(tmp_path: Path, opened: Make) -> None:
    store = opened(tmp_path / "store.db")
    await store.open()

    with pytest.raises(SchemaMismatch, match="postroom init"):
        await store.stats()

    assert not store.path.exists()


async def test_an_empty_file_is_a_missing_schema(tmp_path: Path, opened: Make) -> None:
    (tmp_path / "store.db").touch()
    store = opened(tmp_path / "store.db")
    await store.open()

    with pytest.raises(SchemaMismatch, match="postroom init"):
        await store.stats()


async def test_a_missing_directory_is_told(tmp_path: Path, opened: Make) -> None:
    store = opened(tmp_path / "nowhere" / "store.db")

    with pytest.raises(StoreUnavailable, match="make it"):
        await store.open()
    store.path.parent.mkdir()
    await store.open()

    assert await store.migrate() != []


async def test_migrating_without_a_directory_is_told(tmp_path: Path, opened: Make) -> None:
    (tmp_path / "later").mkdir()
    store = opened(tmp_path / "later" / "store.db")
    await store.open()
    (tmp_path / "later").rmdir()

    with pytest.raises(StoreUnavailable, match="make the directory"):
        await store.migrate()


async def test_a_directory_is_no_database(tmp_path: Path, opened: Make) -> None:
    store = opened(tmp_path)

    with pytest.raises(StoreUnavailable, match="cannot be opened"):
        await store.open()


async def test_a_file_of_something_else_is_no_outage(tmp_path: Path, opened: Make) -> None:
    """Waiting does not turn a text into a database."""
    (tmp_path / "store.db").write_bytes(b"Dear diary, " * 1_000)
    store = opened(tmp_path / "store.db")

    with pytest.raises(StoreError, match="not an SQLite database") as caught:
        await use(store)

    assert not isinstance(caught.value, StoreUnavailable)


async def test_a_table_that_was_dropped_is_told(sqlite_store: SqliteStore) -> None:
    with closing(sqlite3.connect(sqlite_store.path)) as connection:
        connection.execute("drop table postroom_lane")
    with pytest.raises(StoreError, match="postroom_lane"):
        await lease(sqlite_store)

    with closing(sqlite3.connect(sqlite_store.path)) as connection:
        connection.execute("drop table postroom_schema")
    with pytest.raises(SchemaMismatch, match="postroom init"):
        await lease(sqlite_store)


async def test_tables_dropped_under_an_open_store_are_told(sqlite_store: SqliteStore) -> None:
    await lease(sqlite_store)
    with closing(sqlite3.connect(sqlite_store.path)) as connection:
        connection.executescript("drop table postroom_outbox; drop table postroom_schema")

    with pytest.raises(SchemaMismatch, match="postroom init"):
        await sqlite_store.find(Query(), limit=9)


async def test_a_damaged_file_is_no_outage(sqlite_store: SqliteStore, opened: Make) -> None:
    with closing(sqlite3.connect(sqlite_store.path)) as connection:
        connection.execute("pragma wal_checkpoint(truncate)")
    await sqlite_store.close()
    with sqlite_store.path.open("r+b") as file:
        file.seek(4096)
        file.write(b"\xff" * 100_000)
    store = opened(sqlite_store.path)

    with pytest.raises(StoreError, match="damaged") as caught:
        await use(store)

    assert not isinstance(caught.value, StoreUnavailable)


async def test_a_wait_on_a_damaged_file_is_told(tmp_path: Path, opened: Make) -> None:
    """The watching connection is opened by the first wait, and may be the first to see it."""
    store = opened(tmp_path / "store.db")
    await store.open()
    await store.migrate()
    await store.close()
    await store.open()
    with store.path.open("r+b") as file:
        file.write(b"Dear diary, " * 1_000)

    with pytest.raises(StoreError, match="not an SQLite database"):
        await store.wait(SECOND)


async def test_a_watching_connection_that_broke_is_opened_anew(
    tmp_path: Path, opened: Make
) -> None:
    store = opened(tmp_path / "store.db")
    await store.open()
    await store.migrate()
    await store.wait(SECOND / 1_000)
    await store.wait(SECOND / 1_000)
    assert store._file._watcher is not None
    await store._file._watcher.run(lambda connection: connection.close())

    with pytest.raises(StoreError, match="closed"):
        await store.wait(SECOND)

    await store.wait(SECOND / 1_000)


async def test_migrating_waits_for_who_has_the_file(
    tmp_path: Path, opened: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SQLite's own time-out does not cover the change to write-ahead logging."""
    store = opened(tmp_path / "store.db")
    await store.open()
    other = sqlite3.connect(store.path, isolation_level=None, check_same_thread=False)
    other.execute("create table orders (id)")
    other.execute("begin immediate")

    with pytest.raises(StoreUnavailable, match="write lock"):
        await store.migrate()
    pauses = SimpleNamespace(monotonic=lambda: 0, sleep=lambda _: other.close())
    monkeypatch.setattr("postroom.stores.sqlite.schema.time", pauses)

    assert await store.migrate() != []


def test_a_file_that_cannot_be_logged_ahead_is_refused(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "store.db")
    with closing(sqlite3.connect(":memory:")) as connection:
        work = store._work(connection)

        with pytest.raises(StoreUnavailable, match="local disk"):
            migrate(work, store._migrations, SECOND, store.path)


async def test_a_read_only_file_is_an_outage_that_ends(opened: Make) -> None:
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        store = opened(directory / "store.db")
        await store.open()
        await store.migrate()
        await store.close()
        permit(0o555, store.path, directory)

        with without_privileges(), pytest.raises(StoreUnavailable, match="permissions"):
            await use(store)
        permit(0o777, directory, store.path)
        await store.open()

        assert len(await lease(store)) == 64
        await store.close()


async def test_a_file_that_may_be_read_only_is_not_written(opened: Make) -> None:
    """The connection itself is opened anew when the file may be written again."""
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        permit(0o777, directory)
        store = opened(directory / "store.db")
        await store.open()
        await store.migrate()
        await store.close()
        permit(0o444, store.path)

        with without_privileges():
            await store.open()
            with pytest.raises(StoreUnavailable, match="read-only"):
                await lease(store)
        permit(0o666, store.path)

        assert len(await lease(store)) == 64
        await store.close()


async def test_a_full_disk_changes_nothing(sqlite_store: SqliteStore) -> None:
    store = sqlite_store
    await store._file.run(
        lambda work: work.connection.execute("pragma max_page_count = 40").fetchall()
    )

    with pytest.raises(StoreUnavailable, match="disk is full"):
        await lease(store, routes=200)

    assert (await store.stats()).relays == ()
    await store._file.run(
        lambda work: work.connection.execute("pragma max_page_count = 100000").fetchall()
    )
    assert len(await lease(store, routes=200)) == 200 * 64


async def test_a_store_that_is_not_open_says_so(tmp_path: Path, opened: Make) -> None:
    store = opened(tmp_path / "store.db")

    with pytest.raises(StoreError, match=r"store\.open"):
        await store.stats()
    with pytest.raises(StoreError, match=r"store\.open"):
        await store.wait(SECOND)


@pytest.mark.parametrize("path", ["", ":memory:"])
def test_a_database_of_one_connection_is_refused(path: str) -> None:
    with pytest.raises(ValueError, match="MemoryStore"):
        SqliteStore(path)


def test_the_path_is_fixed_when_the_store_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)

    assert SqliteStore("shop.db").path == tmp_path / "shop.db"
    assert SqliteStore("~/shop.db").path == tmp_path / "shop.db"


async def test_any_file_name_will_do(tmp_path: Path, opened: Make) -> None:
    store = opened(tmp_path / "50% of a shop? #1 & more.db")
    await store.open()

    assert await store.migrate() != []
    assert store.path.exists()
    assert not (tmp_path / "50% of a shop").exists()


async def test_close_ends_a_wait_and_the_threads(sqlite_store: SqliteStore) -> None:
    await sqlite_store.wait(SECOND)
    waiting = asyncio.create_task(sqlite_store.wait(timedelta(hours=1)))
    await asyncio.sleep(0)

    await asyncio.wait_for(sqlite_store.close(), 10)
    await asyncio.wait_for(asyncio.gather(waiting, return_exceptions=True), 10)

    for thread in threading.enumerate():
        if thread.name.startswith("postroom-sqlite"):
            thread.join(10)
            assert not thread.is_alive()


BROKEN = {
    "headers that are no JSON": "headers = '{broken'",
    "headers that are a list": "headers = '[1]'",
    "a header that is a number": "headers = '{\"a\": 1}'",
    "a payload that is text": "payload = 'text'",
    "a payload that is a number": "payload = 7",
    "a type that is not UTF-8": "type = cast(x'ff61' as text)",
    "a moment beyond the calendar": "expires_at = 9000000000000000000",
    "a moment that is text": "created_at = 'yesterday'",
    "a version that is text": "version = 'two'",
    "attempts that are text": "attempts = 'many'",
}


@pytest.mark.parametrize("change", BROKEN.values(), ids=BROKEN.keys())
async def test_a_row_that_cannot_be_read_stops_no_other(
    sqlite_store: SqliteStore, put: Put, change: str
) -> None:
    put(sqlite_store, *(Message(type="t", payload=b"x", id=one, key="k") for one in "abc"))
    with closing(sqlite3.connect(sqlite_store.path)) as connection:
        connection.execute(f"update postroom_outbox set {change} where id = 'b'")  # noqa: S608
        connection.commit()

    entries = await read(sqlite_store)
    found = await sqlite_store.find(Query(), limit=9)

    assert [entry.message.id for entry in entries] == ["a", "b", "c"]
    assert [entry.unreadable is None for entry in entries] == [True, False, True]
    assert [entry.unreadable for entry in found] == [entry.unreadable for entry in entries]
    assert dict(entries[1].message.headers) == {}
    assert isinstance(entries[1].message.payload, bytes)
