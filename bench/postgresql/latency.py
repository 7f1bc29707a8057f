"""From commit to publish, with a relay process that sleeps in between."""

import asyncio
import random
import time
from collections.abc import Iterator, Sequence

from bench import stage
from bench.postgresql.brokers import NOTE
from bench.postgresql.ground import Ground
from bench.postgresql.running import PATIENCE, processes, until_asleep
from bench.postgresql.scale import Scale
from bench.report import Result, quantile
from postroom.outbox import Outbox

_GAP = (0.02, 0.05)
"""Seconds between two messages of an idle shop."""
_WARM_UP = 20
"""Messages before the first that counts."""


def measure(ground: Ground, scale: Scale) -> Iterator[Result]:
    """Commit one message at a time."""
    notes = ground.directory / "latency.notes"
    with processes(ground, [("relay", str(notes))]):
        committed = asyncio.run(_committed(ground, scale.idle_messages + _WARM_UP))
        until = time.monotonic() + PATIENCE
        while notes.stat().st_size < len(committed) * NOTE.size:
            assert time.monotonic() < until
            time.sleep(0.01)
    published = dict(NOTE.iter_unpack(notes.read_bytes()))
    millis = [(published[number] - at) * 1000 for number, at in enumerate(committed)]
    for name, part, goal in (("p50", 0.5, 5), ("p99", 0.99, 25)):
        title = f"commit to publish, idle, {name}{scale.suffix}"
        value = quantile(millis[_WARM_UP:], part)
        yield Result(name=title, value=value, unit="ms", goal=goal)


async def _committed(ground: Ground, count: int) -> Sequence[float]:
    """Return when each message was committed, by the clock of all processes.

    Each transaction begins after the relay has said that it sleeps: so says the goal.
    """
    outbox, committed = Outbox(ground.store()), []
    chance = random.Random(1)  # noqa: S311 - so that no poll falls into step with it
    async with ground.connected() as connection:
        for number in range(count):
            await asyncio.sleep(chance.uniform(*_GAP))
            await until_asleep(ground)
            async with connection.transaction():
                await outbox.put(connection, stage.order(number))
            committed.append(time.clock_gettime(time.CLOCK_MONOTONIC))
    return committed
