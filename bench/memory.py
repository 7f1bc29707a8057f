"""The most memory that a relay takes with a long backlog."""

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from bench import stage
from bench.report import Result
from bench.scale import Scale


def measure(directory: Path, scale: Scale) -> Iterator[Result]:
    """Let a relay process send some of a long backlog, and one all of a short backlog."""
    short = min(scale.memory_drained, stage.BATCH * 2)
    peak = _peak(directory / "long", scale.memory_backlog, scale.memory_drained)
    least = _peak(directory / "short", short, short)
    yield Result(
        name=f"peak memory, backlog of {scale.memory_backlog:,}{scale.suffix}",
        value=peak,
        unit="MB",
        baseline=least,
        goal=120,
    )


def _peak(directory: Path, backlog: int, drained: int) -> float:
    directory.mkdir()
    asyncio.run(stage.new_outbox(directory / "outbox.db", stage.orders(backlog)))
    command = [sys.executable, "-m", "bench.actors", "drain", str(directory), str(drained)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return float(done.stdout)
