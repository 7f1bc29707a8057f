"""Stores, lanes and relays in this process, and processes of their own."""

import asyncio
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from datetime import timedelta
from typing import TypeVar

from bench import stage
from bench.postgresql.brokers import Confirming
from bench.postgresql.ground import Ground
from postroom.lane import Lane
from postroom.relay import Relay, RelayBroker
from postroom.relay.options import RelayOptions
from postroom.route import Route, Routes
from postroom.stores.postgresql import PostgresqlStore

PATIENCE = 60.0
"""Seconds after which something that does not happen is an error."""
S = TypeVar("S", bound=PostgresqlStore)


@asynccontextmanager
async def opened(store: S) -> AsyncIterator[S]:
    """Give the store, open."""
    await store.open()
    try:
        yield store
    finally:
        await store.close()


@asynccontextmanager
async def owning(store: S, name: str = "bench") -> AsyncIterator[tuple[S, Sequence[Lane]]]:
    """Give the store, open, and all lanes."""
    async with opened(store):
        lanes = await store.lease(
            name,
            routes={stage.ROUTE.name: True},
            lease=timedelta(hours=1),
            renewal=timedelta(minutes=1),
        )
        try:
            yield store, lanes
        finally:
            await store.leave(name)


async def relayed(
    ground: Ground,
    count: int,
    *,
    broker: RelayBroker | None = None,
    route: Route = stage.ROUTE,
    keep_sent: bool = True,
) -> float:
    """Return how many messages a second a relay sends from there: the first `count`."""
    stop = asyncio.Event()
    watch = stage.Stopwatch(count, stop)
    async with opened(ground.store()) as store, asyncio.timeout(3 * PATIENCE):
        await Relay(
            store,
            broker or Confirming(),
            routes=Routes([route]),
            options=RelayOptions(keep_sent=keep_sent),
            observers=[watch.observe],
        ).run(stop)
    return watch.rate


@contextmanager
def processes(ground: Ground, parts: Sequence[Sequence[str]]) -> Iterator[None]:
    """Let processes play these parts (see `actors`) while the block runs."""
    running = [subprocess.Popen(command(ground, *part)) for part in parts]
    try:
        yield
    finally:
        for one in running:
            one.send_signal(signal.SIGTERM)
        for one in running:
            one.wait(PATIENCE)


def command(ground: Ground, part: str, *more: str) -> Sequence[str]:
    """Return how a process of that part is started."""
    return (sys.executable, "-m", "bench.postgresql.actors", part, ground.url, ground.schema, *more)


async def until(ground: Ground, query: str, *values: object) -> None:
    """Return when the query says so: other processes do the work."""
    async with asyncio.timeout(3 * PATIENCE), ground.connected() as connection:
        while not await connection.fetchval(query, *values):  # noqa: ASYNC110 - no event tells
            await asyncio.sleep(0.01)


async def until_asleep(ground: Ground) -> None:
    """Return when some relay has said that it sleeps."""
    await until(ground, "select coalesce(pg_sequence_last_value('postroom_asleep'), 0) > 0")


async def until_shared(ground: Ground, relays: int) -> None:
    """Return when each of so many relays owns its share of the lanes."""
    query = """
    select count(*) = $1 and max(lanes) - min(lanes) <= 1 and sum(lanes) = 64
    from (select count(*) as lanes from postroom_lane where owner is not null group by owner) as o
    """
    await until(ground, query, relays)
