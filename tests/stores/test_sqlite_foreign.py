"""Rows that another program wrote, with what no program should write."""

import sqlite3
from collections.abc import Sequence
from contextlib import closing
from datetime import UTC, datetime, timedelta

import pytest

from postroom.lane import Lane
from postroom.message import Entry, State
from postroom.outcome import Dead, Settled
from postroom.store import Query
from postroom.stores.sqlite import SqliteStore

SECOND = timedelta(seconds=1)
LATIN = "cast(x'4dfc6c6c6572' as text)"
"""'Müller' as Latin-1 has it."""
BLOB = "x'00ff23456789abcdef0123456789abcd'"
USUAL = {
    "id": "hex(randomblob(16))",
    "route": "'default'",
    "lane": "5",
    "state": "'ready'",
    "created_at": "1",
    "type": "'t'",
    "topic": "'t'",
    "content_type": "'x'",
    "payload": "x'00'",
}


def write(store: SqliteStore, **columns: str) -> None:
    """Insert a row with these columns, given as SQL."""
    given = {**USUAL, **columns}
    names, values = ", ".join(given), ", ".join(given.values())
    with closing(sqlite3.connect(store.path)) as connection:
        connection.execute(f"insert into postroom_outbox ({names}) values ({values})")  # noqa: S608
        connection.commit()


async def lease(store: SqliteStore) -> Sequence[Lane]:
    return await store.lease(
        "relay", routes={"default": True}, lease=15 * SECOND, renewal=5 * SECOND
    )


async def read(store: SqliteStore, lanes: Sequence[Lane]) -> Sequence[Entry]:
    return await store.read(lanes, limit=10, per_lane=10, max_bytes=1_000)


def buried(*entries: Entry, blocks: bool = False) -> list[Settled]:
    """Give up each of these."""
    return [
        Settled(one, Dead(error=one.unreadable or "", blocks=blocks, attempted=False))
        for one in entries
    ]


@pytest.mark.parametrize("column", ["id", "key", "type", "topic", "headers", "content_type"])
@pytest.mark.parametrize("value", [LATIN, BLOB])
async def test_a_row_with_a_text_that_is_none_is_given_up(
    sqlite_store: SqliteStore, column: str, value: str
) -> None:
    lanes = await lease(sqlite_store)
    write(sqlite_store, **{column: value})
    write(sqlite_store)

    odd, good = await read(sqlite_store, lanes)
    done = await sqlite_store.settle(lanes, buried(odd), keep=True)

    assert odd.unreadable
    assert good.unreadable is None
    assert done == {odd.seq}
    assert (await sqlite_store.stats()).counts == {"default": {State.DEAD: 1, State.READY: 1}}
    (dead,) = await sqlite_store.find(Query(states=[State.DEAD]), limit=9)
    assert dead.error == odd.unreadable


@pytest.mark.parametrize("key", [LATIN, BLOB])
async def test_rows_of_a_key_that_is_no_text_wait_and_are_freed(
    sqlite_store: SqliteStore, key: str
) -> None:
    lanes = await lease(sqlite_store)
    for _ in range(3):
        write(sqlite_store, key=key)
    head, *rest = await read(sqlite_store, lanes)

    await sqlite_store.settle(lanes, buried(head, blocks=True), keep=True)
    held = await sqlite_store.hold(lanes, rest)
    blocked = await sqlite_store.sweep(lanes, limit=9, orphans=True)
    await sqlite_store.discard(Query(states=[State.DEAD]), limit=9, actor="ada", dry_run=False)
    freed = await sqlite_store.sweep(lanes, limit=9, orphans=True)

    assert (held, blocked.freed, freed.freed) == (2, 0, 2)


async def test_another_message_under_the_same_number_is_not_settled(
    sqlite_store: SqliteStore,
) -> None:
    lanes = await lease(sqlite_store)
    write(sqlite_store, id=LATIN)
    (odd,) = await read(sqlite_store, lanes)
    with closing(sqlite3.connect(sqlite_store.path)) as connection:
        connection.execute("update postroom_outbox set id = cast(x'4dfd6c6c6572' as text)")
        connection.commit()

    assert await sqlite_store.settle(lanes, buried(odd), keep=True) == frozenset()
    assert await sqlite_store.hold(lanes, [odd]) == 0


@pytest.mark.parametrize("route", [LATIN, BLOB])
async def test_a_route_that_is_no_text_is_shown(sqlite_store: SqliteStore, route: str) -> None:
    write(sqlite_store, route=route)

    stats = await sqlite_store.stats()

    (shown,) = stats.counts
    assert "\\xf" in shown
    assert (await sqlite_store.find(Query(), limit=9))[0].route == shown


@pytest.mark.parametrize(
    ("due", "expected"),
    [
        ("1900000000000000000", datetime.max.replace(tzinfo=UTC)),
        ("9e18", datetime.max.replace(tzinfo=UTC)),
        ("-1900000000000000000", None),
        ("'tomorrow'", None),
        (LATIN, None),
    ],
)
async def test_a_time_that_no_calendar_has_stops_nobody(
    sqlite_store: SqliteStore, due: str, expected: datetime | None
) -> None:
    """A row that is due in nanoseconds, or at no time at all, waits or goes as SQL compares it."""
    lanes = await lease(sqlite_store)
    write(sqlite_store, state="'scheduled'", due_at=due, created_at=due)

    swept = await sqlite_store.sweep(lanes, limit=9, orphans=True)

    assert swept.next_due == expected
    assert swept.scheduled == due.startswith("-")
    await sqlite_store.stats()
    assert len(await sqlite_store.find(Query(), limit=9)) == 1


async def test_a_creation_in_nanoseconds_has_an_age(sqlite_store: SqliteStore) -> None:
    write(sqlite_store, created_at="1900000000000000000")
    write(sqlite_store, created_at="'yesterday'")

    stats = await sqlite_store.stats()

    assert stats.oldest_unsent_at == {"default": datetime.max.replace(tzinfo=UTC)}
