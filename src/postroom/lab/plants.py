"""Wrong variants of the product's parts, for the lab to prove that it would notice.

Each is one mistake that systems of this kind have been shipped with. `--plant` runs the
scenario that must catch it.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any, cast

from postroom._clock import SystemClock, to_micros
from postroom.broker import BrokerFeatures
from postroom.errors import BrokerError
from postroom.lab.brief import Brief
from postroom.lab.database import Database
from postroom.lane import Lane
from postroom.message import Entry, Message
from postroom.outbox import SyncOutbox
from postroom.outcome import Dead, Retry, Sent, Settled
from postroom.relay import RelayBroker
from postroom.statement import Statement
from postroom.store import Addressed, Store, Writer
from postroom.stores.sqlite import SqliteStore

MARK_FIRST = "mark-first"
NO_FENCE = "no-fence"
INBOX_OUTSIDE = "inbox-outside"
NO_HOLD = "no-hold"
NO_SAVEPOINT_CHECK = "no-savepoint-check"
BY_POSITION = "by-position"
NO_CONFIRM = "no-confirm"

PLANTS: Mapping[str, str] = {
    MARK_FIRST: "the relay marks a message as sent before it publishes it",
    NO_FENCE: "a relay's writes count although its lanes have another owner",
    INBOX_OUTSIDE: "the consumer remembers a message in another transaction than its effect",
    NO_HOLD: "a message is sent although an earlier one of its key waits",
    NO_SAVEPOINT_CHECK: "a message may be put where no transaction holds it",
    BY_POSITION: "the relay reads on from the last number that it saw",
    NO_CONFIRM: "a message counts as sent once it is written, whatever the broker answers",
}

_SEEN = "CREATE TABLE IF NOT EXISTS seen (id TEXT PRIMARY KEY)"


def outbox(brief: Brief) -> SyncOutbox:
    """Return the careless order service's outbox, in its file."""
    store = SqliteStore(brief.places.file("shop"))
    if brief.plant == NO_SAVEPOINT_CHECK:
        return _Unchecked(store)
    return SyncOutbox(store)


def relay_store(brief: Brief) -> Store:
    """Return the store that a relay works on."""
    shop = brief.places.shop
    store = shop.store(patience=timedelta(seconds=brief.lease / 2))
    match brief.plant:
        case "mark-first":
            return cast("Store", _MarkFirst(store))
        case "no-fence":
            return cast("Store", _NoFence(store, shop, timedelta(seconds=brief.lease)))
        case "no-hold":
            return cast("Store", _NoHold(store))
        case "by-position":
            return cast("Store", _ByPosition(store))
    return store


def relay_broker(brief: Brief, broker: RelayBroker) -> RelayBroker:
    """Return the broker that a relay publishes to."""
    return _Unconfirmed(broker) if brief.plant == NO_CONFIRM else broker


def believed_lease(brief: Brief) -> timedelta:
    """Return how long a relay believes that its lanes are its own."""
    seconds = 60 if brief.plant == NO_FENCE else brief.lease
    return timedelta(seconds=seconds)


def inbox(brief: Brief) -> Writer:
    """Return what a consumer remembers messages in."""
    database = brief.places.effects(brief.consumer)
    if brief.plant == INBOX_OUTSIDE:
        return _Outside(database)
    return database.store()


class _Unchecked(SyncOutbox):
    def _check(self, connection: object) -> None:
        """Take any connection."""


class _Planted:
    """A store with some of its methods done wrong."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


class _MarkFirst(_Planted):
    """At most once: a crash between the mark and the publish loses the message."""

    async def read(self, lanes: Sequence[Lane], **options: Any) -> Sequence[Entry]:
        entries = await self._store.read(lanes, **options)
        marked = [Settled(entry=entry, outcome=Sent()) for entry in entries]
        if marked:
            await self._store.settle(lanes, marked, keep=True)
        return entries

    async def settle(
        self, lanes: Sequence[Lane], settled: Sequence[Settled], *, keep: bool
    ) -> frozenset[int]:
        del lanes, keep
        return frozenset(one.entry.seq for one in settled)


class _NoFence(_Planted):
    """Guards a row by its number alone; a relay that lost its lanes never learns of it."""

    def __init__(self, store: Store, database: Database, lease: timedelta) -> None:
        super().__init__(store)
        self._database = database
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
        lanes = await self._store.lease(
            relay, routes=routes, lease=self._short, renewal=renewal, busy=busy
        )
        self._ever.update({(lane.route, lane.number): lane for lane in lanes})
        return list(self._ever.values())

    async def settle(
        self, lanes: Sequence[Lane], settled: Sequence[Settled], *, keep: bool
    ) -> frozenset[int]:
        del lanes, keep
        for one in settled:
            self._database.at_once(
                "UPDATE postroom_outbox SET state = ?, blocks = ?, due_at = ?, error = ?"
                " WHERE seq = ? AND id = ?",
                *_unfenced(one),
            )
        return frozenset(one.entry.seq for one in settled)


class _NoHold(_Planted):
    """Looks at each row by itself."""

    async def read(self, lanes: Sequence[Lane], **options: Any) -> Sequence[Entry]:
        entries = await self._store.read(lanes, **options)
        return [replace(entry, behind=False) for entry in entries]

    async def hold(self, lanes: Sequence[Lane], entries: Sequence[Entry]) -> int:
        del lanes, entries
        return 0


class _ByPosition(_Planted):
    """Takes the numbers for the order of the commits: what commits late is never read."""

    def __init__(self, store: Store) -> None:
        super().__init__(store)
        self._last: dict[int, int] = {}

    async def read(self, lanes: Sequence[Lane], **options: Any) -> Sequence[Entry]:
        entries = await self._store.read(lanes, **options)
        later = [entry for entry in entries if entry.seq > self._last.get(entry.lane, 0)]
        self._last.update({entry.lane: entry.seq for entry in later})
        return later


class _Unconfirmed:
    """Fire and forget."""

    def __init__(self, broker: RelayBroker) -> None:
        self._broker = broker

    @property
    def features(self) -> BrokerFeatures:
        return self._broker.features

    async def publish(
        self, messages: Sequence[Message], *, timeout: timedelta
    ) -> Sequence[BrokerError | None]:
        await self._broker.publish(messages, timeout=timeout)
        return [None] * len(messages)

    async def ping(self) -> None:
        await self._broker.ping()


class _Outside:
    """Remembers in a transaction of its own, at once: a crash before the effect's loses it."""

    def __init__(self, database: Database) -> None:
        self._store = database.store()
        self._memory = database.aside()
        self._memory.create(_SEEN)

    def insert(self, messages: Sequence[Addressed]) -> Statement:
        return self._store.insert(messages)

    def mark(self, consumer: str, message_id: str) -> Statement:
        sql = "INSERT INTO seen VALUES (?) ON CONFLICT DO NOTHING"
        if self._memory.at_once(sql, message_id):
            return self._store.mark(consumer, message_id)
        return Statement(_NOTHING, [{}])


_NOTHING = "DELETE FROM postroom_inbox WHERE handled_at < 0"


def _unfenced(one: Settled) -> tuple[object, ...]:
    match one.outcome:
        case Sent():
            state, blocks, due, error = "sent", False, None, None
        case Retry(delay=delay, error=why):
            state, blocks, due, error = "waiting", True, _after(delay), why
        case Dead(error=why, blocks=blocking):
            state, blocks, due, error = "dead", blocking, None, why
    return state, blocks, due, error, one.entry.seq, one.entry.message.id


def _after(delay: timedelta) -> int:
    return to_micros(SystemClock().now() + delay)
