"""A process that stops at a named point of its transaction, so that it can be killed there.

    python -m tests.field.stopping DATABASE KIND WORK POINT

DATABASE is a file, or `ADDRESS#SCHEMA` in PostgreSQL; KIND is the connection, WORK is `place`
(order and message) or `handle` (inbox row and effect). It writes the name of each point it
reaches, and waits at POINT for a line that never comes. The point `nowhere` makes it work on
without end.
"""

import asyncio
import sqlite3
import sys
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any, cast

import aiosqlite
import asyncpg
import psycopg
import sqlalchemy as sa
from sqlalchemy import event
from sqlalchemy.orm import Session

from postroom import Inbox, Message, Outbox, SyncOutbox
from postroom.connections import asyncpg_transactions
from postroom.connections.sqlalchemy import begin_immediately
from postroom.integrations.sqlalchemy import SessionOutbox
from postroom.stores.sqlite import SqliteStore
from tests.postgresql import Ground

POINTS = ("begun", "first", "second", "committed")
MESSAGE_ID = "018f0000-0000-7000-8000-000000000001"
CONSUMER = "shipping"
ORDER = "insert into orders (id) values (:id)"

Reached = Callable[[str], None]


def placed(name: str) -> Message:
    """Return the message of an order."""
    return Message(type="shop.order-placed", key=name, payload=b"{}")


def place_sqlite3(store: SqliteStore, name: str, reached: Reached) -> None:
    """Write the order, then its message."""
    connection = sqlite3.connect(store.path, isolation_level=None)
    connection.execute("BEGIN IMMEDIATE")
    reached("begun")
    connection.execute(ORDER, {"id": name})
    reached("first")
    SyncOutbox(store).put(connection, placed(name))
    reached("second")
    connection.execute("COMMIT")
    reached("committed")
    connection.close()


def place_session(store: SqliteStore, name: str, reached: Reached) -> None:
    """Write the message, inside a savepoint, then the order."""
    engine = begin_immediately(sa.create_engine(f"sqlite:///{store.path}"))
    with Session(engine) as session, session.begin():
        reached("begun")
        with session.begin_nested():
            SyncOutbox(store).put(session, placed(name))
        reached("first")
        session.execute(sa.text(ORDER), {"id": name})
        reached("second")
    reached("committed")
    engine.dispose()


async def place_aiosqlite(store: SqliteStore, name: str, reached: Reached) -> None:
    """Write the order, then its message."""
    async with aiosqlite.connect(store.path, isolation_level=None) as connection:
        await connection.execute("BEGIN IMMEDIATE")
        reached("begun")
        await connection.execute(ORDER, {"id": name})
        reached("first")
        await Outbox(store).put(connection, placed(name))
        reached("second")
        await connection.execute("COMMIT")
        reached("committed")


def handle_sqlite3(store: SqliteStore, name: str, reached: Reached) -> None:
    """Write the inbox row, then the effect."""
    connection = sqlite3.connect(store.path, isolation_level=None)
    connection.execute("BEGIN IMMEDIATE")
    reached("begun")
    if Inbox(store, CONSUMER).first(connection, MESSAGE_ID):
        reached("first")
        connection.execute(ORDER, {"id": name})
        reached("second")
    connection.execute("COMMIT")
    reached("committed")
    connection.close()


def handle_session(store: SqliteStore, name: str, reached: Reached) -> None:
    """Write the inbox row, then the effect."""
    engine = begin_immediately(sa.create_engine(f"sqlite:///{store.path}"))
    with Session(engine) as session, session.begin():
        reached("begun")
        if Inbox(store, CONSUMER).first(session, MESSAGE_ID):
            reached("first")
            session.execute(sa.text(ORDER), {"id": name})
            reached("second")
    reached("committed")
    engine.dispose()


async def handle_aiosqlite(store: SqliteStore, name: str, reached: Reached) -> None:
    """Write the inbox row, then the effect."""
    async with aiosqlite.connect(store.path, isolation_level=None) as connection:
        await connection.execute("BEGIN IMMEDIATE")
        reached("begun")
        if await Inbox(store, CONSUMER).first_async(connection, MESSAGE_ID):
            reached("first")
            await connection.execute(ORDER, {"id": name})
            reached("second")
        await connection.execute("COMMIT")
        reached("committed")


async def place_asyncpg(place: Ground, name: str, reached: Reached) -> None:
    """Write the order, then its message."""
    async with asyncpg.create_pool(
        place.url, min_size=1, max_size=1, server_settings={"search_path": place.path}
    ) as pool:
        async with asyncpg_transactions(pool)() as connection:
            reached("begun")
            await connection.execute("insert into orders (id) values ($1)", name)
            reached("first")
            await Outbox(place.store).put(connection, placed(name))
            reached("second")
        reached("committed")


def place_psycopg(place: Ground, name: str, reached: Reached) -> None:
    """Write the message, then the order."""
    with psycopg.connect(place.url, options=place.options) as connection:
        with connection.transaction():
            reached("begun")
            SyncOutbox(place.store).put(connection, placed(name))
            reached("first")
            connection.execute("insert into orders (id) values (%s)", [name])
            reached("second")
        reached("committed")


def place_late(place: Ground, name: str, reached: Reached) -> None:
    """Put the message into the session, to be written at its commit; then write the order."""
    engine = place.engine("psycopg2")
    outbox = SessionOutbox(place.store)
    with outbox.bind(Session(engine)) as session, session.begin():
        reached("begun")
        outbox.put(session, placed(name))
        reached("first")
        session.execute(sa.text(ORDER), {"id": name})
        event.listen(session, "before_commit", lambda _session: reached("second"))
    reached("committed")
    engine.dispose()


async def handle_asyncpg(place: Ground, name: str, reached: Reached) -> None:
    """Write the inbox row, then the effect."""
    async with asyncpg.create_pool(
        place.url, min_size=1, max_size=1, server_settings={"search_path": place.path}
    ) as pool:
        async with asyncpg_transactions(pool)() as connection:
            reached("begun")
            if await Inbox(place.store, CONSUMER).first_async(connection, MESSAGE_ID):
                reached("first")
                await connection.execute("insert into orders (id) values ($1)", name)
                reached("second")
        reached("committed")


WORK: dict[tuple[str, str], Callable[[Any, str, Reached], Any]] = {
    ("place", "asyncpg"): place_asyncpg,
    ("place", "psycopg"): place_psycopg,
    ("place", "late"): place_late,
    ("handle", "asyncpg"): handle_asyncpg,
    ("place", "sqlite3"): place_sqlite3,
    ("place", "session"): place_session,
    ("place", "aiosqlite"): place_aiosqlite,
    ("handle", "sqlite3"): handle_sqlite3,
    ("handle", "session"): handle_session,
    ("handle", "aiosqlite"): handle_aiosqlite,
}


def database(address: str) -> Any:
    """Return the store of a file, or the schema in PostgreSQL."""
    url, _, schema = address.partition("#")
    if not schema:
        return SqliteStore(Path(address))
    return Ground(url, schema, cast("Any", None))  # nobody watches here


def main(path: str, kind: str, work: str, stop_at: str) -> None:
    """Do the work, once or without end."""
    where = database(path)

    def reached(point: str) -> None:
        print(point, flush=True)  # noqa: T201
        if point == stop_at:
            sys.stdin.readline()

    for number in count():
        done = WORK[work, kind](where, f"{kind}-{number}", reached)
        if done is not None:
            asyncio.run(done)
        if stop_at != "nowhere":
            return


if __name__ == "__main__":
    main(*sys.argv[1:])
