"""The store on one SQLite file."""

import asyncio
import os
import sqlite3
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import TypeVar

from postroom._clock import LONGEST_PATIENCE, Clock, SystemClock, check_span, to_micros
from postroom.lane import Lane
from postroom.message import Entry
from postroom.outcome import Settled
from postroom.statement import Statement
from postroom.store import Addressed, AuditRecord, Query, Stats, StoreFeatures, Swept
from postroom.stores.queries import check_prefix, load_migrations, load_queries
from postroom.stores.rows import inbox_row, new_row, used_lanes
from postroom.stores.selection import DISCARD, RELEASE, Action, Plan, replay_of
from postroom.stores.sharing import Place
from postroom.stores.sqlite import desk, leases, pruning, reading, settling, sweeping
from postroom.stores.sqlite.file import File
from postroom.stores.sqlite.schema import migrate, printed, version_of
from postroom.stores.sqlite.work import Work
from postroom.stores.version import check_version

_PACKAGE = "postroom.stores.sqlite"

T = TypeVar("T")


class SqliteStore:
    """An outbox and inbox in an SQLite file, shared by several processes of one machine.

    The tables may live beside the application's own in the same file, which is what makes one
    transaction cover both. The file uses write-ahead logging; a write waits up to
    `busy_timeout` for the lock and then raises StoreUnavailable.
    """

    name = "sqlite"
    features = StoreFeatures(wakes=True, durable=True, many_processes=True)

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        prefix: str = "postroom_",
        clock: Clock | None = None,
        busy_timeout: timedelta = timedelta(seconds=5),
    ) -> None:
        """Name the file (`~` is understood) and the prefix of its tables; nothing is opened."""
        if os.fspath(path) in {"", ":memory:"}:
            raise ValueError("each connection would get a database of its own: use MemoryStore")
        check_span("busy_timeout", busy_timeout, most=LONGEST_PATIENCE)
        self.path = Path(path).expanduser().absolute()
        self.prefix = check_prefix(prefix)
        self._clock = clock or SystemClock()
        self._busy = busy_timeout
        self._sql = load_queries(_PACKAGE, prefix)
        self._migrations = load_migrations(_PACKAGE, prefix)
        self._file = File(self.path, busy_timeout, self._work, self._check)
        self._progress = sweeping.Progress()
        self._leased_in: int | None = None

    # In the caller's transaction

    def insert(self, messages: Sequence[Addressed]) -> Statement:
        """Return the statement that adds these rows, in this order."""
        now = to_micros(self._clock.now())
        rows = [new_row(message, now) for message in messages]
        return Statement(self._sql["insert"], rows, "insert")

    def mark(self, consumer: str, message_id: str) -> Statement:
        """Return the statement that affects 1 row at the first sight of a message, else 0."""
        row = inbox_row(consumer, message_id, to_micros(self._clock.now()))
        return Statement(self._sql["mark"], [row], "mark")

    # The file and its tables

    async def open(self) -> None:
        """Start the threads, and connect if the file is there; idempotent."""
        await self._file.open()

    async def close(self) -> None:
        """Let running work end, disconnect and end the threads; idempotent."""
        await self._file.close()

    async def migrate(self) -> Sequence[str]:
        """Create the file or bring its tables up to date; return the migrations applied now."""
        await asyncio.to_thread(self._file.create)
        return await self._file.run(
            lambda work: migrate(work, self._migrations, self._busy, self.path), checked=False
        )

    def schema(self) -> str:
        """Return the SQL of all migrations, for a person who runs it by hand."""
        return printed(self._migrations, self._sql["migrated"])

    # The relay's side

    async def lease(
        self,
        relay: str,
        *,
        routes: Mapping[str, bool],
        lease: timedelta,
        renewal: timedelta,
        busy: Collection[Lane] = (),
    ) -> Sequence[Lane]:
        """Renew, take and share lanes; return all that the relay owns now."""

        def renew(work: Work) -> Sequence[Lane]:
            self._leased_in = self._file.number
            return leases.lease(work, relay, routes, (lease, renewal), busy)

        return await self._write(renew)

    async def give(self, lanes: Sequence[Lane]) -> None:
        """Give these lanes back; those that are not ours any more are left alone."""
        await self._write(lambda work: leases.give(work, self._current(lanes)))

    async def leave(self, relay: str) -> None:
        """Give back everything that the relay owns and forget it."""
        await self._write(lambda work: leases.leave(work, relay))

    async def read(
        self,
        lanes: Sequence[Lane],
        *,
        limit: int,
        per_lane: int,
        max_bytes: int,
        skip: Collection[int] = (),
    ) -> Sequence[Entry]:
        """Return ready rows of these lanes, the oldest first; locks nothing.

        Every lane that has rows gets its share of `limit`. A row that cannot be decoded does
        not stop the others: it comes with what can be read, without headers, and with the
        reason in `unreadable`.
        """
        flying = frozenset(skip)
        return await self._file.run(
            lambda work: reading.read(
                work,
                self._current(lanes),
                limit=limit,
                per_lane=per_lane,
                max_bytes=max_bytes,
                skip=flying,
            )
        )

    async def settle(
        self, lanes: Sequence[Lane], settled: Sequence[Settled], *, keep: bool
    ) -> frozenset[int]:
        """Write down what became of these entries; return the seqs that were still ours."""
        if not settled:
            return frozenset()
        used = used_lanes(lanes, (one.entry for one in settled))
        return await self._write(
            lambda work: settling.settle(work, self._owned(work, used), settled, keep=keep)
        )

    async def hold(self, lanes: Sequence[Lane], entries: Sequence[Entry]) -> int:
        """Put these ready rows behind the head of their key; return how many were still ours."""
        if not entries:
            return 0
        used = used_lanes(lanes, entries)
        return await self._write(lambda work: settling.hold(work, self._owned(work, used), entries))

    async def now(self) -> datetime:
        """Return the time of this machine, on which the file is."""
        return self._clock.now()

    async def sweep(self, lanes: Sequence[Lane], *, limit: int, orphans: bool) -> Swept:
        """Make ready what is due in these lanes; writes nothing when nothing is due."""
        return await self._file.run(
            lambda work: sweeping.sweep(
                work,
                self._current(lanes),
                lambda: self._owned(work, lanes),
                self._progress,
                limit=limit,
                orphans=orphans,
            )
        )

    async def wait(self, timeout: timedelta) -> None:
        """Wait for the time-out by the store's clock, or until another connection commits.

        A commit between two calls ends the second at once. Meant for one caller at a time.
        """
        await self._file.changed(lambda: self._clock.sleep(timeout.total_seconds()))

    # The operator's side

    async def stats(self) -> Stats:
        """Return counts and ages."""
        return await self._file.run(desk.stats)

    async def find(self, query: Query, *, limit: int) -> Sequence[Entry]:
        """Return matching rows in `seq` order."""
        return await self._file.run(lambda work: desk.find(work, query, limit))

    async def replay(self, query: Query, *, limit: int, actor: str, dry_run: bool) -> int:
        """Make matching dead (or, if the query names them, sent) rows ready; return how many."""
        return await self._act(replay_of(query), query, limit=limit, actor=actor, dry_run=dry_run)

    async def discard(self, query: Query, *, limit: int, actor: str, dry_run: bool) -> int:
        """Delete matching rows that are dead, waiting, held or scheduled; return how many."""
        return await self._act(DISCARD, query, limit=limit, actor=actor, dry_run=dry_run)

    async def release(self, query: Query, *, limit: int, actor: str, dry_run: bool) -> int:
        """Let keys go on past their dead heads: matching dead rows stop blocking."""
        return await self._act(RELEASE, query, limit=limit, actor=actor, dry_run=dry_run)

    async def prune(
        self,
        *,
        sent_before: datetime | None,
        inbox_before: datetime | None,
        limit: int,
        actor: str,
        dry_run: bool,
    ) -> tuple[int, int]:
        """Delete sent rows and inbox rows older than these; return how many of each.

        Works in short transactions of at most `limit` rows, so others get their turn between.
        """
        plan = Plan(sent_before=sent_before, inbox_before=inbox_before, actor=actor)
        if dry_run:
            return await self._file.run(lambda work: pruning.count(work, plan))
        progress = pruning.Progress()
        while not progress.done:
            await self._write(lambda work: pruning.step(work, plan, progress, limit), durable=True)
        return progress.sent, progress.inbox

    async def audit(self, *, limit: int) -> Sequence[AuditRecord]:
        """Return what people changed, the newest first."""
        return await self._file.run(lambda work: desk.audit(work, limit))

    def _owned(self, work: Work, lanes: Iterable[Lane]) -> set[Place]:
        """Look up, under the write lock, which of these lanes are still ours: the fence."""
        return leases.owned(work, self._current(lanes))

    def _current(self, lanes: Iterable[Lane]) -> Sequence[Lane]:
        """Return the lanes, or none if they are of a file that another has replaced since.

        Epochs of two files say nothing about each other.
        """
        return list(lanes) if self._leased_in in {None, self._file.number} else []

    async def _write(self, change: Callable[[Work], T], *, durable: bool = False) -> T:
        """Change rows in one transaction.

        What a relay did may be undone by a power cut: it owns nothing after it, and sends again
        what it does not know to be sent. What a person did may not.
        """

        def locked(work: Work) -> T:
            with work.writing(durable=durable):
                return change(work)

        return await self._file.run(locked)

    async def _act(
        self, action: Action, query: Query, *, limit: int, actor: str, dry_run: bool
    ) -> int:
        return await self._file.run(
            lambda work: desk.act(work, action, query, limit=limit, actor=actor, dry_run=dry_run)
        )

    def _work(self, connection: sqlite3.Connection) -> Work:
        return Work(connection, self._sql, self._clock, self._busy.total_seconds())

    def _check(self, work: Work) -> None:
        check_version(version_of(work), self._migrations, self.path)
