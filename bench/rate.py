"""The relay's rate against a bare loop of the same SQL and the same broker calls."""

import asyncio
import tempfile
from collections.abc import Iterator
from pathlib import Path

from bench import bare, stage
from bench.report import Result, compared
from bench.scale import Scale


def measure(directory: Path, scale: Scale) -> Iterator[Result]:
    """Drain equal outboxes, in turn by a relay and by the bare loop."""
    template = directory / "outbox.db"
    asyncio.run(stage.new_outbox(template, stage.orders(scale.rows)))
    pairs = [_round(template, directory, scale.rows) for _ in range(scale.rounds)]
    name = f"relay rate{scale.suffix}"
    yield compared(name, pairs, unit="messages/s", goal=0.7, bound="at least")


def _round(template: Path, directory: Path, rows: int) -> tuple[float, float]:
    with tempfile.TemporaryDirectory(dir=directory) as place:
        relay = asyncio.run(stage.relayed(stage.copy(template, Path(place, "relay")), rows))
        loop = asyncio.run(bare.relayed(stage.copy(template, Path(place, "bare")), rows))
    return relay, loop
