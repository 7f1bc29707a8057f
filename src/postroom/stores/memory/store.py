"""The memory store: every operation of the contract on dictionaries."""

import threading
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import assert_never

from postroom._clock import Clock, SystemClock, to_micros
from postroom.lane import Lane
from postroom.message import Entry, State
from postroom.outcome import Dead, Outcome, Retry, Sent, Settled
from postroom.statement import Statement
from postroom.store import Addressed, AuditRecord, Query, RelayStatus, Stats, StoreFeatures, Swept
from postroom.stores.memory import lanes as leases
from postroom.stores.memory.tables import Key, Tables, key_of, place_of, rows_of
from postroom.stores.memory.transaction import MemoryTransaction
from postroom.stores.memory.turns import Bell, Turns
from postroom.stores.selection import DISCARD, RELEASE, Plan, described, replay_of
from postroom.stores.sharing import Place

_FEATURES = StoreFeatures(wakes=True, durable=False, many_processes=False)
_UNSENT = (State.READY, State.WAITING, State.HELD)


class MemoryStore:
    """An outbox and an inbox that live as long as this object; for tests, in any thread.

        store = MemoryStore()
        with store.begin() as transaction:
            outbox.put(transaction, OrderPlaced(...))

    `release_chunk` is how many held rows of a key become ready at once.
    """

    def __init__(self, *, clock: Clock | None = None, release_chunk: int = 500) -> None:
        self._clock = clock or SystemClock()
        self._release_chunk = release_chunk
        self._tables = Tables()
        self._guard = threading.RLock()
        self._turns = Turns()
        self._bell = Bell()

    @property
    def name(self) -> str:
        """The driver's name."""
        return "memory"

    @property
    def features(self) -> StoreFeatures:
        """What this store can do."""
        return _FEATURES

    async def open(self) -> None:
        """Do nothing: there is nothing to connect to."""

    async def close(self) -> None:
        """Do nothing: the rows stay as long as the object."""

    async def migrate(self) -> Sequence[str]:
        """Return no names: there is no schema."""
        return ()

    def schema(self) -> str:
        """Return no SQL."""
        return ""

    # In the caller's transaction

    def begin(self) -> MemoryTransaction:
        """Open a transaction, for `with` or `async with`; it waits there for its turn."""
        return MemoryTransaction(
            self._tables, self._guard, self._turns, clock=self._clock, committed=self._bell.ring
        )

    def insert(self, messages: Sequence[Addressed]) -> Statement:
        """Return the statement that adds these rows, in this order."""
        return Statement(sql="", rows=rows_of(messages), name="insert")

    def mark(self, consumer: str, message_id: str) -> Statement:
        """Return the statement that affects 1 row at the first sight of a message, else 0."""
        row = {"consumer": consumer, "message_id": message_id}
        return Statement(sql="", rows=[row], name="mark")

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
        """Renew the relay's liveness, take and share lanes, and return all that it owns now."""
        now = to_micros(self._clock.now())
        with self._guard:
            leases.renew(self._tables, relay, routes, lease, now)
            gone = leases.gone(self._tables, renewal, now)
            leases.balance(self._tables, relay, gone, busy)
            leases.forget(self._tables, gone)
            owned = leases.owned_by(self._tables, relay)
            return [Lane(*place, self._tables.lanes[place].epoch) for place in owned]

    async def give(self, lanes: Sequence[Lane]) -> None:
        """Give these lanes back; those that are not ours any more are left alone."""
        with self._guard:
            leases.change_owner(self._tables, self._tables.owned(lanes), None)
        self._bell.ring()

    async def leave(self, relay: str) -> None:
        """Give back everything that the relay owns and forget it."""
        with self._guard:
            leases.change_owner(self._tables, leases.owned_by(self._tables, relay), None)
            self._tables.relays.pop(relay, None)
        self._bell.ring()

    async def read(
        self,
        lanes: Sequence[Lane],
        *,
        limit: int,
        per_lane: int,
        max_bytes: int,
        skip: Collection[int] = (),
    ) -> Sequence[Entry]:
        """Return ready rows of these lanes, in `seq` order within each lane."""
        with self._guard:
            blocking = self._tables.blocking()
            rows = self._ready({(lane.route, lane.number) for lane in lanes}, per_lane, skip)
        batch: list[Entry] = []
        for entry in rows[:limit]:
            max_bytes -= len(entry.message.payload)
            if batch and max_bytes < 0:
                break
            batch.append(replace(entry, behind=_is_behind(entry, blocking)))
        return batch

    async def settle(
        self, lanes: Sequence[Lane], settled: Sequence[Settled], *, keep: bool
    ) -> frozenset[int]:
        """Write down what became of these entries; return the seqs that were still ours."""
        now = self._clock.now()
        done: set[int] = set()
        unblocked: list[Key] = []
        with self._guard:
            places = self._tables.owned(lanes)
            for item in settled:
                entry = self._tables.ours(item.entry, places)
                if entry is None:
                    continue
                done.add(entry.seq)
                after = _after(entry, item.outcome, now)
                if after.state is State.SENT and not keep:
                    self._tables.remove(entry)
                else:
                    self._tables.change(after)
                key = key_of(entry)
                if key is not None and not after.blocks:
                    unblocked.append(key)
            self._tables.free_held(unblocked, places, self._release_chunk)
        return frozenset(done)

    async def hold(self, lanes: Sequence[Lane], entries: Sequence[Entry]) -> int:
        """Put these ready rows behind the head of their key; return how many were still ours."""
        with self._guard:
            places = self._tables.owned(lanes)
            rows = [self._tables.ours(entry, places) for entry in entries]
            held = [row for row in rows if row is not None and key_of(row) is not None]
            for row in held:
                self._tables.change(replace(row, state=State.HELD, blocks=True))
        return len(held)

    async def now(self) -> datetime:
        """Return the time of the store's clock."""
        return self._clock.now()

    async def sweep(self, lanes: Sequence[Lane], *, limit: int, orphans: bool) -> Swept:
        """Make ready what is due in these lanes, at most `limit` rows of each kind."""
        now = self._clock.now()
        with self._guard:
            places = self._tables.owned(lanes)
            due = self._due(State.WAITING, places, now)[:limit]
            for row in due:
                self._tables.change(replace(row, state=State.READY, blocks=False, due_at=None))
            scheduled = self._due(State.SCHEDULED, places, now)[:limit]
            for row in scheduled:
                self._tables.move_to_end(replace(row, state=State.READY, due_at=None))
            self._unblock_expired(places, now, limit)
            freed = self._free_orphans(places, limit) if orphans else 0
            later = [
                row.due_at
                for row in self._tables.outbox.values()
                if row.due_at is not None and place_of(row) in places
            ]
        return Swept(
            due=len(due), scheduled=len(scheduled), freed=freed, next_due=min(later, default=None)
        )

    async def wait(self, timeout: timedelta) -> None:
        """Wait for the time-out, or until a caller or a person commits, or lanes become free."""
        await self._bell.wait(timeout, self._clock)

    # The operator's side

    async def stats(self) -> Stats:
        """Return counts and ages."""
        now = to_micros(self._clock.now())
        counts: dict[str, dict[State, int]] = {}
        oldest: dict[str, datetime] = {}
        inbox: dict[str, int] = {}
        with self._guard:
            for row in self._tables.outbox.values():
                states = counts.setdefault(row.route, {})
                states[row.state] = states.get(row.state, 0) + 1
                if row.state in _UNSENT and row.created_at is not None:
                    first = oldest.get(row.route, row.created_at)
                    oldest[row.route] = min(first, row.created_at)
            for consumer, _ in self._tables.inbox:
                inbox[consumer] = inbox.get(consumer, 0) + 1
            heads = self._tables.blocking().values()
            return Stats(
                counts=counts,
                oldest_unsent_at=oldest,
                blocked_keys=sum(any(r.state is not State.HELD for r in rows) for rows in heads),
                relays=[self._relay_status(name, now) for name in sorted(self._tables.relays)],
                inbox=inbox,
                schema_version=0,
            )

    async def find(self, query: Query, *, limit: int) -> Sequence[Entry]:
        """Return matching rows in `seq` order."""
        with self._guard:
            return self._tables.matching(query, tuple(State), limit)

    async def replay(self, query: Query, *, limit: int, actor: str, dry_run: bool) -> int:
        """Make matching dead (or, if the query names them, sent) rows ready; return how many."""
        with self._guard:
            rows = self._tables.matching(query, replay_of(query).states, limit)
            for row in () if dry_run else rows:
                again = replace(
                    row, state=State.READY, attempts=0, blocks=False, settled_at=None, error=None
                )
                if row.blocks:
                    self._tables.change(again)
                else:
                    self._tables.move_to_end(again)
            return self._acted("replay", actor, described(query), len(rows), dry_run=dry_run)

    async def discard(self, query: Query, *, limit: int, actor: str, dry_run: bool) -> int:
        """Delete matching rows that are dead, waiting, held or scheduled; return how many."""
        with self._guard:
            rows = self._tables.matching(query, DISCARD.states, limit)
            for row in () if dry_run else rows:
                self._tables.remove(row)
            return self._acted("discard", actor, described(query), len(rows), dry_run=dry_run)

    async def release(self, query: Query, *, limit: int, actor: str, dry_run: bool) -> int:
        """Let keys go on past their dead heads: matching dead rows stop blocking."""
        with self._guard:
            dead = self._tables.matching(query, RELEASE.states, len(self._tables.outbox))
            rows = [row for row in dead if row.blocks][:limit]
            for row in () if dry_run else rows:
                self._tables.change(replace(row, blocks=False))
            return self._acted("release", actor, described(query), len(rows), dry_run=dry_run)

    async def prune(
        self,
        *,
        sent_before: datetime | None,
        inbox_before: datetime | None,
        limit: int,  # noqa: ARG002 - there is no lock that short transactions would shorten
        actor: str,
        dry_run: bool,
    ) -> tuple[int, int]:
        """Delete sent rows and inbox rows older than these; return how many of each."""
        plan = Plan(sent_before=sent_before, inbox_before=inbox_before, actor=actor)
        with self._guard:
            sent = [
                row
                for row in self._tables.outbox.values()
                if row.state is State.SENT and _before(row.settled_at, sent_before)
            ]
            marks = [mark for mark, at in self._tables.inbox.items() if _before(at, inbox_before)]
            if not dry_run:
                for row in sent:
                    self._tables.remove(row)
                for mark in marks:
                    del self._tables.inbox[mark]
            self._acted("prune", actor, plan.detail, len(sent) + len(marks), dry_run=dry_run)
        return len(sent), len(marks)

    async def audit(self, *, limit: int) -> Sequence[AuditRecord]:
        """Return what people changed, the newest first."""
        with self._guard:
            return self._tables.audit[::-1][:limit]

    def _ready(self, places: set[Place], per_lane: int, skip: Collection[int]) -> list[Entry]:
        """Return ready rows: the first of each lane, then the second of each, and so on."""
        taken: dict[Place, int] = {}
        rows: list[tuple[int, Entry]] = []
        for row in self._tables.outbox.values():
            place = place_of(row)
            rank = taken.get(place, 0)
            if row.state is State.READY and place in places and row.seq not in skip:
                taken[place] = rank + 1
                if rank < per_lane:
                    rows.append((rank, row))
        return [row for _, row in sorted(rows, key=lambda ranked: ranked[0])]

    def _due(self, state: State, places: Collection[Place], now: datetime) -> list[Entry]:
        """Return rows of one state whose time has come, the longest due first."""
        rows = [
            (row.due_at, row)
            for row in self._tables.outbox.values()
            if row.state is state and row.due_at is not None and place_of(row) in places
        ]
        return [row for due_at, row in sorted(rows, key=lambda due: due[0]) if due_at <= now]

    def _unblock_expired(self, places: Collection[Place], now: datetime, limit: int) -> None:
        rows = [
            row
            for row in self._tables.outbox.values()
            if row.state is State.DEAD
            and row.blocks
            and place_of(row) in places
            and row.message.expires_at is not None
            and row.message.expires_at <= now
        ]
        for row in rows[:limit]:
            self._tables.change(replace(row, blocks=False))

    def _free_orphans(self, places: Collection[Place], limit: int) -> int:
        freed = 0
        for key, rows in self._tables.blocking().items():
            chunk = min(self._release_chunk, limit - freed)
            if rows[0].state is State.HELD and chunk > 0:
                freed += self._tables.free_held([key], places, chunk)
        return freed

    def _relay_status(self, name: str, now: int) -> RelayStatus:
        return self._tables.relays[name].status(now, len(leases.owned_by(self._tables, name)))

    def _acted(self, action: str, actor: str, detail: str, count: int, *, dry_run: bool) -> int:
        if count and not dry_run:
            self._tables.audit.append(
                AuditRecord(
                    at=self._clock.now(), actor=actor, action=action, detail=detail, count=count
                )
            )
            self._bell.ring()
        return count


def _is_behind(entry: Entry, blocking: Mapping[Key, Sequence[Entry]]) -> bool:
    """Tell whether an earlier row of its key keeps this one back."""
    key = key_of(entry)
    rows = blocking.get(key, ()) if key is not None else ()
    return bool(rows) and rows[0].seq < entry.seq


def _after(entry: Entry, outcome: Outcome, now: datetime) -> Entry:
    """Return the row as the outcome leaves it."""
    match outcome:
        case Sent():
            return replace(entry, state=State.SENT, settled_at=now, error=None)
        case Retry(delay=delay, error=error):
            return replace(
                entry,
                state=State.WAITING,
                attempts=entry.attempts + 1,
                blocks=True,
                due_at=_earlier(now + delay, entry.message.expires_at),
                error=error,
            )
        case Dead(error=error, blocks=blocks, attempted=attempted):
            return replace(
                entry,
                state=State.DEAD,
                attempts=entry.attempts + (1 if attempted else 0),
                blocks=blocks,
                settled_at=now,
                error=error,
            )
        case _:
            assert_never(outcome)


def _earlier(moment: datetime, other: datetime | None) -> datetime:
    return moment if other is None else min(moment, other)


def _before(moment: datetime | None, limit: datetime | None) -> bool:
    return moment is not None and limit is not None and moment < limit
