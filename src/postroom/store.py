"""The contract to a database: few methods, each in the words of the outbox."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Protocol

from postroom.lane import Lane
from postroom.message import Entry, Message, State
from postroom.outcome import Settled
from postroom.statement import Statement


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreFeatures:
    """What differs between databases; the same object serves code, tests and documentation."""

    wakes: bool
    """`wait` returns early when another connection commits."""
    durable: bool
    """Rows survive the end of the process."""
    many_processes: bool
    """Several processes may use it at once."""


@dataclass(frozen=True, slots=True)
class Addressed:
    """A message and the route that takes it, ready to be inserted."""

    route: str
    message: Message


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """Which rows a person means; all given fields must match."""

    states: Collection[State] = ()
    ids: Collection[str] = ()
    route: str | None = None
    key: str | None = None
    type: str | None = None
    topic: str | None = None
    created_from: datetime | None = None
    """Inclusive."""
    created_before: datetime | None = None
    """Exclusive."""
    after_seq: int = 0
    """Only rows with a higher seq, to page on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Swept:
    """What one sweep made ready."""

    due: int = 0
    """Retries whose backoff is over; they keep their place in the order."""
    scheduled: int = 0
    """Scheduled messages that are due; each takes a new place at the end."""
    freed: int = 0
    """Held rows with no blocking row before them."""
    next_due: datetime | None = None
    """When the next retry or scheduled message of these lanes is due."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RelayStatus:
    """One relay as the database sees it."""

    name: str
    seen_at: datetime
    alive: bool
    lanes: int
    routes: tuple[str, ...]
    """Routes that it serves."""
    paused_routes: tuple[str, ...]
    """Routes whose broker it cannot reach."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stats:
    """The state of the outbox, readable without any relay running."""

    counts: Mapping[str, Mapping[State, int]]
    """Rows by route and state; states without rows may be missing."""
    oldest_unsent_at: Mapping[str, datetime]
    """By route: when the oldest row was created that is ready, waiting or held."""
    blocked_keys: int
    """Keys with a row that keeps later ones back (waiting, or dead under park)."""
    relays: Sequence[RelayStatus]
    inbox: Mapping[str, int]
    """Inbox rows by consumer."""
    schema_version: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditRecord:
    """One change that a person made, or tried with a dry run never: only real ones are kept."""

    at: datetime
    actor: str
    action: str
    detail: str
    count: int


class Writer(Protocol):
    """The part that joins a caller's transaction. No I/O: it only writes SQL."""

    def insert(self, messages: Sequence[Addressed]) -> Statement:
        """Return the statement that adds these rows, in this order."""
        ...

    def mark(self, consumer: str, message_id: str) -> Statement:
        """Return the statement that affects 1 row at the first sight of a message, else 0."""
        ...


class Store(Writer, Protocol):
    """One implementation per database.

    Every method that changes rows is one short transaction of its own. While the database is
    down, locked for longer than its time-out, or read-only they raise `StoreUnavailable`; then
    nothing is changed, or (connection lost at commit) all of it is.
    """

    @property
    def name(self) -> str:
        """The driver's name, as in an address (`sqlite`)."""
        ...

    @property
    def features(self) -> StoreFeatures:
        """What this database can do."""
        ...

    async def open(self) -> None:
        """Connect; idempotent. The schema is checked by the first use that needs it."""
        ...

    async def close(self) -> None:
        """Disconnect; idempotent."""
        ...

    async def migrate(self) -> Sequence[str]:
        """Bring the schema up to date; return the names of the migrations applied now.

        Safe when several processes start at once.
        """
        ...

    def schema(self) -> str:
        """Return the SQL of all migrations, for a person who runs it by hand."""
        ...

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
        """Renew the relay's liveness, take and share lanes, and return all that it owns now.

        `routes` names the routes it serves, and whether it can reach their broker now. Fair
        shares: with n live relays able to serve a route nobody keeps more than 64/n lanes,
        rounded up; lanes over that, and lanes of a route that this relay cannot serve while
        another can, are given back unless they are in `busy` (something is in flight).

        The database's clock decides. A relay's lanes are free when its last renewal is older
        than its lease, was seen so by some relay, and is still so one `renewal` later: a stall
        of the database alone robs nobody. Every change of owner raises the lane's epoch.
        """
        ...

    async def give(self, lanes: Sequence[Lane]) -> None:
        """Give these lanes back; those that are not ours any more are left alone."""
        ...

    async def leave(self, relay: str) -> None:
        """Give back everything that the relay owns and forget it."""
        ...

    async def read(
        self,
        lanes: Sequence[Lane],
        *,
        limit: int,
        per_lane: int,
        max_bytes: int,
        skip: Collection[int] = (),
    ) -> Sequence[Entry]:
        """Return ready rows of these lanes, in `seq` order within each lane. Locks nothing.

        At most `limit` rows, `per_lane` of each lane, and `max_bytes` of payloads (but at least
        one row if there is any); never rows whose seq is in `skip` (they are in flight). A row
        with an earlier blocking row of its route and key comes with `behind` set; one that
        cannot be made a message again comes with `unreadable` set and stops no other.
        """
        ...

    async def settle(
        self, lanes: Sequence[Lane], settled: Sequence[Settled], *, keep: bool
    ) -> frozenset[int]:
        """Write down what became of these entries; return the seqs that were still ours.

        One transaction, which first locks the lane rows with owner and epoch matched: entries
        of lanes that changed owner are left alone. Rows are matched by seq and id and must be
        ready. `Sent` rows are kept as sent (`keep`) or deleted at once. A `Retry` waits until
        now plus its delay, or until the message expires if that is earlier. Where a key's head
        was sent or given up without blocking and no blocking row remains before them, the
        first chunk of its held rows becomes ready in the same transaction.
        """
        ...

    async def hold(self, lanes: Sequence[Lane], entries: Sequence[Entry]) -> int:
        """Put these ready rows behind the head of their key; return how many were still ours."""
        ...

    async def now(self) -> datetime:
        """Return the time by which this store's messages are due and expire.

        A relay goes by it, so that the clocks of its machines need not agree.
        """
        ...

    async def sweep(self, lanes: Sequence[Lane], *, limit: int, orphans: bool) -> Swept:
        """Make ready what is due in these lanes, at most `limit` rows of each kind.

        Due retries keep their seq; due scheduled rows take new ones. A dead row that blocks
        and has expired stops blocking. With `orphans`, held rows whose first blocking row is
        itself a held one are freed, in order and in chunks. Writes nothing when nothing is due.
        """
        ...

    async def wait(self, timeout: timedelta) -> None:
        """Wait for the time-out; with `features.wakes`, only until somebody else commits.

        A commit between two calls of `wait` ends the second at once.
        """
        ...

    # The operator's side. Only rows at rest are changed; the relay frees what that unblocks.

    async def stats(self) -> Stats:
        """Return counts and ages."""
        ...

    async def find(self, query: Query, *, limit: int) -> Sequence[Entry]:
        """Return matching rows in `seq` order."""
        ...

    async def replay(self, query: Query, *, limit: int, actor: str, dry_run: bool) -> int:
        """Make matching dead (or, if the query names them, sent) rows ready; return how many.

        A dead row that blocks its key keeps its seq; every other takes a new one. Attempts
        start at 0 again; the id stays.
        """
        ...

    async def discard(self, query: Query, *, limit: int, actor: str, dry_run: bool) -> int:
        """Delete matching rows that are dead, waiting, held or scheduled; return how many."""
        ...

    async def release(self, query: Query, *, limit: int, actor: str, dry_run: bool) -> int:
        """Let keys go on past their dead heads: matching dead rows stop blocking."""
        ...

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

        Works in short transactions of at most `limit` rows, until nothing older is left.
        """
        ...

    async def audit(self, *, limit: int) -> Sequence[AuditRecord]:
        """Return what people changed, the newest first."""
        ...
