"""A savepoint becomes durable before the commit: refused with the cure, or cured.

The driver does not BEGIN before a SAVEPOINT, so RELEASE commits; the message goes out for work
that was rolled back.
"""

import sqlite3
import sys
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path

import aiosqlite
import pytest
import sqlalchemy as sa
from sqlalchemy import event
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, create_async_engine
from sqlalchemy.orm import Session

from postroom import Outbox, SyncOutbox, message
from postroom.connections import AsyncConnection, SyncConnection
from postroom.connections.sqlalchemy import begin_immediately
from postroom.errors import NoTransaction
from postroom.stores.sqlite import SqliteStore


@message("shop.order-placed")
@dataclass
class OrderPlaced:
    """What the shop announces."""

    order_id: str


class Unchecked(SyncOutbox):
    """The outbox as it would be without the check."""

    def _check(self, connection: SyncConnection) -> None:
        """Join whatever comes."""


class UncheckedAsync(Outbox):
    """The outbox as it would be without the check."""

    async def _check(self, connection: AsyncConnection) -> None:
        """Join whatever comes."""


@pytest.fixture
async def path(tmp_path: Path) -> Path:
    store = SqliteStore(tmp_path / "shop.db")
    await store.open()
    await store.migrate()
    await store.close()
    return store.path


@pytest.fixture
def store(path: Path) -> SqliteStore:
    return SqliteStore(path)


@pytest.fixture
def plain(path: Path) -> Iterator[sa.Engine]:
    """Return an engine made in the plain way."""
    engine = sa.create_engine(f"sqlite:///{path}")
    yield engine
    engine.dispose()


@pytest.fixture
async def plain_async(path: Path) -> AsyncIterator[AsyncEngine]:
    """Return an async engine made in the plain way."""
    engine = create_async_engine(f"sqlite+aiosqlite:///{path}")
    yield engine
    await engine.dispose()


def rows(path: Path) -> int:
    """Count what a second connection sees."""
    connection = sqlite3.connect(path)
    (count,) = connection.execute("select count(*) from postroom_outbox").fetchone()
    connection.close()
    return int(count)


def test_the_ghost_is_real(plain: sa.Engine, store: SqliteStore, path: Path) -> None:
    """Without the check the row is seen by others and survives the rollback."""
    with Session(plain) as session:
        with session.begin_nested():
            Unchecked(store).put(session, OrderPlaced("a"))
        seen = rows(path)
        session.rollback()

    assert seen == 1
    assert rows(path) == 1


async def test_the_ghost_is_real_with_aiosqlite(
    plain_async: AsyncEngine, store: SqliteStore, path: Path
) -> None:
    async with AsyncSession(plain_async) as session:
        async with session.begin_nested():
            await UncheckedAsync(store).put(session, OrderPlaced("a"))
        seen = rows(path)
        await session.rollback()

    assert seen == 1
    assert rows(path) == 1


def test_refused_in_a_session(plain: sa.Engine, store: SqliteStore, path: Path) -> None:
    with Session(plain) as session:
        with (
            pytest.raises(NoTransaction, match="begin_immediately"),
            session.begin_nested(),
        ):
            SyncOutbox(store).put(session, OrderPlaced("a"))
        session.rollback()

    assert rows(path) == 0


def test_refused_in_a_connection(plain: sa.Engine, store: SqliteStore, path: Path) -> None:
    with (
        pytest.raises(NoTransaction, match="begin_immediately"),
        plain.begin() as connection,
        connection.begin_nested(),
        connection.begin_nested(),
    ):
        SyncOutbox(store).put(connection, OrderPlaced("a"))

    assert rows(path) == 0


async def test_refused_in_an_async_session(
    plain_async: AsyncEngine, store: SqliteStore, path: Path
) -> None:
    async with AsyncSession(plain_async) as session:
        with pytest.raises(NoTransaction, match="begin_immediately"):
            async with session.begin_nested():
                await Outbox(store).put(session, OrderPlaced("a"))
        await session.rollback()

    assert rows(path) == 0


async def test_refused_in_an_async_connection(
    plain_async: AsyncEngine, store: SqliteStore, path: Path
) -> None:
    with pytest.raises(NoTransaction, match="begin_immediately"):
        async with plain_async.begin() as connection, connection.begin_nested():
            await Outbox(store).put(connection, OrderPlaced("a"))

    assert rows(path) == 0


def test_refused_where_the_driver_never_begins(store: SqliteStore, path: Path) -> None:
    """Half of the recipe (no isolation level, nobody who emits BEGIN) is no cure."""
    engine = sa.create_engine(f"sqlite:///{path}", connect_args={"isolation_level": None})
    with (
        pytest.raises(NoTransaction, match="begin_immediately"),
        engine.begin() as connection,
        connection.begin_nested(),
    ):
        SyncOutbox(store).put(connection, OrderPlaced("a"))
    engine.dispose()

    assert rows(path) == 0


def test_the_plain_engine_serves_without_savepoints(
    plain: sa.Engine, store: SqliteStore, path: Path
) -> None:
    """Many messages too: what makes a batch all or nothing must not commit it."""
    with Session(plain) as session:
        session.begin()
        SyncOutbox(store).put(session, OrderPlaced("a"), OrderPlaced("b"))
        seen = rows(path)
        session.rollback()
        session.begin()
        SyncOutbox(store).put(session, OrderPlaced("a"), OrderPlaced("b"))
        session.commit()

    assert seen == 0
    assert rows(path) == 2


def test_cured_by_begin_immediately(plain: sa.Engine, store: SqliteStore, path: Path) -> None:
    begin_immediately(plain)
    with Session(plain) as session:
        with session.begin_nested():
            SyncOutbox(store).put(session, OrderPlaced("a"))
        seen = rows(path)
        session.rollback()

    assert seen == 0
    assert rows(path) == 0


def test_cured_although_the_pool_had_connections(
    plain: sa.Engine, store: SqliteStore, path: Path
) -> None:
    with plain.connect() as connection:
        connection.exec_driver_sql("select 1")
    begin_immediately(plain)
    with plain.connect() as connection, connection.begin() as transaction:
        with connection.begin_nested():
            SyncOutbox(store).put(connection, OrderPlaced("a"))
        transaction.rollback()

    assert rows(path) == 0


async def test_cured_by_begin_immediately_with_aiosqlite(
    plain_async: AsyncEngine, store: SqliteStore, path: Path
) -> None:
    begin_immediately(plain_async)
    async with AsyncSession(plain_async) as session:
        async with session.begin_nested():
            await Outbox(store).put(session, OrderPlaced("a"))
        seen = rows(path)
        await session.rollback()

    assert seen == 0
    assert rows(path) == 0


def test_cured_by_the_recipe_of_sqlalchemy(
    plain: sa.Engine, store: SqliteStore, path: Path
) -> None:
    @event.listens_for(plain, "connect")
    def connect(connection: sqlite3.Connection, _record: object) -> None:
        connection.isolation_level = None

    @event.listens_for(plain, "begin")
    def begin(connection: sa.Connection) -> None:
        connection.exec_driver_sql("BEGIN")

    with Session(plain) as session:
        with session.begin_nested():
            SyncOutbox(store).put(session, OrderPlaced("a"))
        seen = rows(path)
        session.rollback()

    assert seen == 0
    assert rows(path) == 0


def test_bare_sqlite3_commits_message_and_work_together(store: SqliteStore, path: Path) -> None:
    """To SQLite the outermost SAVEPOINT of a bare connection is the transaction.

    Nothing tells it from one that was begun, so it is joined; its RELEASE commits the message
    with the work beside it, and until then a rollback undoes both.
    """
    connection = sqlite3.connect(path)
    connection.execute("SAVEPOINT whole")
    connection.execute("create table work (id text)")
    SyncOutbox(store).put(connection, OrderPlaced("a"))
    before = rows(path)
    connection.execute("RELEASE whole")
    connection.rollback()
    (work,) = connection.execute(
        "select count(*) from sqlite_master where name = 'work'"
    ).fetchone()
    connection.close()

    assert before == 0
    assert (work, rows(path)) == (1, 1)


async def test_bare_aiosqlite_with_begin_is_undone(store: SqliteStore, path: Path) -> None:
    async with aiosqlite.connect(path) as connection:
        await connection.execute("BEGIN")
        await connection.execute("SAVEPOINT part")
        await Outbox(store).put(connection, OrderPlaced("a"))
        await connection.execute("RELEASE part")
        await connection.rollback()

    assert rows(path) == 0


@pytest.mark.skipif(sys.version_info < (3, 12), reason="the driver's autocommit came with 3.12")
def test_cured_by_the_drivers_own_transactions(store: SqliteStore, path: Path) -> None:
    engine = sa.create_engine(f"sqlite:///{path}", connect_args={"autocommit": False})
    with Session(engine) as session:
        with session.begin_nested():
            SyncOutbox(store).put(session, OrderPlaced("a"), OrderPlaced("b"))
        seen = rows(path)
        session.rollback()
    engine.dispose()

    assert seen == 0
    assert rows(path) == 0


@pytest.mark.skipif(sys.version_info < (3, 12), reason="the driver's autocommit came with 3.12")
async def test_cured_by_the_drivers_own_transactions_with_aiosqlite(
    store: SqliteStore, path: Path
) -> None:
    engine = create_async_engine(f"sqlite+aiosqlite:///{path}", connect_args={"autocommit": False})
    async with AsyncSession(engine) as session:
        async with session.begin_nested():
            await Outbox(store).put(session, OrderPlaced("a"), OrderPlaced("b"))
        await session.rollback()
    await engine.dispose()

    assert rows(path) == 0
