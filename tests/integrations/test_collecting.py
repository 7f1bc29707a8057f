"""Events that objects record by themselves are put once, in order, with what they tell of."""

import gc
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import async_sessionmaker
from sqlalchemy.orm import Session, sessionmaker

from postroom.errors import InvalidMessage
from postroom.integrations.sqlalchemy import SessionOutbox
from tests.integrations.conftest import Model, Order, OrderPlaced, Place


class Changed(Exception):
    """The caller changed its mind."""


def collecting(place: Place) -> SessionOutbox:
    """Return an outbox that collects from orders."""
    outbox = SessionOutbox(place.store)
    outbox.collect(Order, Order.pull_events)
    return outbox


@pytest.fixture
def sessions(place: Place) -> Iterator[sessionmaker[Session]]:
    engine = place.engine()
    yield collecting(place).bind(sessionmaker(engine))
    engine.dispose()


@pytest.fixture
def simple_sessions(simple: Place) -> Iterator[sessionmaker[Session]]:
    engine = simple.engine()
    yield collecting(simple).bind(sessionmaker(engine))
    engine.dispose()


def stored(sessions: sessionmaker[Session], *names: str) -> None:
    """Commit orders, without their announcements."""
    with sessions.begin() as session:
        for name in names:
            session.execute(sa.insert(Order).values(id=name, state="placed", version=0))


def told(place: Place) -> list[tuple[str, str]]:
    """Return key and type of each committed message, in order."""
    return list(zip(place.keys(), place.types(), strict=True))


def test_in_order_and_once(place: Place, sessions: sessionmaker[Session]) -> None:
    stored(sessions, "a")
    with sessions.begin() as session:
        session.get_one(Order, "a").change()
        session.add(placed := Order("b"))
        placed.change()
        session.flush()
        session.get_one(Order, "a").change()
        placed.change()
    with sessions.begin() as session:
        session.get_one(Order, "b")

    payloads = [row[0] for row in place.rows("payload")]
    assert told(place) == [
        ("a", "changed"),
        ("a", "changed"),
        ("b", "placed"),
        ("b", "changed"),
        ("b", "changed"),
    ]
    assert [bytes(each)[-3:] for each in payloads[:2]] == [b":1}", b":2}"]


def test_a_savepoint_takes_along_what_was_recorded_in_it(
    place: Place, sessions: sessionmaker[Session]
) -> None:
    """What was recorded before stays, flushed or not; what it released stays too."""
    stored(sessions, "a", "b")
    with sessions.begin() as session:
        first, second = session.get_one(Order, "a"), session.get_one(Order, "b")
        first.change()
        with suppress(Changed), session.begin_nested():
            first.change()
            session.flush()
            second.change()
            session.add(Order("c"))
            raise Changed
        with session.begin_nested():
            second.change()
        version = first.version
        first.change()

    assert version == 1
    assert told(place) == [("a", "changed"), ("b", "changed"), ("a", "changed")]
    assert place.orders() == ["a", "b"]


def test_a_savepoint_ended_by_a_failed_flush(place: Place, sessions: sessionmaker[Session]) -> None:
    stored(sessions, "a", "b")
    with sessions.begin() as session:
        first = session.get_one(Order, "a")
        with suppress(IntegrityError), session.begin_nested():
            first.change()
            session.add(Order("b"))
        first.change()

    assert told(place) == [("a", "changed")]
    assert place.query("select version from orders where id = 'a'") == [(1,)]


def test_a_rollback_forgets_and_the_session_serves_again(
    place: Place, sessions: sessionmaker[Session]
) -> None:
    stored(sessions, "a")
    with sessions() as session:
        order = session.get_one(Order, "a")
        order.change()
        session.flush()
        order.change()
        session.rollback()
        order.change()
        session.commit()
        order.change()
        session.commit()

    assert told(place) == [("a", "changed")] * 2
    assert place.query("select version from orders") == [(2,)]


@pytest.mark.parametrize("flushed", [True, False])
def test_a_new_object_that_is_added_again_brings_its_events(
    place: Place, sessions: sessionmaker[Session], *, flushed: bool
) -> None:
    """After the rollback it is as new as before, and so is what it has to tell."""
    order = Order("a")
    with sessions() as session:
        session.add(order)
        order.change()
        if flushed:
            session.begin_nested()
            session.flush()
        session.rollback()
        session.add(order)
        session.commit()
        session.commit()

    assert place.orders() == ["a"]
    assert told(place) == [("a", "placed"), ("a", "changed")]


def test_a_new_object_of_a_commit_that_failed(
    place: Place, sessions: sessionmaker[Session]
) -> None:
    stored(sessions, "taken")
    order = Order("a")
    with sessions() as session:
        session.add(order)
        session.add(Order("taken"))
        with pytest.raises(IntegrityError):
            session.commit()
        session.rollback()
        session.add(order)
        session.commit()

    assert told(place) == [("a", "placed")]


def test_a_new_object_that_goes_to_another_session(
    place: Place, sessions: sessionmaker[Session]
) -> None:
    order = Order("a")
    with sessions() as session:
        session.add(order)
    with sessions.begin() as session:
        session.add(order)

    assert told(place) == [("a", "placed")]


def test_objects_that_nobody_holds(simple: Place, simple_sessions: sessionmaker[Session]) -> None:
    """Flushed by a query and let go, an object would be gone before the commit."""
    stored(simple_sessions, "a")

    def change(session: Session) -> None:
        session.get_one(Order, "a").change()

    with simple_sessions.begin() as session:
        change(session)
        session.execute(sa.select(sa.func.count()).select_from(Order))
        gc.collect()

    assert told(simple) == [("a", "changed")]


def test_objects_that_are_expunged_or_deleted(
    simple: Place, simple_sessions: sessionmaker[Session]
) -> None:
    """What is not written is not told; a deletion is written."""
    stored(simple_sessions, "a", "b")
    with simple_sessions.begin() as session:
        expunged, deleted = session.get_one(Order, "a"), session.get_one(Order, "b")
        expunged.change()
        session.expunge(expunged)
        deleted.change()
        session.delete(deleted)

    assert told(simple) == [("b", "changed")]
    assert simple.orders() == ["a"]


def test_a_detached_object_that_comes_back(
    simple: Place, simple_sessions: sessionmaker[Session]
) -> None:
    stored(simple_sessions, "a")
    with simple_sessions(expire_on_commit=False) as session:
        order = session.get_one(Order, "a")
        session.commit()
    order.change()
    with simple_sessions.begin() as session:
        session.add(order)

    assert told(simple) == [("a", "changed")]


def test_what_is_put_by_hand_comes_first(simple: Place) -> None:
    outbox = collecting(simple)
    engine = simple.engine()
    sessions = outbox.bind(sessionmaker(engine))
    with sessions.begin() as session:
        session.add(Order("a"))
        outbox.put(session, OrderPlaced("by hand"))
    engine.dispose()

    assert simple.keys() == ["by hand", "a"]


def test_an_event_that_cannot_be_put_fails_the_commit(
    simple: Place, simple_sessions: sessionmaker[Session]
) -> None:
    with simple_sessions() as session:
        session.add(order := Order("a"))
        order.events.append(OrderPlaced("\0"))
        with pytest.raises(InvalidMessage):
            session.commit()
        session.rollback()

    assert simple.orders() == []


def test_only_the_classes_that_were_named(simple: Place) -> None:
    """A subclass is one of them; whoever has no events is not asked."""
    asked: list[object] = []

    class Silent(Model):
        __tablename__ = "orders_of_nobody"
        id: sa.orm.Mapped[int] = sa.orm.mapped_column(primary_key=True)

    def pull(order: Order) -> list[object]:
        asked.append(order)
        return order.pull_events()

    outbox = SessionOutbox(simple.store)
    outbox.collect(Order, pull)
    engine = simple.engine()
    Silent.__table__.create(engine)  # type: ignore[attr-defined]
    with outbox.bind(sessionmaker(engine)).begin() as session:
        session.add_all([Silent(), order := Order("a")])
    engine.dispose()

    assert asked == [order]
    assert simple.keys() == ["a"]


async def test_async_sessions(place: Place) -> None:
    engine = place.async_engine()
    sessions = collecting(place).bind(async_sessionmaker(engine))
    async with sessions.begin() as session:
        session.add(order := Order("a"))
        with suppress(Changed):
            async with session.begin_nested():
                order.change()
                raise Changed
        await session.refresh(order)
        async with session.begin_nested():
            order.change()
    async with sessions() as session:
        loaded: Any = await session.get_one(Order, "a")
        loaded.change()
        await session.rollback()
        await session.refresh(loaded)
        loaded.change()
        await session.commit()
    await engine.dispose()

    assert told(place) == [("a", "placed"), ("a", "changed"), ("a", "changed")]
