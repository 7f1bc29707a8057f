"""A relay that runs on PostgreSQL by the real clock, and what it has sent."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta

import psycopg

from postroom.events import Event, Sent
from postroom.message import Message
from postroom.outbox import SyncOutbox
from postroom.relay import Relay, RelayOptions
from postroom.stores.postgresql import PostgresqlStore
from postroom.testing.scripted import ScriptedBroker
from tests.postgresql import Ground


class Running:
    """A relay at work."""

    def __init__(self, place: Ground, store: PostgresqlStore) -> None:
        self._place = place
        self._store = store
        self._sent: asyncio.Queue[str] = asyncio.Queue()

    def observe(self, event: Event) -> None:
        """Note what was sent."""
        if isinstance(event, Sent):
            self._sent.put_nowait(event.entry.message.payload.decode())

    def commit(self, text: str) -> None:
        """Commit a message."""
        message = Message(type="t", topic="t", key="k", payload=text.encode())
        with psycopg.connect(self._place.url) as connection, connection.transaction():
            SyncOutbox(self._place.store).put(connection, message)

    async def listener(self, *, but: int = 0) -> int:
        """Return the server's process that it listens with, once that is not `but`."""
        async with asyncio.timeout(20):
            while True:
                assert self._store._listener is not None
                connection = self._store._listener._connection
                if connection is not None and not connection.is_closed():
                    pid = int(connection.get_server_pid())
                    if pid != but:
                        return pid
                await asyncio.sleep(0.01)

    async def sent(self, *, within: float) -> str:
        """Return what is sent next; raises TimeoutError if that takes longer."""
        async with asyncio.timeout(within):
            return await self._sent.get()


@asynccontextmanager
async def relaying(place: Ground, url: str, *, poll: float) -> AsyncIterator[Running]:
    """Run a relay that reaches the server by that address, and look every `poll` seconds.

    It has sent one message already, and rests.
    """
    store = PostgresqlStore(url, schema=place.schema)
    await store.open()
    running, stop = Running(place, store), asyncio.Event()
    relay = Relay(
        store,
        ScriptedBroker(),
        options=RelayOptions(poll=timedelta(seconds=poll)),
        observers=[running.observe],
    )
    working = asyncio.ensure_future(relay.run(stop))
    try:
        running.commit("first")
        assert await running.sent(within=20) == "first"
        yield running
    finally:
        stop.set()
        await working
        await store.close()
