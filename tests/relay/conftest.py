"""A relay between a store and the scripted broker, moved step by step."""

import sqlite3
from collections.abc import AsyncIterator
from contextlib import closing
from datetime import timedelta
from pathlib import Path

import pytest

from postroom.events import Event
from postroom.message import Entry, Message, State
from postroom.outbox import SyncOutbox
from postroom.relay import Relay, RelayOptions
from postroom.retry import Backoff, RetryPolicy
from postroom.route import Route, Routes
from postroom.store import Query, Store
from postroom.stores.memory import MemoryStore
from postroom.stores.sqlite import SqliteStore
from postroom.testing.clock import ManualClock
from postroom.testing.scripted import ScriptedBroker

OPTIONS = RelayOptions(batch=100)


class Stage:
    """One store, one broker, and as many relays as a test wants."""

    def __init__(self, store: Store, clock: ManualClock) -> None:
        self.store = store
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
        if isinstance(self.store, MemoryStore):
            with self.store.begin() as transaction:
                outbox.put(transaction, *messages)
            return
        assert isinstance(self.store, SqliteStore)
        with closing(sqlite3.connect(self.store.path, isolation_level=None)) as connection:
            connection.execute("begin immediate")
            outbox.put(connection, *messages)
            connection.execute("commit")

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


@pytest.fixture(params=["memory", "sqlite"])
async def stage(
    request: pytest.FixtureRequest, clock: ManualClock, tmp_path: Path
) -> AsyncIterator[Stage]:
    store: Store
    if request.param == "memory":
        store = MemoryStore(clock=clock)
    else:
        store = SqliteStore(tmp_path / "outbox.db", clock=clock)
    await store.open()
    await store.migrate()
    yield Stage(store, clock)
    await store.close()
