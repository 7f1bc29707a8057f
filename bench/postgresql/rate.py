"""The rate of reading and settling against the bare SQL, and that of a relay without a broker."""

import asyncio
import time
from collections.abc import Iterator

from bench import stage
from bench.postgresql import bare
from bench.postgresql.ground import Ground
from bench.postgresql.running import owning, relayed
from bench.postgresql.scale import Scale
from bench.report import Result, compared
from postroom.outcome import Sent, Settled


def measure(ground: Ground, scale: Scale) -> Iterator[Result]:
    """Drain equal outboxes in turn by the store, by a relay and by the bare loop."""
    for keep, what in ((True, "kept"), (False, "deleted")):
        rounds = asyncio.run(_rounds(ground, scale, keep=keep))
        store = [(one, least) for one, _, least in rounds]
        relay = [(one, least) for _, one, least in rounds]
        name = f"read and settle, {what}{scale.suffix}"
        yield compared(name, store, unit="messages/s", goal=0.7, bound="at least")
        name = f"relay without a broker, {what}{scale.suffix}"
        yield compared(name, relay, unit="messages/s")


async def _rounds(ground: Ground, scale: Scale, *, keep: bool) -> list[tuple[float, float, float]]:
    """Return the rates of the store, the relay and the bare loop; the first round warms up."""
    rounds = []
    for _ in range(scale.rounds + 1):
        await _filled(ground, scale)
        store = await drained(ground, scale.rows, keep=keep)
        await _filled(ground, scale)
        relay = await relayed(ground, scale.rows, keep_sent=keep)
        await _filled(ground, scale)
        rounds.append((store, relay, await bare.drained(ground, scale.rows, keep=keep)))
    return rounds[1:]


async def drained(ground: Ground, count: int, *, keep: bool) -> float:
    """Return how many messages a second the store reads and settles."""
    async with owning(ground.store()) as (store, lanes):
        began, done = time.perf_counter(), 0
        while done < count:
            entries = await store.read(
                lanes, limit=stage.BATCH, per_lane=bare.PER_LANE, max_bytes=8 << 20
            )
            settled = [Settled(entry, Sent()) for entry in entries]
            done += len(await store.settle(lanes, settled, keep=keep))
        return count / (time.perf_counter() - began)


async def _filled(ground: Ground, scale: Scale) -> None:
    await ground.emptied()
    await ground.add(scale.rows)
    await ground.settled_down()
