"""What a session's outbox can be bound to: sessions of every make, before or in a transaction."""

from contextlib import suppress

import pytest
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncSession, async_scoped_session, async_sessionmaker
from sqlalchemy.orm import Session, scoped_session, sessionmaker

from postroom.errors import PutRefused
from postroom.integrations.sqlalchemy import SessionOutbox
from tests.integrations.conftest import Changed, Model, Order, OrderPlaced, Place, sessions_of


def test_one_session_in_the_middle_of_its_transaction(simple: Place) -> None:
    outbox = SessionOutbox(simple.store)
    engine = simple.engine()
    with Session(engine) as session:
        session.add(Order("a"))
        outbox.bind(session)
        outbox.put(session, OrderPlaced("a"))
        session.commit()
    engine.dispose()

    assert simple.keys() == ["a"]


def test_scoped_sessions_and_binding_twice(simple: Place) -> None:
    outbox = SessionOutbox(simple.store)
    engine = simple.engine()
    session = scoped_session(sessionmaker(engine))
    outbox.bind(session)
    outbox.bind(session)
    session.add(Order("a"))
    outbox.put(session, OrderPlaced("a"))
    session.commit()
    session.remove()
    engine.dispose()

    assert simple.keys() == ["a"]


def test_two_outboxes_in_a_session(simple: Place) -> None:
    first, second = SessionOutbox(simple.store), SessionOutbox(simple.store)
    with sessions_of(simple, first) as sessions:
        second.bind(sessions)
        with sessions.begin() as session:
            second.put(session, OrderPlaced("2"))
            first.put(session, OrderPlaced("1"))

    assert sorted(simple.keys()) == ["1", "2"]


def test_a_session_inside_a_transaction_of_a_test(place: Place, outbox: SessionOutbox) -> None:
    """Tests often commit sessions inside a transaction that they roll back at the end."""
    engine = place.engine()
    with engine.connect() as connection, connection.begin() as outer:
        maker = sessionmaker(connection, join_transaction_mode="create_savepoint")
        with outbox.bind(maker)() as session:
            for name in "ab":
                session.add(Order(name))
                outbox.put(session, OrderPlaced(name))
                session.commit()
        written = connection.execute(sa.text("select count(*) from orders")).scalar()
        outer.rollback()
    engine.dispose()

    assert written == 2
    assert place.keys() == []


def test_several_engines(simple: Place) -> None:
    """Which of them holds the outbox only the caller knows."""
    engine = simple.engine()
    told = SessionOutbox(simple.store, bind_arguments={"mapper": Order})
    lost = SessionOutbox(simple.store)
    with told.bind(Session(binds={Order: engine})) as session:
        session.add(Order("a"))
        told.put(session, OrderPlaced("a"))
        session.commit()
    with lost.bind(Session(binds={Model: engine})) as session:
        session.add(Order("b"))
        lost.put(session, OrderPlaced("b"))
        with pytest.raises(PutRefused, match="bind_arguments"):
            session.commit()
    engine.dispose()

    assert simple.keys() == ["a"]
    assert simple.orders() == ["a"]


async def test_async_sessions(place: Place, outbox: SessionOutbox) -> None:
    engine = place.async_engine()
    other = async_sessionmaker(engine)
    sessions = outbox.bind(async_sessionmaker(engine))
    async with sessions.begin() as session:
        (put,) = outbox.put(session, OrderPlaced("a"))
        session.add(Order("a"))
        with suppress(Changed):
            async with session.begin_nested():
                outbox.put(session, OrderPlaced("b"))
                raise Changed
    async with sessions() as session:
        session.add(Order("c"))
        outbox.put(session, OrderPlaced("c"))
        await session.rollback()
    async with other.begin() as session:
        with pytest.raises(PutRefused, match=r"outbox\.bind"):
            outbox.put(session, OrderPlaced("d"))
    await engine.dispose()

    assert place.rows("id") == [(put.id,)]


async def test_async_sessions_of_every_make(simple: Place) -> None:
    outbox = SessionOutbox(simple.store)
    engine = simple.async_engine()
    inner = sessionmaker()
    made = outbox.bind(async_sessionmaker(engine, sync_session_class=inner))
    outbox.bind(made)
    async with made.begin() as session:
        outbox.put(session, OrderPlaced("1"))
    scoped = async_scoped_session(async_sessionmaker(engine), scopefunc=lambda: 1)
    outbox.bind(scoped)
    outbox.bind(scoped)
    async with scoped.begin():
        outbox.put(scoped, OrderPlaced("2"))
    await scoped.remove()
    async with outbox.bind(AsyncSession(engine)) as session, session.begin():
        outbox.put(session, OrderPlaced("3"))
    await engine.dispose()

    assert simple.keys() == ["1", "2", "3"]
