"""What the tests of a store act on, and how a store is given to them."""

from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

import pytest
import pytest_asyncio

from postroom._clock import Clock
from postroom.lane import Lane
from postroom.message import Entry, Message, State
from postroom.outcome import Dead, Retry, Sent, Settled
from postroom.statement import Statement
from postroom.store import Addressed, Query, Store
from postroom.testing.clock import ManualClock

LEASE = timedelta(seconds=15)
RENEWAL = timedelta(seconds=5)
SECOND = timedelta(seconds=1)
ALL = 1_000_000

Run = Callable[[Statement], Awaitable[int]]
"""Runs a statement in the caller's transaction; returns the affected rows, summed."""


class StoreHooks:
    """What a suite needs to know of the store that it tests."""

    pytestmark = pytest.mark.asyncio
    looks_twice = False
    """Whether a wait that heard a commit is followed by one that asks for another look, at once."""

    def make_store(self, clock: Clock, directory: Path) -> Store:
        """Return a store, not open yet, whose database is empty or has no tables.

        `directory` is empty at the start of every test. Called again in the same test it must
        return another store on the same data, as another process would have it (asked only of
        stores whose features say `many_processes`).
        """
        raise NotImplementedError

    def transaction(self, store: Store) -> AbstractAsyncContextManager[Run]:
        """Open a transaction of the caller's own; commit at the end, roll back on an error."""
        raise NotImplementedError

    @pytest.fixture
    def clock(self) -> ManualClock:
        """The time that store and test share."""
        return ManualClock()

    @pytest_asyncio.fixture
    async def stage(self, clock: ManualClock, tmp_path: Path) -> AsyncIterator["Stage"]:
        """An open store with its tables, closed after the test."""
        stage = Stage(hooks=self, store=self.make_store(clock, tmp_path), clock=clock)
        await stage.store.open()
        await stage.store.migrate()
        yield stage
        await stage.store.close()


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """A store with its clock, and short words for what the tests do."""

    hooks: StoreHooks
    store: Store
    clock: ManualClock

    async def put(self, *messages: Message, route: str = "default") -> None:
        """Commit these messages, one statement in one transaction."""
        async with self.hooks.transaction(self.store) as run:
            assert await run(self.insert(*messages, route=route)) == len(messages)

    def insert(self, *messages: Message, route: str = "default") -> Statement:
        """Return the statement that inserts these."""
        return self.store.insert([Addressed(route, one) for one in messages])

    async def mark(self, consumer: str, message_id: str) -> int:
        """Mark in a transaction of its own; return the affected rows."""
        async with self.hooks.transaction(self.store) as run:
            return await run(self.store.mark(consumer, message_id))

    async def lease(
        self,
        relay: str = "relay-1",
        *,
        routes: Mapping[str, bool] | None = None,
        busy: Collection[Lane] = (),
    ) -> Sequence[Lane]:
        """Renew with the usual times and return the owned lanes."""
        return await self.store.lease(
            relay, routes=routes or {"default": True}, lease=LEASE, renewal=RENEWAL, busy=busy
        )

    async def settled_shares(self, *relays: str) -> dict[str, Sequence[Lane]]:
        """Let the relays renew in turn until nothing moves any more."""
        owned: dict[str, Sequence[Lane]] = {}
        for _ in range(4):
            owned = {relay: await self.lease(relay) for relay in relays}
        return owned

    async def read(self, lanes: Sequence[Lane], *, limit: int = ALL) -> Sequence[Entry]:
        """Read without limits of bytes."""
        return await self.store.read(lanes, limit=limit, per_lane=limit, max_bytes=2**40)

    async def settle(
        self, lanes: Sequence[Lane], *settled: Settled, keep: bool = True
    ) -> frozenset[int]:
        """Settle these."""
        return await self.store.settle(lanes, settled, keep=keep)

    async def send_all(self, lanes: Sequence[Lane]) -> list[str]:
        """Do as a relay would whose broker takes everything; return the ids in order."""
        ids: list[str] = []
        while entries := await self.read(lanes):
            behind = [entry for entry in entries if entry.behind]
            await self.store.hold(lanes, behind)
            going = [entry for entry in entries if not entry.behind]
            done = await self.settle(lanes, *(sent(entry) for entry in going))
            assert done == {entry.seq for entry in going}
            ids += [entry.message.id for entry in going]
        return ids

    async def hold_all_behind(self, lanes: Sequence[Lane]) -> int:
        """Hold what a read finds behind a blocked head."""
        entries = await self.read(lanes)
        return await self.store.hold(lanes, [entry for entry in entries if entry.behind])

    async def rows(self, *states: State) -> Sequence[Entry]:
        """Return all rows, or those of these states."""
        return await self.store.find(Query(states=states), limit=ALL)

    async def ids(self, *states: State) -> list[str]:
        """Return the ids of all rows, or of those of these states, in order."""
        return [entry.message.id for entry in await self.rows(*states)]

    async def row(self, message_id: str) -> Entry:
        """Return the one row of this id."""
        (entry,) = await self.store.find(Query(ids=[message_id]), limit=2)
        return entry

    async def state(self, message_id: str) -> State:
        """Return the state of the one row of this id."""
        return (await self.row(message_id)).state


def message(
    message_id: str,
    key: str | None = None,
    *,
    payload: bytes = b"{}",
    kind: str = "test.happened",
    topic: str = "test",
    deliver_at: datetime | None = None,
    expires_at: datetime | None = None,
) -> Message:
    """Return a message that is told by its id."""
    return Message(
        id=message_id,
        key=key,
        type=kind,
        payload=payload,
        topic=topic,
        deliver_at=deliver_at,
        expires_at=expires_at,
    )


def sent(entry: Entry) -> Settled:
    """Settle as confirmed."""
    return Settled(entry, Sent())


def retry(entry: Entry, delay: timedelta = SECOND, error: str = "refused") -> Settled:
    """Settle as refused for now."""
    return Settled(entry, Retry(delay=delay, error=error))


def dead(entry: Entry, *, blocks: bool = False, error: str = "given up") -> Settled:
    """Settle as given up."""
    return Settled(entry, Dead(error=error, blocks=blocks))
