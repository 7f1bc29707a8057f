"""Several relays against one: in total no less, and nothing is sent twice."""

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path

from bench.postgresql.brokers import NOTE
from bench.postgresql.ground import Ground
from bench.postgresql.running import processes, until, until_shared
from bench.postgresql.scale import Scale
from bench.report import Result, compared


def measure(ground: Ground, scale: Scale) -> Iterator[Result]:
    """Send the same number of messages, in turn by several processes and by one."""
    pairs, twice = [], 0
    for number in range(scale.relay_rounds):
        many, repeated = _round(ground, scale, f"many-{number}", scale.relays)
        one, again = _round(ground, scale, f"one-{number}", 1)
        pairs.append((many, one))
        twice += repeated + again
    name = f"{scale.relays} relays against 1{scale.suffix}"
    yield compared(name, pairs, unit="messages/s", goal=1, bound="at least")
    yield Result(name=f"{name}: sent twice", value=twice, unit="messages", goal=0)


def _round(ground: Ground, scale: Scale, name: str, relays: int) -> tuple[float, int]:
    """Return the rate, from the commit to the last publish, and how many were sent twice."""
    directory = ground.directory / name
    directory.mkdir()
    asyncio.run(ground.emptied())
    parts = [("relay", str(directory / f"{number}.notes")) for number in range(relays)]
    with processes(ground, parts):
        began = asyncio.run(_sent(ground, relays, scale.shared))
    notes = [note for path in _notes(directory) for note in NOTE.iter_unpack(path.read_bytes())]
    numbers = {number for number, _ in notes}
    assert len(numbers) == scale.shared
    return scale.shared / (max(at for _, at in notes) - began), len(notes) - len(numbers)


async def _sent(ground: Ground, relays: int, count: int) -> float:
    """Add messages when every relay has its lanes; return when, once they were settled."""
    await until_shared(ground, relays)
    await ground.add(count)
    began = time.clock_gettime(time.CLOCK_MONOTONIC)
    await until(ground, "select count(*) = 0 from postroom_outbox where state = 'ready'")
    return began


def _notes(directory: Path) -> list[Path]:
    return sorted(directory.glob("*.notes"))
