"""An outage of the caller's database is told from a fault of the handler, with real databases."""

import sqlite3
import threading
from collections.abc import Iterator
from pathlib import Path

import aiosqlite
import pytest
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.orm import Session

from postroom.connections import aiosqlite_transactions, outage, sqlite3_transactions
from postroom.errors import InvalidMessage, StoreUnavailable

WRITE = "insert into orders (id) values ('a')"
LOCKED = "the database is locked by another connection"
READ_ONLY = "the database is read-only"
NOT_OPENED = "the database file cannot be opened"


@pytest.fixture
def locked(path: Path) -> Iterator[Path]:
    """Return a database file that somebody else is writing to."""
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    yield path
    other.close()


def test_locked_with_sqlite3(locked: Path) -> None:
    begin = sqlite3_transactions(locked, timeout=0)

    with pytest.raises(sqlite3.OperationalError) as caught, begin():
        pytest.fail("two writers have begun")
    assert outage(caught.value) == LOCKED


async def test_locked_with_aiosqlite(locked: Path) -> None:
    begin = aiosqlite_transactions(locked, timeout=0)

    with pytest.raises(aiosqlite.OperationalError) as caught:
        async with begin():
            pytest.fail("two writers have begun")
    assert outage(caught.value) == LOCKED


def test_locked_with_sqlalchemy(locked: Path) -> None:
    engine = sa.create_engine(f"sqlite:///{locked}", connect_args={"timeout": 0})
    with Session(engine) as session, pytest.raises(sa.exc.OperationalError) as caught:
        session.execute(sa.text(WRITE))
    engine.dispose()

    assert outage(caught.value) == LOCKED


async def test_locked_with_sqlalchemy_and_aiosqlite(locked: Path) -> None:
    engine = create_async_engine(f"sqlite+aiosqlite:///{locked}", connect_args={"timeout": 0})
    async with engine.connect() as connection:
        with pytest.raises(sa.exc.OperationalError) as caught:
            await connection.execute(sa.text(WRITE))
    await engine.dispose()

    assert outage(caught.value) == LOCKED


def test_a_stale_read_that_cannot_become_a_write(path: Path) -> None:
    """SQLITE_BUSY_SNAPSHOT: waiting does not help, beginning again does; nobody's fault."""
    first, second = (sqlite3.connect(path, isolation_level=None) for _ in range(2))
    first.execute("pragma journal_mode = wal")
    first.execute("BEGIN")
    first.execute("select count(*) from orders").fetchall()
    second.execute(WRITE)
    with pytest.raises(sqlite3.OperationalError) as caught:
        first.execute(WRITE)
    first.close()
    second.close()

    assert outage(caught.value) == LOCKED


def test_read_only_with_sqlite3(path: Path) -> None:
    connection = sqlite3.connect(f"file:{path}?mode=ro", uri=True)
    with pytest.raises(sqlite3.OperationalError) as caught:
        connection.execute(WRITE)
    connection.close()

    assert outage(caught.value) == READ_ONLY


async def test_read_only_with_aiosqlite(path: Path) -> None:
    async with aiosqlite.connect(f"file:{path}?mode=ro", uri=True) as connection:
        with pytest.raises(aiosqlite.OperationalError) as caught:
            await connection.execute(WRITE)

    assert outage(caught.value) == READ_ONLY


def test_read_only_with_sqlalchemy(path: Path) -> None:
    engine = sa.create_engine(f"sqlite:///file:{path}?mode=ro&uri=true")
    with engine.connect() as connection, pytest.raises(sa.exc.OperationalError) as caught:
        connection.execute(sa.text(WRITE))
    engine.dispose()

    assert outage(caught.value) == READ_ONLY


def test_missing_with_sqlite3(tmp_path: Path) -> None:
    begin = sqlite3_transactions(tmp_path / "no" / "shop.db")

    with pytest.raises(sqlite3.OperationalError) as caught, begin():
        pytest.fail("began without a file")
    assert outage(caught.value) == NOT_OPENED


async def test_missing_with_aiosqlite(tmp_path: Path) -> None:
    begin = aiosqlite_transactions(tmp_path / "no" / "shop.db")
    threads = set(threading.enumerate())

    with pytest.raises(aiosqlite.OperationalError) as caught:
        async with begin():
            pytest.fail("began without a file")
    # A connection that fails leaves its thread to end by itself, while there is a loop to tell.
    for thread in set(threading.enumerate()) - threads:
        thread.join()
    assert outage(caught.value) == NOT_OPENED


def test_missing_with_sqlalchemy(tmp_path: Path) -> None:
    engine = sa.create_engine(f"sqlite:///{tmp_path / 'no' / 'shop.db'}")

    with pytest.raises(sa.exc.OperationalError) as caught:
        engine.connect()
    assert outage(caught.value) == NOT_OPENED


def test_full(path: Path) -> None:
    connection = sqlite3.connect(path)
    (pages,) = connection.execute("pragma page_count").fetchone()
    connection.execute(f"pragma max_page_count = {pages}")
    with pytest.raises(sqlite3.OperationalError) as caught:
        connection.execute("insert into orders (id) values (hex(zeroblob(1000000)))")
    connection.close()

    assert outage(caught.value) == "the disk is full"


@pytest.mark.parametrize("damage", [b"no database at all, but text" * 100])
def test_not_a_database(path: Path, damage: bytes) -> None:
    path.write_bytes(damage)
    connection = sqlite3.connect(path)
    with pytest.raises(sqlite3.DatabaseError) as caught:
        connection.execute(WRITE)
    connection.close()

    assert outage(caught.value) == "the file is not a database"


def test_no_free_connection_in_the_pool(path: Path) -> None:
    engine = sa.create_engine(f"sqlite:///{path}", pool_size=1, max_overflow=0, pool_timeout=0.01)
    with engine.connect(), pytest.raises(sa.exc.TimeoutError) as caught:
        engine.connect()
    engine.dispose()

    assert outage(caught.value) == "no connection of the pool became free in time"


def test_faults_of_the_handler(path: Path) -> None:
    """A constraint, a missing table, a bug: the database did its work."""
    connection = sqlite3.connect(path)
    connection.execute(WRITE)
    errors: list[BaseException] = [ValueError("a bug"), InvalidMessage("refused")]
    for sql in (WRITE, "insert into nowhere values (1)", "no sql"):
        with pytest.raises(sqlite3.Error) as caught:
            connection.execute(sql)
        errors.append(caught.value)
    connection.close()
    with pytest.raises(sqlite3.ProgrammingError) as closed:
        connection.execute(WRITE)
    engine = sa.create_engine("sqlite://")
    with engine.begin() as alive, pytest.raises(sa.exc.OperationalError) as missing:
        alive.execute(sa.text(WRITE))
    engine.dispose()

    for error in [*errors, closed.value, missing.value, sqlite3.OperationalError("no code")]:
        assert outage(error) is None


def test_an_outage_behind_the_handlers_own_error(locked: Path) -> None:
    connection = sqlite3.connect(locked, timeout=0)
    try:
        connection.execute(WRITE)
    except sqlite3.OperationalError as error:
        wrapped = RuntimeError("could not ship")
        wrapped.__cause__ = error
    connection.close()

    assert outage(wrapped) == LOCKED


def test_the_stores_own_word() -> None:
    assert outage(StoreUnavailable("the disk is gone")) == "the disk is gone"


def test_causes_in_a_circle_end() -> None:
    first, second = ValueError("1"), ValueError("2")
    first.__cause__, second.__cause__ = second, first

    assert outage(first) is None


async def test_a_connection_that_was_lost(path: Path) -> None:
    engine = create_async_engine(f"sqlite+aiosqlite:///{path}")
    async with engine.connect() as connection:
        driver = (await connection.get_raw_connection()).driver_connection
        assert isinstance(driver, aiosqlite.Connection)
        await driver.close()
        with pytest.raises(sa.exc.OperationalError) as caught:
            await connection.execute(sa.text(WRITE))
    await engine.dispose()

    assert outage(caught.value) == "the connection to the database was lost"


def test_sqlalchemys_own_errors_are_faults() -> None:
    assert outage(sa.exc.ArgumentError("wrong")) is None
