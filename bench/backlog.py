"""The relay's rate with a long backlog against a short one."""

import asyncio
import tempfile
from collections.abc import Iterator
from pathlib import Path

from bench import stage
from bench.report import Result, compared
from bench.scale import Scale


def measure(directory: Path, scale: Scale) -> Iterator[Result]:
    """Send the same number of messages from both, in turn."""
    long, short = directory / "long.db", directory / "short.db"
    asyncio.run(stage.new_outbox(long, stage.orders(scale.large_backlog)))
    asyncio.run(stage.new_outbox(short, stage.orders(scale.small_backlog)))
    pairs = []
    for _ in range(scale.rounds):
        with tempfile.TemporaryDirectory(dir=directory) as place:
            pairs.append((_rate(long, place, scale), _rate(short, place, scale)))
    name = f"backlog of {scale.large_backlog:,} against {scale.small_backlog:,}{scale.suffix}"
    yield compared(name, pairs, unit="messages/s", goal=0.9, bound="at least")


def _rate(template: Path, place: str, scale: Scale) -> float:
    outbox = stage.copy(template, Path(place, template.stem))
    return asyncio.run(stage.relayed(outbox, scale.rows))
