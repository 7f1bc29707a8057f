"""Wrong variants of the product's parts, for the lab to prove that it would notice.

Each is one mistake that systems of this kind have been shipped with. `--plant` runs the
scenario that must catch it.
"""

import sqlite3
from collections.abc import Collection, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

from postroom._clock import SystemClock, to_micros
from postroom.lab.brief import Brief
from postroom.lane import Lane
from postroom.message import Entry
from postroom.outbox import SyncOutbox
from postroom.outcome import Dead, Retry, Sent, Settled
from postroom.statement import Statement
from postroom.store import Addressed, Writer
from postroom.stores.sqlite import SqliteStore

MARK_FIRST = "mark-first"
NO_FENCE = "no-fence"
INBOX_OUTSIDE = "inbox-outside"
NO_HOLD = "no-hold"
NO_SAVEPOINT_CHECK = "no-savepoint-check"

_BUSY = timedelta(seconds=1)

PLANTS: Mapping[str, str] = {
    MARK_FIRST: "the relay marks a message as sent before it publishes it",
    NO_FENCE: "a relay's writes count although its lanes have another owner",
    INBOX_OUTSIDE: "the consumer remembers a message in another transaction than its effect",
    NO_HOLD: "a message is sent although an earlier one of its key waits",
    NO_SAVEPOINT_CHECK: "a message may be put where no transaction holds it",
}


def outbox(brief: Brief) -> SyncOutbox:
    """Return the order services' outbox."""
    store = SqliteStore(brief.places.shop)
    if brief.plant == NO_SAVEPOINT_CHECK:
        return _Unchecked(store)
    return SyncOutbox(store)


def relay_store(brief: Brief) -> SqliteStore:
    """Return the store that a relay works on."""
    path = brief.places.shop
    match brief.plant:
        case "mark-first":
            return _MarkFirst(path)
        case "no-fence":
            return _NoFence(path, timedelta(seconds=brief.lease))
        case "no-hold":
            return _NoHold(path)
    return SqliteStore(path, busy_timeout=_BUSY)


def believed_lease(brief: Brief) -> timedelta:
    """Return how long a relay believes that its lanes are its own."""
    seconds = 60 if brief.plant == NO_FENCE else brief.lease
    return timedelta(seconds=seconds)


def inbox(brief: Brief) -> Writer:
    """Return what a consumer remembers messages in."""
    path = brief.places.effects(brief.consumer)
    if brief.plant == INBOX_OUTSIDE:
        return _Outside(SqliteStore(path), path.with_suffix(".seen.db"))
    return SqliteStore(path)


class _Unchecked(SyncOutbox):
    def _check(self, connection: object) -> None:
        """Take any connection."""


class _MarkFirst(SqliteStore):
    """At most once: a crash between the mark and the publish loses the message."""

    async def read(
        self,
        lanes: Sequence[Lane],
        *,
        limit: int,
        per_lane: int,
        max_bytes: int,
        skip: Collection[int] = (),
    ) -> Sequence[Entry]:
        entries = await super().read(
            lanes, limit=limit, per_lane=per_lane, max_bytes=max_bytes, skip=skip
        )
        marked = [Settled(entry=entry, outcome=Sent()) for entry in entries]
        if marked:
            await super().settle(lanes, marked, keep=True)
        return entries

    async def settle(
        self, lanes: Sequence[Lane], settled: Sequence[Settled], *, keep: bool
    ) -> frozenset[int]:
        del lanes, keep
        return frozenset(one.entry.seq for one in settled)


class _NoFence(SqliteStore):
    """Guards a row by its number alone; a relay that lost its lanes never learns of it."""

    def __init__(self, path: Path, lease: timedelta) -> None:
        super().__init__(path)
        self._short = lease
        self._ever: dict[tuple[str, int], Lane] = {}

    async def lease(
        self,
        relay: str,
        *,
        routes: Mapping[str, bool],
        lease: timedelta,
        renewal: timedelta,
        busy: Collection[Lane] = (),
    ) -> Sequence[Lane]:
        del lease
        lanes = await super().lease(
            relay, routes=routes, lease=self._short, renewal=renewal, busy=busy
        )
        self._ever.update({(lane.route, lane.number): lane for lane in lanes})
        return list(self._ever.values())

    async def settle(
        self, lanes: Sequence[Lane], settled: Sequence[Settled], *, keep: bool
    ) -> frozenset[int]:
        del lanes, keep
        with closing(sqlite3.connect(self.path, timeout=10)) as connection, connection:
            connection.executemany(
                "UPDATE postroom_outbox SET state = ?, blocks = ?, due_at = ?, error = ?"
                " WHERE seq = ? AND id = ?",
                [_unfenced(one) for one in settled],
            )
        return frozenset(one.entry.seq for one in settled)


class _NoHold(SqliteStore):
    """Looks at each row by itself."""

    async def read(
        self,
        lanes: Sequence[Lane],
        *,
        limit: int,
        per_lane: int,
        max_bytes: int,
        skip: Collection[int] = (),
    ) -> Sequence[Entry]:
        entries = await super().read(
            lanes, limit=limit, per_lane=per_lane, max_bytes=max_bytes, skip=skip
        )
        return [replace(entry, behind=False) for entry in entries]

    async def hold(self, lanes: Sequence[Lane], entries: Sequence[Entry]) -> int:
        del lanes, entries
        return 0


class _Outside:
    """Remembers in a file of its own, at once: a crash before the effect's commit loses it."""

    def __init__(self, store: Writer, path: Path) -> None:
        self._store = store
        self._path = path

    def insert(self, messages: Sequence[Addressed]) -> Statement:
        return self._store.insert(messages)

    def mark(self, consumer: str, message_id: str) -> Statement:
        with closing(sqlite3.connect(self._path, timeout=10)) as connection, connection:
            connection.execute("CREATE TABLE IF NOT EXISTS seen (id TEXT PRIMARY KEY)")
            first = connection.execute("INSERT OR IGNORE INTO seen VALUES (?)", (message_id,))
            fresh = first.rowcount == 1
        if fresh:
            return self._store.mark(consumer, message_id)
        return Statement("UPDATE effects SET n = n WHERE place < 0", [{}])


def _unfenced(one: Settled) -> tuple[object, ...]:
    match one.outcome:
        case Sent():
            state, blocks, due, error = "sent", 0, None, None
        case Retry(delay=delay, error=why):
            state, blocks, due, error = "waiting", 1, _after(delay), why
        case Dead(error=why, blocks=blocking):
            state, blocks, due, error = "dead", int(blocking), None, why
    return state, blocks, due, error, one.entry.seq, one.entry.message.id


def _after(delay: timedelta) -> int:
    return to_micros(SystemClock().now() + delay)
