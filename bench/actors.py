"""The processes of a run: `python -m bench.actors relay|consumer|drain DIRECTORY`."""

import asyncio
import os
import signal
import struct
import sys
import time
from pathlib import Path

from bench import stage
from postroom.brokers.sqlite import EmbeddedBroker
from postroom.connections import sqlite3_transactions
from postroom.connections.dbapi import SqliteConnection
from postroom.consumer import Consumer, Context
from postroom.events import Committed, Event
from postroom.relay import Relay
from postroom.stores.sqlite import SqliteStore

EFFECT = struct.Struct("<qd")
"""The number of an order, and when its effect was committed by the clock of all processes."""


async def relay(directory: Path) -> None:
    """Relay until SIGTERM."""
    store, broker = SqliteStore(directory / "shop.db"), EmbeddedBroker(directory / "broker.db")
    await store.open()
    await broker.open()
    await Relay(store, broker).run(_stop_on_sigterm())
    await broker.close()
    await store.close()


async def consume(directory: Path) -> None:
    """Consume until SIGTERM, and write down when each effect was committed."""
    path = directory / "billing.db"
    broker = EmbeddedBroker(directory / "broker.db")
    await broker.open()
    effects = os.open(directory / "effects", os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def observe(event: Event) -> None:
        if isinstance(event, Committed):
            number = event.message.version or 0
            os.write(effects, EFFECT.pack(number, time.clock_gettime(time.CLOCK_MONOTONIC)))

    consumer = Consumer(
        stage.GROUP,
        begin=sqlite3_transactions(path),
        store=SqliteStore(path),
        observers=[observe],
    )

    @consumer.on(stage.OrderPlaced)
    def invoice(order: stage.OrderPlaced, context: Context[SqliteConnection]) -> None:
        context.connection.execute(
            "insert into invoice values (?, ?)", (order.number, str(order.amount))
        )

    await consumer.run(broker, _stop_on_sigterm())
    await broker.close()


async def drain(directory: Path, count: int) -> None:
    """Relay so many messages, then print the most memory that this process ever had, in MB."""
    await stage.relayed(directory / "outbox.db", count)
    print(peak_megabytes())


def peak_megabytes() -> float:
    """Return the peak of this process's resident memory."""
    # Not getrusage: its peak begins with that of the parent at the moment of the fork.
    for line in Path("/proc/self/status").read_text("utf-8").splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024 / 1_000_000
    raise RuntimeError("the peak of memory is read from /proc, which only Linux has")


def _stop_on_sigterm() -> asyncio.Event:
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    return stop


def main(part: str, directory: str, *more: str) -> None:
    """Play one part."""
    place = Path(directory)
    match part:
        case "relay":
            asyncio.run(relay(place))
        case "consumer":
            asyncio.run(consume(place))
        case _:
            asyncio.run(drain(place, *map(int, more)))


if __name__ == "__main__":
    main(*sys.argv[1:])
