"""One read of a table with a long past, with statistics of an unlucky moment."""

import asyncio
import statistics
import time
from collections.abc import Iterator, Sequence

from bench import stage
from bench.postgresql.ground import LATER, Ground
from bench.postgresql.probes import buffers
from bench.postgresql.running import owning
from bench.postgresql.scale import Scale
from bench.report import Result
from postroom.lane import LANES, Lane
from postroom.stores.postgresql import PostgresqlStore

_BURST = 2_000
_MILLIS, _BUFFERS = 20, 500


def measure(ground: Ground, scale: Scale) -> Iterator[Result]:
    """Read with a hundred ready, with none, and with many that wait."""
    asyncio.run(_filled(ground, scale))
    first = _BURST + scale.sent
    name = f"{scale.sent:,} sent"
    asyncio.run(ground.add(scale.ready, first=first))
    yield from _results(ground, scale, f"{name}, {scale.ready} ready", scale.ready)
    asyncio.run(ground.sql("update postroom_outbox set state = 'sent' where state = 'ready'"))
    yield from _results(ground, scale, f"{name}, none ready", 0)
    first += scale.ready
    asyncio.run(_waiting(ground, scale.waiting, first))
    asyncio.run(ground.add(scale.ready, first=first + scale.waiting))
    title = f"{name}, {scale.waiting:,} waiting, {scale.ready} ready"
    yield from _results(ground, scale, title, scale.ready)


async def _filled(ground: Ground, scale: Scale) -> None:
    """Analyze during a burst of one key; the rows that are sent come later."""
    await ground.sql("alter table postroom_outbox set (autovacuum_enabled = off)")
    await ground.add(_BURST, lane="5", key="'hot'")
    await ground.sql(
        "analyze postroom_outbox",
        "update postroom_outbox set state = 'sent', settled_at = 1",
    )
    await ground.add(scale.sent, first=_BURST, state="sent", settled="n")
    await ground.settled_down()


async def _waiting(ground: Ground, count: int, first: int) -> None:
    await ground.add(
        count,
        first=first,
        lane=f"n % {LANES}",
        key="'waiting-' || n",
        state="waiting",
        blocks="true",
        due=str(LATER),
    )


def _results(ground: Ground, scale: Scale, title: str, ready: int) -> Iterator[Result]:
    millis, touched = asyncio.run(_look(ground, scale.looks, ready))
    name = f"read, {title}{scale.suffix}"
    yield Result(name=name, value=millis, unit="ms", goal=_MILLIS)
    yield Result(name=f"{name}: buffers", value=touched, unit="buffers", goal=_BUFFERS)


async def _look(ground: Ground, looks: int, ready: int) -> tuple[float, int]:
    """Return the median time of a read, and its buffers.

    The first one of an owner does not count: it passes entries that nobody has marked dead yet.
    """
    async with owning(ground.store()) as (store, lanes):
        await _read(store, lanes)
        with buffers() as seen:
            assert await _read(store, lanes) == ready
        spent = []
        for _ in range(looks):
            began = time.perf_counter()
            await _read(store, lanes)
            spent.append(time.perf_counter() - began)
        return statistics.median(spent) * 1000, seen[0]


async def _read(store: PostgresqlStore, lanes: Sequence[Lane]) -> int:
    return len(await store.read(lanes, limit=stage.BATCH, per_lane=stage.BATCH, max_bytes=8 << 20))
