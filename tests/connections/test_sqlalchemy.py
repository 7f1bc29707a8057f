"""What is particular about SQLAlchemy: sessions, autoflush, isolation levels."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy import event
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import (
    AsyncSession,
    async_scoped_session,
    async_sessionmaker,
    create_async_engine,
)
from sqlalchemy.orm import (
    DeclarativeBase,
    Mapped,
    Session,
    mapped_column,
    scoped_session,
    sessionmaker,
)

from postroom import Outbox, SyncOutbox, message
from postroom.connections import outage
from postroom.connections.sqlalchemy import begin_immediately
from postroom.errors import NoTransaction, PutRefused
from postroom.stores.sqlite import SqliteStore


class Model(DeclarativeBase):
    """The root of the shop's tables."""


class Order(Model):
    """What the shop stores."""

    __tablename__ = "orders"
    id: Mapped[str] = mapped_column(primary_key=True)


@message("shop.order-placed", key="order_id")
@dataclass
class OrderPlaced:
    """What the shop announces."""

    order_id: str


@pytest.fixture
def engine(path: Path) -> Iterator[sa.Engine]:
    engine = begin_immediately(sa.create_engine(f"sqlite:///{path}"))
    yield engine
    engine.dispose()


@pytest.fixture
def outbox(store: SqliteStore) -> SyncOutbox:
    return SyncOutbox(store)


def test_adding_an_object_is_enough_to_begin(
    engine: sa.Engine, outbox: SyncOutbox, watcher: Any
) -> None:
    with Session(engine) as session:
        session.add(Order(id="a"))
        outbox.put(session, OrderPlaced("a"))
        session.commit()

    assert watcher.orders() == ["a"]
    assert len(watcher.messages()) == 1


def test_pending_objects_are_written_before_the_message(
    engine: sa.Engine, outbox: SyncOutbox
) -> None:
    """So that the order of a key is the order in which its transactions write its row."""
    written: list[str] = []

    @event.listens_for(engine, "before_cursor_execute")
    def record(*arguments: Any) -> None:
        written.append(arguments[2])

    with Session(engine) as session:
        session.add(Order(id="a"))
        outbox.put(session, OrderPlaced("a"))
        session.commit()

    tables = [sql.split()[2] for sql in written if sql.lower().startswith("insert into")]
    assert tables == ["orders", "postroom_outbox"]


def test_no_autoflush_is_respected(engine: sa.Engine, outbox: SyncOutbox, watcher: Any) -> None:
    with Session(engine) as session:
        order = Order()
        session.add(order)
        with session.no_autoflush:
            outbox.put(session, OrderPlaced("a"))
        order.id = "a"
        session.commit()

    assert watcher.orders() == ["a"]
    assert len(watcher.messages()) == 1


def test_a_put_inside_a_flush(engine: sa.Engine, outbox: SyncOutbox, watcher: Any) -> None:
    """Events are often collected by a listener of the session."""
    with Session(engine) as session:

        @event.listens_for(session, "after_flush")
        def after_flush(session: Session, _context: object) -> None:
            for order in session.new:
                outbox.put(session, OrderPlaced(order.id))

        session.add(Order(id="a"))
        session.commit()

    assert watcher.orders() == ["a"]
    assert len(watcher.messages()) == 1


def test_a_put_before_the_commit(engine: sa.Engine, outbox: SyncOutbox, watcher: Any) -> None:
    with Session(engine) as session:

        @event.listens_for(session, "before_commit")
        def before_commit(session: Session) -> None:
            outbox.put(session, OrderPlaced("a"))

        session.add(Order(id="a"))
        session.commit()

    assert len(watcher.messages()) == 1


def test_a_put_after_the_commit_is_refused(engine: sa.Engine, outbox: SyncOutbox) -> None:
    with Session(engine) as session:
        session.add(Order(id="a"))
        session.commit()

        with pytest.raises(NoTransaction, match="no open transaction"):
            outbox.put(session, OrderPlaced("a"))


def test_a_failed_session_is_refused(engine: sa.Engine, outbox: SyncOutbox, watcher: Any) -> None:
    """After a failed flush the session waits for a rollback; after it, it serves again."""
    with Session(engine) as session:
        session.execute(sa.text("insert into orders (id) values ('a')"))
        session.add(Order(id="a"))
        with pytest.raises(IntegrityError):
            session.flush()
        with pytest.raises(NoTransaction, match="roll it back"):
            outbox.put(session, OrderPlaced("a"))
        session.rollback()
        session.add(Order(id="b"))
        outbox.put(session, OrderPlaced("b"))
        session.commit()

    assert watcher.orders() == ["b"]
    assert len(watcher.messages()) == 1


def test_a_rolled_back_transaction_is_refused(engine: sa.Engine, outbox: SyncOutbox) -> None:
    with engine.connect() as connection:
        transaction = connection.begin()
        transaction.rollback()

        with pytest.raises(NoTransaction):
            outbox.put(connection, OrderPlaced("a"))


def test_an_invalidated_connection_is_refused(engine: sa.Engine, outbox: SyncOutbox) -> None:
    with engine.connect() as connection:
        connection.begin()
        connection.invalidate()

        with pytest.raises(NoTransaction, match="roll it back"):
            outbox.put(connection, OrderPlaced("a"))


def test_a_session_that_must_be_begun(engine: sa.Engine, outbox: SyncOutbox) -> None:
    with (
        Session(engine, autobegin=False) as session,
        pytest.raises(NoTransaction, match=r"session\.begin"),
    ):
        outbox.put(session, OrderPlaced("a"))


@pytest.mark.parametrize("plain", [True, False], ids=["plain", "begins"])
def test_autocommit_is_refused(
    path: Path, outbox: SyncOutbox, watcher: Any, *, plain: bool
) -> None:
    engine = sa.create_engine(f"sqlite:///{path}")
    if not plain:
        begin_immediately(engine)
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.begin()

        with pytest.raises(NoTransaction, match="AUTOCOMMIT"):
            outbox.put(connection, OrderPlaced("a"))
    engine.dispose()

    assert watcher.messages() == []


def test_an_engine_in_autocommit_is_refused(path: Path, outbox: SyncOutbox, watcher: Any) -> None:
    engine = sa.create_engine(f"sqlite:///{path}", isolation_level="AUTOCOMMIT")
    with Session(engine) as session:
        session.begin()

        with pytest.raises(NoTransaction, match="AUTOCOMMIT"):
            outbox.put(session, OrderPlaced("a"))
    engine.dispose()

    assert watcher.messages() == []


async def test_an_async_engine_in_autocommit_is_refused(path: Path, store: SqliteStore) -> None:
    engine = create_async_engine(f"sqlite+aiosqlite:///{path}", isolation_level="AUTOCOMMIT")
    async with engine.begin() as connection:
        with pytest.raises(NoTransaction, match="AUTOCOMMIT"):
            await Outbox(store).put(connection, OrderPlaced("a"))
    await engine.dispose()


def test_several_engines_in_a_session(engine: sa.Engine, outbox: SyncOutbox, watcher: Any) -> None:
    """Which of them holds the business data only the caller knows."""
    with Session(binds={Order: engine}) as session:
        session.add(Order(id="a"))
        with pytest.raises(PutRefused, match="bind_arguments"):
            outbox.put(session, OrderPlaced("a"))
        outbox.put(session.connection(bind_arguments={"mapper": Order}), OrderPlaced("a"))
        session.commit()

    assert watcher.orders() == ["a"]
    assert len(watcher.messages()) == 1


def test_scoped_sessions(engine: sa.Engine, outbox: SyncOutbox, watcher: Any) -> None:
    session = scoped_session(sessionmaker(engine))
    session.add(Order(id="a"))
    outbox.put(session, OrderPlaced("a"))
    session.commit()
    session.remove()

    assert len(watcher.messages()) == 1


async def test_async_scoped_sessions(path: Path, store: SqliteStore, watcher: Any) -> None:
    engine = create_async_engine(f"sqlite+aiosqlite:///{path}")
    session = async_scoped_session(async_sessionmaker(engine), scopefunc=lambda: 1)
    session.add(Order(id="a"))
    await Outbox(store).put(session, OrderPlaced("a"))
    await session.commit()
    await session.remove()
    await engine.dispose()

    assert len(watcher.messages()) == 1


async def test_the_session_inside_run_sync(path: Path, outbox: SyncOutbox, watcher: Any) -> None:
    engine = create_async_engine(f"sqlite+aiosqlite:///{path}")
    async with AsyncSession(engine) as session, session.begin():
        await session.run_sync(lambda inner: outbox.put(inner, OrderPlaced("a"), OrderPlaced("b")))
    await engine.dispose()

    assert len(watcher.messages()) == 2


async def test_the_wrong_outbox_says_which_is_right(
    engine: sa.Engine, path: Path, store: SqliteStore
) -> None:
    async_engine = create_async_engine(f"sqlite+aiosqlite:///{path}")
    wrong: Any
    async with async_engine.begin() as wrong:
        with pytest.raises(PutRefused, match="asynchronous: use Outbox"):
            SyncOutbox(store).put(wrong, OrderPlaced("a"))
    with (
        engine.begin() as wrong,
        pytest.raises(PutRefused, match=r"synchronous .* use SyncOutbox"),
    ):
        await Outbox(store).put(wrong, OrderPlaced("a"))
    await async_engine.dispose()


@pytest.mark.parametrize("factory", [lambda engine: engine, sessionmaker])
def test_a_factory_is_no_connection(engine: sa.Engine, outbox: SyncOutbox, factory: Any) -> None:
    with pytest.raises(PutRefused, match="pass a connection"):
        outbox.put(factory(engine), OrderPlaced("a"))


def test_begin_immediately_waits_at_the_beginning(engine: sa.Engine, path: Path) -> None:
    other = begin_immediately(sa.create_engine(f"sqlite:///{path}", connect_args={"timeout": 0}))
    with engine.begin(), pytest.raises(sa.exc.OperationalError) as caught, other.begin():
        pytest.fail("two writers have begun")
    other.dispose()

    assert outage(caught.value) == "the database is locked by another connection"


def test_begin_immediately_leaves_autocommit_alone(engine: sa.Engine) -> None:
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.exec_driver_sql("vacuum")


@pytest.mark.parametrize(("table", "noted"), [("orders", False), ("postroom_outbox", True)])
def test_only_errors_of_our_own_statements_speak_of_our_tables(
    engine: sa.Engine, outbox: SyncOutbox, table: str, *, noted: bool
) -> None:
    """A put flushes the session first, whose table may lack something too."""
    with engine.begin() as connection:
        connection.exec_driver_sql(f"drop table {table}")

    with Session(engine) as session:
        session.add(Order(id="a"))
        with pytest.raises(sa.exc.OperationalError, match=table) as caught:
            outbox.put(session, OrderPlaced("a"))

    notes = getattr(caught.value, "__notes__", [])
    assert [note for note in notes if "postroom init" in note] == notes
    assert bool(notes) is noted
