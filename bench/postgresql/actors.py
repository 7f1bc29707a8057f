"""The processes of a run: `python -m bench.postgresql.actors PART URL SCHEMA ...`."""

import asyncio
import signal
import sys
from datetime import timedelta
from pathlib import Path

from bench.actors import peak_megabytes
from bench.postgresql.brokers import Noting
from bench.postgresql.ground import Ground
from bench.postgresql.running import opened, relayed
from postroom.relay import Relay

LOOK = 0.0025
"""Seconds that a relay needs at least for a look; it takes two from a wake-up until it sleeps."""


async def sleep(ground: Ground) -> int:
    """Sleep as a relay does, over and over, until SIGTERM; return how often somebody woke us.

    Nothing is read meanwhile: what a relay costs its machine is no part of what a put costs.
    """
    stop, woken = _stop_on_sigterm(), 0
    async with opened(ground.store()) as store:
        while not stop.is_set():
            began = asyncio.get_running_loop().time()
            await store.wait(timedelta(seconds=1))
            woken += asyncio.get_running_loop().time() - began < 1
            await asyncio.sleep(LOOK)
    return woken


async def relay(ground: Ground, path: Path) -> None:
    """Relay until SIGTERM; note what was published."""
    async with opened(ground.store()) as store:
        await Relay(store, Noting(path)).run(_stop_on_sigterm())


async def drain(ground: Ground, count: int) -> None:
    """Relay so many messages, then print the most memory that this process ever had, in MB."""
    await relayed(ground, count)
    print(peak_megabytes())


def _stop_on_sigterm() -> asyncio.Event:
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    return stop


def main(part: str, url: str, schema: str, more: str) -> None:
    """Play one part."""
    ground = Ground(url, schema, Path())
    match part:
        case "sleep":
            Path(more).write_text(str(asyncio.run(sleep(ground))))
        case "relay":
            asyncio.run(relay(ground, Path(more)))
        case _:
            asyncio.run(drain(ground, int(more)))


if __name__ == "__main__":
    main(*sys.argv[1:])
