"""Another process that has the broker's file open; it says what happens, one JSON line each.

Usage: python party.py PATH MODE GROUP LEASE. MODE is `hold` (receive, answer nothing), `ack`
(answer at once), `ack-on-demand` (answer when a line comes in), or `lock` (hold the file's write
lock until the input ends).
"""

import asyncio
import json
import sqlite3
import sys
from datetime import timedelta

from postroom.broker import Delivery
from postroom.brokers.sqlite import EmbeddedBroker
from postroom.errors import DeliveryLost


async def consume(path: str, mode: str, group: str, lease: float) -> None:
    """Receive from `orders` until killed."""
    broker = EmbeddedBroker(path, lease=timedelta(seconds=lease))
    await broker.open()
    async with broker.subscribe(["orders"], group=group, prefetch=4) as box:
        _say(ready=True)
        async for delivery in box:
            if mode == "ack":
                await delivery.ack()
            _say(id=delivery.message.id, redelivered=delivery.redelivered)
            if mode == "ack-on-demand":
                await asyncio.to_thread(sys.stdin.readline)
                await _answer(delivery)


async def _answer(delivery: Delivery) -> None:
    try:
        await delivery.ack()
    except DeliveryLost:
        _say(lost=delivery.message.id)


def lock(path: str) -> None:
    """Hold the write lock."""
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("BEGIN IMMEDIATE")
    _say(ready=True)
    sys.stdin.read()
    connection.execute("ROLLBACK")
    connection.close()


def _say(**what: object) -> None:
    sys.stdout.write(json.dumps(what) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    if sys.argv[2] == "lock":
        lock(sys.argv[1])
    else:
        asyncio.run(consume(sys.argv[1], sys.argv[2], sys.argv[3], float(sys.argv[4])))
