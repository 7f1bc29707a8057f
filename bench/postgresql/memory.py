"""The most memory that a relay takes with a long backlog."""

import asyncio
import subprocess
from collections.abc import Iterator

from bench import stage
from bench.postgresql.ground import Ground
from bench.postgresql.running import command
from bench.postgresql.scale import Scale
from bench.report import Result


def measure(ground: Ground, scale: Scale) -> Iterator[Result]:
    """Let a relay process send some of a long backlog, and one all of a short backlog."""
    short = min(scale.memory_drained, stage.BATCH * 2)
    least = _peak(ground, short, short)
    peak = _peak(ground, scale.memory_backlog, scale.memory_drained)
    name = f"peak memory, backlog of {scale.memory_backlog:,}{scale.suffix}"
    yield Result(name=name, value=peak, unit="MB", baseline=least, goal=120)


def _peak(ground: Ground, backlog: int, drained: int) -> float:
    asyncio.run(ground.emptied())
    asyncio.run(ground.add(backlog))
    asyncio.run(ground.settled_down())
    done = subprocess.run(
        command(ground, "drain", str(drained)), capture_output=True, text=True, check=True
    )
    return float(done.stdout)
