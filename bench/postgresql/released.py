"""Who waits while many held messages of one key are released: a put, a settlement elsewhere."""

import asyncio
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import count

from bench import stage
from bench.postgresql.brokers import Confirming
from bench.postgresql.ground import Ground
from bench.postgresql.held import stuck
from bench.postgresql.probes import TimedStore
from bench.postgresql.running import opened, processes, until, until_shared
from bench.postgresql.scale import Scale
from bench.report import Result
from postroom.lane import lane_of
from postroom.message import State
from postroom.outbox import Outbox
from postroom.relay import Relay
from postroom.store import Query

_PAUSE = 0.005
"""Seconds between two puts."""
_QUIET = 5.0
"""Seconds of the same work without a release."""
_MILLIS = 100
_NONE_HELD = """
select not exists (
    select from postroom_outbox where state = 'held' and blocks and key is not null
)
"""


def measure(ground: Ground, scale: Scale) -> Iterator[Result]:
    """Let a person release the key; one relay sends it, another one does everything else."""
    notes = ground.directory / "released.notes"
    with processes(ground, [("relay", str(notes))]):
        before, during = asyncio.run(_released(ground, scale))
    for name, one, least in zip(("put", "settlement of another lane"), during, before, strict=True):
        title = f"longest {name} while {scale.held:,} are released{scale.suffix}"
        yield Result(name=title, value=one, unit="ms", baseline=least, goal=_MILLIS)


async def _released(ground: Ground, scale: Scale) -> tuple[Sequence[float], Sequence[float]]:
    """Return the longest put and settlement, in milliseconds, before the release and during it."""
    await until_shared(ground, 1)
    stop = asyncio.Event()
    async with opened(TimedStore(ground.url, schema=ground.schema)) as store:
        relay = asyncio.create_task(Relay(store, Confirming(), name="other").run(stop))
        await until_shared(ground, 2)
        key = await _foreign_key(ground)
        await stuck(ground, scale.held, key, "dead")
        puts: list[float] = []
        writer = asyncio.create_task(_put(ground, scale.held + 1, puts))
        await asyncio.sleep(1)
        puts.clear()
        store.settlements.clear()
        await asyncio.sleep(_QUIET)
        before = [max(puts) * 1000, max(store.settlements) * 1000]
        puts.clear()
        store.settlements.clear()
        dead = Query(states=[State.DEAD], key=key)
        assert await store.release(dead, limit=1, actor="bench", dry_run=False) == 1
        await until(ground, _NONE_HELD)
        during = [max(puts) * 1000, max(store.settlements) * 1000]
        writer.cancel()
        with suppress(asyncio.CancelledError):
            await writer
        stop.set()
        await relay
    return before, during


async def _foreign_key(ground: Ground) -> str:
    """Return a key whose lane the other process owns."""
    query = "select array_agg(number) from postroom_lane where owner <> 'other'"
    lanes = set(await ground.value(query))
    return next(key for key in map("stuck-{}".format, count()) if lane_of(key, "") in lanes)


async def _put(ground: Ground, first: int, spent: list[float]) -> None:
    outbox = Outbox(ground.store())
    async with ground.connected() as connection:
        for number in count(first):
            began = time.perf_counter()
            async with connection.transaction():
                await outbox.put(connection, stage.order(number))
            spent.append(time.perf_counter() - began)
            await asyncio.sleep(_PAUSE)
