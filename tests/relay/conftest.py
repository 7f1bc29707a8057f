"""A relay between a store and the scripted broker, moved step by step."""

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest

from postroom.connections import sqlite3_transactions
from postroom.events import Event
from postroom.message import Entry, Message, State
from postroom.outbox import SyncOutbox
from postroom.relay import Relay, RelayOptions
from postroom.retry import Backoff, RetryPolicy
from postroom.route import Route, Routes
from postroom.store import Query, Store
from postroom.stores.memory import MemoryStore
from postroom.stores.postgresql import PostgresqlStore
from postroom.stores.postgresql.marks import Marks
from postroom.stores.postgresql.sweeping import Budget, Progress
from postroom.stores.sqlite import SqliteStore
from postroom.testing.clock import ManualClock
from postroom.testing.scripted import ScriptedBroker
from tests.postgresql import ground
from tests.servers import needed, postgresql_servers

OPTIONS = RelayOptions(batch=100)

Begin = Callable[[], AbstractContextManager[Any]]
"""Opens a transaction of a caller's, committed at the end."""


class Stage:
    """One store, one broker, and as many relays as a test wants."""

    def __init__(self, store: Store, clock: ManualClock, begin: Begin) -> None:
        self.store = store
        self.begin = begin
        self.clock = clock
        self.broker = ScriptedBroker(clock=clock)
        self.events: list[Event] = []
        self.route = Route(
            retry=RetryPolicy(
                max_attempts=5, backoff=Backoff(initial=timedelta(seconds=1), jitter=0)
            )
        )
        self.options = OPTIONS

    def relay(self, name: str = "one") -> Relay:
        """Return a relay of that name; it holds no lane before its first step."""
        return Relay(
            self.store,
            self.broker,
            routes=Routes([self.route]),
            options=self.options,
            observers=[self.events.append],
            clock=self.clock,
            name=name,
        )

    def commit(self, *messages: Message) -> None:
        """Put the messages in one committed transaction."""
        outbox = SyncOutbox(self.store, routes=Routes([self.route]))
        with self.begin() as connection:
            outbox.put(connection, *messages)

    async def settle_down(self, relay: Relay, *, rounds: int = 50) -> None:
        """Step until two rounds in a row find nothing, letting no time pass."""
        quiet = 0
        for _ in range(rounds):
            quiet = quiet + 1 if (await relay.step()).idle else 0
            if quiet == 2:
                return
        raise AssertionError("the relay never came to rest")

    async def rows(self, state: State | None = None) -> list[Entry]:
        """Return the rows of the outbox."""
        states = () if state is None else (state,)
        return list(await self.store.find(Query(states=states), limit=100_000))

    async def row(self, message: Message) -> Entry:
        """Return the row of one message."""
        (entry,) = await self.store.find(Query(ids=(message.id,)), limit=2)
        return entry

    def arrived(self, key: str | None = None) -> list[str]:
        """Return the payloads at the broker, in order, copies included."""
        return [
            message.payload.decode()
            for message in self.broker.arrived
            if key is None or message.key == key
        ]

    def seen(self, kind: type[Event]) -> list[Event]:
        """Return the events of a kind."""
        return [event for event in self.events if isinstance(event, kind)]


def note(payload: str, key: str | None = "k") -> Message:
    """Return a small message."""
    return Message(type="test.noted", payload=payload.encode(), key=key, content_type="text/plain")


def notes(count: int, key: str | None = "k", *, start: int = 1) -> list[Message]:
    """Return messages 1, 2, 3… of one key."""
    return [note(f"{key}{number}", key) for number in range(start, start + count)]


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@contextmanager
def on_memory(clock: ManualClock) -> Iterator[Stage]:
    """Stand on the store in plain Python."""
    store = MemoryStore(clock=clock)
    yield Stage(store, clock, store.begin)


@contextmanager
def on_sqlite(clock: ManualClock, path: Path) -> Iterator[Stage]:
    """Stand on a file."""
    begin = sqlite3_transactions(path)
    yield Stage(SqliteStore(path, clock=clock), clock, begin)
    begin.close()


@contextmanager
def on_postgresql(clock: ManualClock, url: str) -> Iterator[Stage]:
    """Stand on a schema of its own."""
    with ground(url) as place, psycopg.connect(url, autocommit=True) as connection:

        @contextmanager
        def begin() -> Iterator[Any]:
            with connection.transaction():
                yield connection

        store = PostgresqlStore(url, schema=place.schema, clock=clock)
        store._marks = Marks(clock.elapsed)
        store._progress = Progress(keys=Budget(clock.elapsed), below=Budget(clock.elapsed))
        yield Stage(store, clock, begin)


@pytest.fixture(params=["memory", "sqlite", *needed(postgresql_servers()[-1:], "PostgreSQL")])
async def stage(
    request: pytest.FixtureRequest, clock: ManualClock, tmp_path: Path
) -> AsyncIterator[Stage]:
    match request.param:
        case "memory":
            place = on_memory(clock)
        case "sqlite":
            place = on_sqlite(clock, tmp_path / "outbox.db")
        case server:
            place = on_postgresql(clock, server.url)
    with place as made:
        await made.store.open()
        await made.store.migrate()
        yield made
        await made.store.close()
