"""What is put into a session early is written at its commit, after the business data."""

from contextlib import suppress
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy import event
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session, sessionmaker

from postroom import Limits, Message, SyncOutbox
from postroom.errors import InvalidMessage, NoTransaction, PutRefused
from postroom.integrations.sqlalchemy import SessionOutbox
from tests.integrations.conftest import (
    Changed,
    Order,
    OrderChanged,
    OrderPlaced,
    Place,
    sessions_of,
)


def test_the_message_is_written_after_what_follows_it(place: Place, outbox: SessionOutbox) -> None:
    """Put first, but written last: that is what makes the order of a key right."""
    written: list[str] = []
    engine = place.engine()

    @event.listens_for(engine, "before_cursor_execute")
    def record(*arguments: Any) -> None:
        written.append(arguments[2].lower())

    Sessions = outbox.bind(sessionmaker(engine))  # noqa: N806 - as SQLAlchemy's own pages write it
    with Sessions.begin() as session:
        (put,) = outbox.put(session, OrderPlaced("a"))
        session.add(Order("a"))
        session.flush()
        session.add(Order("b"))
    engine.dispose()

    inserts = [sql for sql in written if sql.startswith("insert into")]
    assert ["postroom_outbox" in sql for sql in inserts] == [False, False, True]
    assert place.rows("id") == [(put.id,)]


def test_what_a_rollback_leaves(place: Place, outbox: SessionOutbox) -> None:
    """Nothing; and the session serves again."""
    with sessions_of(place, outbox) as sessions, sessions() as session:
        session.add(Order("a"))
        outbox.put(session, OrderPlaced("a"))
        session.rollback()
        session.add(Order("b"))
        outbox.put(session, OrderPlaced("b"))
        session.commit()
        session.add(Order("c"))
        outbox.put(session, OrderPlaced("c"))
        session.close()
        session.add(Order("d"))
        session.commit()

    assert place.keys() == ["b"]
    assert place.orders() == ["b", "d"]


def test_savepoints(place: Place, outbox: SessionOutbox) -> None:
    """What was put inside one goes with it; what was released stays, in the order of the puts."""
    with sessions_of(place, outbox) as sessions, sessions.begin() as session:
        outbox.put(session, OrderPlaced("1"))
        with session.begin_nested():
            outbox.put(session, OrderPlaced("2"))
            with suppress(Changed), session.begin_nested():
                outbox.put(session, OrderPlaced("3"))
                raise Changed
            with session.begin_nested():
                outbox.put(session, OrderPlaced("4"))
        with suppress(Changed), session.begin_nested():
            outbox.put(session, OrderPlaced("5"))
            with session.begin_nested():
                outbox.put(session, OrderPlaced("6"))
            raise Changed
        outbox.put(session, OrderPlaced("7"))

    assert place.keys() == ["1", "2", "4", "7"]


def test_a_flush_that_fails_inside_a_savepoint(place: Place, outbox: SessionOutbox) -> None:
    with sessions_of(place, outbox) as sessions:
        with sessions.begin() as session:
            session.add(Order("a"))
        with sessions.begin() as session:
            outbox.put(session, OrderPlaced("kept"))
            with suppress(IntegrityError), session.begin_nested():
                outbox.put(session, OrderPlaced("dropped"))
                session.add(Order("a"))
            outbox.put(session, OrderPlaced("after"))

    assert place.keys() == ["kept", "after"]


@pytest.mark.parametrize("levels", [1, 2])
def test_a_commit_that_ends_open_savepoints(
    place: Place, outbox: SessionOutbox, levels: int
) -> None:
    """The block of the transaction ends and takes the savepoints along."""
    with sessions_of(place, outbox) as sessions, sessions.begin() as session:
        outbox.put(session, OrderPlaced("1"))
        for _ in range(levels):
            session.begin_nested()
        session.add(Order("a"))
        outbox.put(session, OrderPlaced("2"))

    assert place.orders() == ["a"]
    assert place.keys() == ["1", "2"]


def test_a_commit_to_the_root_from_inside_a_savepoint(place: Place, outbox: SessionOutbox) -> None:
    with sessions_of(place, outbox) as sessions, sessions() as session:
        session.add(Order("a"))
        session.begin_nested()
        outbox.put(session, OrderPlaced("a"))
        session.commit()

    assert place.keys() == ["a"]


def test_a_savepoint_whose_commit_fails_writes_nothing_early(
    place: Place, outbox: SessionOutbox
) -> None:
    with sessions_of(place, outbox) as sessions:
        with sessions.begin() as session:
            session.add(Order("a"))
        with sessions.begin() as session:
            outbox.put(session, OrderPlaced("first"))
            savepoint = session.begin_nested()
            session.add(Order("a"))
            with suppress(IntegrityError):
                savepoint.commit()
            savepoint.rollback()
            session.add(Order("b"))
            before = session.execute(sa.text("select count(*) from postroom_outbox")).scalar()

    assert before == 0
    assert place.keys() == ["first"]


def test_a_commit_that_fails(place: Place, outbox: SessionOutbox) -> None:
    with sessions_of(place, outbox) as sessions:
        with sessions.begin() as session:
            session.add(Order("a"))
        session = sessions()
        outbox_before = place.keys()
        session.add(Order("a"))
        outbox.put(session, OrderPlaced("a"))
        with pytest.raises(IntegrityError):
            session.commit()
        session.close()

    assert place.keys() == outbox_before == []


def test_puts_of_listeners(place: Place, outbox: SessionOutbox) -> None:
    """In a flush, before the commit, and after ours have been written."""
    with sessions_of(place, outbox) as sessions:

        @event.listens_for(sessions, "after_flush")
        def after_flush(session: Session, _context: object) -> None:
            for each in session.new:
                if isinstance(each, Order):
                    outbox.put(session, OrderPlaced(each.id))

        @event.listens_for(sessions, "before_commit")
        def before_commit(session: Session) -> None:
            outbox.put(session, OrderPlaced("late"))

        with sessions.begin() as session:
            session.add(Order("a"))

    assert place.keys() == ["a", "late"]


def test_two_phases(place: Place, outbox: SessionOutbox) -> None:
    """The messages are there before the transaction is prepared."""
    if place.name == "sqlite":
        pytest.skip("SQLite has no two-phase commit")
    limit = place.query("select current_setting('max_prepared_transactions')::int")[0][0]
    if not limit:
        pytest.skip("the server takes no prepared transactions")
    # As a relay does that sleeps: whoever commits a message is to wake it.
    place.query("select setval('postroom_asleep', 4000000000000000)")
    with sessions_of(place, outbox, twophase=True) as sessions, sessions() as session:
        session.begin()
        outbox.put(session, OrderPlaced("a"))
        session.add(Order("a"))
        session.prepare()
        session.commit()

    assert place.keys() == ["a"]


def test_many_puts_are_written_together(place: Place) -> None:
    """One statement for all of them, or as few as the limits of a call allow."""
    outbox = SessionOutbox(place.store, limits=Limits(max_batch=30))
    engine = place.engine()
    statements: list[str] = []

    @event.listens_for(engine, "before_cursor_execute")
    def record(*arguments: Any) -> None:
        if "postroom_outbox" in arguments[2]:
            statements.append(arguments[2])

    sessions = outbox.bind(sessionmaker(engine))
    with sessions.begin() as session:
        for number in range(50):
            outbox.put(session, OrderPlaced(str(number)))
    engine.dispose()

    assert len(statements) == 2
    assert place.keys() == [str(number) for number in range(50)]


def test_both_ways_in_one_session(place: Place, outbox: SessionOutbox) -> None:
    """A message that is put directly is written where it is put."""
    with sessions_of(place, outbox) as sessions, sessions.begin() as session:
        outbox.put(session, OrderPlaced("last"))
        session.add(Order("a"))
        SyncOutbox(place.store).put(session, OrderChanged("first", 1))
        outbox.put(session, Message(type="raw", key="at the end", payload=b""))

    assert place.keys() == ["first", "last", "at the end"]


# Refusals


def test_refused_where_there_is_no_transaction(place: Place, outbox: SessionOutbox) -> None:
    with sessions_of(place, outbox) as sessions, sessions() as session:
        for after in (session.commit, session.rollback, session.close):
            with pytest.raises(NoTransaction, match=r"session\.begin"):
                outbox.put(session, OrderPlaced("a"))
            session.add(Order(after.__name__))
            after()

    assert place.keys() == []


def test_refused_where_the_transaction_has_failed(place: Place, outbox: SessionOutbox) -> None:
    with sessions_of(place, outbox) as sessions, sessions() as session:
        session.execute(sa.insert(Order).values(id="a", state="", version=0))
        session.add(Order("a"))
        with pytest.raises(IntegrityError):
            session.flush()
        with pytest.raises(NoTransaction, match="roll it back"):
            outbox.put(session, OrderPlaced("a"))
        session.rollback()
        session.add(Order("b"))
        outbox.put(session, OrderPlaced("b"))
        session.commit()

    assert place.keys() == ["b"]


@pytest.mark.parametrize("early", [True, False])
def test_refused_in_autocommit(place: Place, outbox: SessionOutbox, *, early: bool) -> None:
    """Before anything is written, wherever the put stands."""
    engine = place.engine(execution_options={"isolation_level": "AUTOCOMMIT"})
    session = outbox.bind(Session(engine))

    def work() -> None:
        with session.begin():
            if early:
                outbox.put(session, OrderPlaced("a"))
            session.add(Order("a"))
            session.flush()
            outbox.put(session, OrderPlaced("a"))

    with pytest.raises(NoTransaction, match="AUTOCOMMIT"):
        work()
    session.close()
    engine.dispose()

    assert place.keys() == []
    assert place.orders() == ([] if early else ["a"])


def test_refused_where_nobody_listens(simple: Place) -> None:
    outbox = SessionOutbox(simple.store)
    with Session(simple.engine()) as session, session.begin():
        with pytest.raises(PutRefused, match=r"outbox\.bind"):
            outbox.put(session, OrderPlaced("a"))
        session.bind.dispose()  # type: ignore[union-attr]


def test_refused_at_once_not_at_the_commit(simple: Place) -> None:
    outbox = SessionOutbox(simple.store)
    with sessions_of(simple, outbox) as sessions, sessions.begin() as session:
        with pytest.raises(InvalidMessage):
            outbox.put(session, OrderPlaced("\0"))
        assert outbox.put(session) == ()

    assert simple.keys() == []
