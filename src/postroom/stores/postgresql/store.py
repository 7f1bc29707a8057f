"""The store on PostgreSQL."""

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime, timedelta
from functools import partial
from typing import Any

from postroom._clock import Clock, SystemClock, from_micros, to_micros
from postroom.lane import Lane
from postroom.message import Entry
from postroom.outcome import Settled
from postroom.statement import Statement
from postroom.store import Addressed, AuditRecord, Query, Stats, StoreFeatures, Swept
from postroom.stores.postgresql import desk, leases, pruning, reading, settling, sweeping, writing
from postroom.stores.postgresql.database import Database, Patience
from postroom.stores.postgresql.marks import Marks
from postroom.stores.postgresql.names import Names
from postroom.stores.postgresql.reader import Reader
from postroom.stores.postgresql.schema import migrate, printed, require_utf8, version_of
from postroom.stores.postgresql.waiting import Listener
from postroom.stores.postgresql.work import Work
from postroom.stores.queries import check_prefix
from postroom.stores.rows import used_lanes
from postroom.stores.selection import DISCARD, RELEASE, Action, Plan, replay_of
from postroom.stores.version import check_version

_UNPREPARED: Mapping[str, Any] = {}


class PostgresqlStore:
    """An outbox and inbox in a PostgreSQL database, beside the application's own tables.

    Any number of processes and machines may use it. The database's clock decides. Nothing is
    kept in a session, so a transaction pooler may stand between; there are no wake-ups then.
    """

    name = "postgresql"
    features = StoreFeatures(wakes=True, durable=True, many_processes=True)

    def __init__(
        self,
        dsn: str,
        *,
        schema: str | None = None,
        prefix: str = "postroom_",
        clock: Clock | None = None,
        connections: int = 4,
        patience: Patience | None = None,
    ) -> None:
        """Name the database, and schema and prefix of the tables; nothing is opened.

        Without `schema` the tables are where the search path of the connections says. A `clock`
        is for tests: it takes the place of the database's own. Raises ValueError for a name that
        cannot be one, or without a connection to work with.
        """
        if connections < 1:
            raise ValueError(f"connections={connections}: the store works on at least 1")
        self.dsn = dsn
        self._names = Names(schema, check_prefix(prefix))
        self._clock = clock
        self._sql = self._names.queries()
        self._migrations = self._names.migrations()
        self._marks = Marks()
        self._progress = sweeping.Progress()
        self._database = Database(
            dsn, self._sql, size=connections, patience=patience or Patience(), now=self._now
        )
        self._database.check = self._check
        self._database.on_lost = self._forget
        self._listener: Listener | None = None
        self._reader: Reader | None = None

    # In the caller's transaction

    def insert(self, messages: Sequence[Addressed]) -> Statement:
        """Return the statement that adds these rows, in this order."""
        return writing.insert(self._sql, messages, self._now())

    def mark(self, consumer: str, message_id: str) -> Statement:
        """Return the statement that affects 1 row at the first sight of a message, else 0."""
        return writing.mark(self._sql, consumer, message_id, self._now())

    # The connections and the tables

    async def open(self) -> None:
        """Connect; idempotent."""
        await self._database.open()
        if self._listener is None:
            self._listener = Listener(self._database, self._wrap)
            self._reader = Reader(self._database, self._wrap)

    async def close(self) -> None:
        """Let running work end, and disconnect; idempotent."""
        if self._listener is not None:
            self._listener.close()
            self._listener = None
        if self._reader is not None:
            self._reader.close()
            self._reader = None
        await self._database.close()
        self._marks.forget()

    async def migrate(self) -> Sequence[str]:
        """Bring the tables up to date in one transaction; return the migrations applied now.

        Makes the schema if there is none. Safe when several processes start at once.
        """
        return await self._database.write(
            lambda work: migrate(work, self._names, self._migrations, self._database.place),
            slow=True,
            checked=False,
        )

    def schema(self) -> str:
        """Return the SQL of all migrations, for a person who runs it by hand."""
        return printed(self._names, self._migrations, self._sql["migrated"])

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
        """Renew, take and share lanes; return all that the relay owns now.

        A lane in which the statement of a stopped owner still runs is taken when that has ended.
        """
        await self._keep_marks()
        lanes = await self._database.write(
            lambda work: leases.lease(work, relay, routes, (lease, renewal), busy)
        )
        self._marks.keep_only(lanes)
        return lanes

    async def give(self, lanes: Sequence[Lane]) -> None:
        """Give these lanes back; those that are not ours any more are left alone."""
        await self._keep_marks(lanes)
        await self._database.write(lambda work: leases.give(work, lanes))

    async def leave(self, relay: str) -> None:
        """Give back everything that the relay owns and forget it."""
        await self._keep_marks(self._marks.lanes)
        await self._database.write(lambda work: leases.leave(work, relay))

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
        if not lanes:
            return []
        entries = await (self._reader or self._database).read(
            lambda work: reading.read(
                work,
                self._marks,
                lanes,
                limit=limit,
                per_lane=per_lane,
                max_bytes=max_bytes,
                skip=skip,
            )
        )
        if self._marks.wants_candidate:
            self._marks.propose(await self._database.write(reading.position))
        return entries

    async def settle(
        self, lanes: Sequence[Lane], settled: Sequence[Settled], *, keep: bool
    ) -> frozenset[int]:
        """Write down what became of these entries; return the seqs that were still ours."""
        used = used_lanes(lanes, (one.entry for one in settled))
        if not used:
            return frozenset()
        return await self._database.write(
            lambda work: settling.settle(work, self._marks, used, settled, keep=keep)
        )

    async def hold(self, lanes: Sequence[Lane], entries: Sequence[Entry]) -> int:
        """Put these ready rows behind the head of their key; return how many were still ours."""
        used = used_lanes(lanes, entries)
        if not used:
            return 0
        return await self._database.write(lambda work: settling.hold(work, used, entries))

    async def now(self) -> datetime:
        """Return the time of the database server."""
        return from_micros(await self._database.read(lambda work: work.value("clock")))

    async def sweep(self, lanes: Sequence[Lane], *, limit: int, orphans: bool) -> Swept:
        """Make ready what is due in these lanes; writes nothing when nothing is due."""
        if not lanes:
            return Swept()
        found = await self._database.read(
            lambda work: sweeping.look(
                work, self._marks, lanes, self._progress, limit=limit, orphans=orphans
            )
        )
        if not found.anything:
            return Swept(next_due=found.next_due)
        swept = await self._database.write(
            lambda work: sweeping.sweep(work, self._marks, lanes, found, limit=limit)
        )
        return await self._database.read(lambda work: sweeping.next_due(work, lanes, swept))

    async def wait(self, timeout: timedelta) -> None:
        """Wait for the time-out, or until another connection commits messages.

        A commit between two calls ends the second at once. Meant for one caller at a time. A
        transaction that was begun before the wait may not be heard: polling is the truth.
        """
        listener = self._listener
        if listener is None:
            self._database.require_open()
            return
        if self._reader is not None and listener.hears:
            # Now there is time for it; the read that a word of the listener leads to will be short.
            await self._reader.open()
        clock = self._clock or SystemClock()
        await listener.wait(lambda: clock.sleep(timeout.total_seconds()))

    # The operator's side

    async def stats(self) -> Stats:
        """Return counts and ages."""

        async def count(work: Work) -> Stats:
            return await desk.stats(work, await version_of(work, self._names))

        return await self._database.read(count, slow=True)

    async def find(self, query: Query, *, limit: int) -> Sequence[Entry]:
        """Return matching rows in `seq` order."""
        return await self._database.read(lambda work: desk.find(work, query, limit), slow=True)

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

        Works in short transactions of at most `limit` rows; rows that somebody has locked are
        left for the next time.
        """
        plan = Plan(sent_before=sent_before, inbox_before=inbox_before, actor=actor)
        if dry_run:
            return await self._database.read(lambda work: pruning.count(work, plan), slow=True)
        progress = pruning.Progress()
        while not progress.done:
            step = partial(pruning.step, plan=plan, progress=progress, limit=limit)
            progress = await self._database.write(step, slow=True)
        return progress.sent, progress.inbox

    async def audit(self, *, limit: int) -> Sequence[AuditRecord]:
        """Return what people changed, the newest first."""
        return await self._database.read(lambda work: desk.audit(work, limit))

    async def _act(
        self, action: Action, query: Query, *, limit: int, actor: str, dry_run: bool
    ) -> int:
        if dry_run:
            matches = await self._database.read(
                lambda work: desk.matching(work, query, action, limit), slow=True
            )
            return len(matches)
        return await self._database.write(
            lambda work: desk.act(work, action, query, limit=limit, actor=actor), slow=True
        )

    async def _keep_marks(self, lanes: Collection[Lane] | None = None) -> None:
        """Write marks down for the next owner: those of lanes that are given, or now and then."""
        worth = self._marks.worth_keeping(lanes)
        if worth:
            await self._database.write(lambda work: reading.keep(work, worth))
            self._marks.kept(worth)

    def _forget(self) -> None:
        self._marks.forget()
        if self._reader is not None:
            # It may be connected to a server that is not ours any more.
            self._reader.drop()

    def _now(self) -> int | None:
        return None if self._clock is None else to_micros(self._clock.now())

    def _wrap(
        self, connection: Any, patience: float, prepared: Mapping[str, Any] = _UNPREPARED
    ) -> Work:
        return Work(connection, self._sql, None, patience, prepared)

    async def _check(self, work: Work) -> None:
        await require_utf8(work, self._database.place)
        found = await version_of(work, self._names)
        check_version(found, self._migrations, self._database.place)
