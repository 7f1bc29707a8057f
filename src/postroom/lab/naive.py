"""What many shops do: save, then publish; and a consumer that trusts every delivery.

The same business, the same broker and the same blows. Two writes to two systems, and no
transaction around them: a kill between the two loses the announcement, or announces an order
that never was.
"""

import asyncio
import random
import signal
import sqlite3
import time
from contextlib import closing
from datetime import timedelta

from postroom.brokers.sqlite import EmbeddedBroker
from postroom.codecs import decode, encode
from postroom.errors import PostroomError
from postroom.lab import shop
from postroom.lab.brief import Brief
from postroom.lab.journal import Journal
from postroom.message import Message

_TIMEOUT = timedelta(seconds=0.3)
_PAUSE = 0.05
_PREFETCH = 16


async def naive_orders(brief: Brief, journal: Journal, broker: EmbeddedBroker) -> None:
    """Write orders; half of the time announce them after the commit, half before it."""
    stop = _stop_on_sigterm()
    chance = random.Random(brief.seed)  # noqa: S311
    connection = shop.connect(brief.places.shop)
    journal.write("ready")
    with closing(connection):
        while not stop.is_set():
            began = time.monotonic()
            try:
                await _order(connection, brief, broker, chance)
            except sqlite3.OperationalError as error:
                journal.write("refused", error=str(error))
                await asyncio.sleep(_PAUSE)
            rest = 1 / brief.per_second - (time.monotonic() - began)
            await asyncio.sleep(max(0.0, rest))
    journal.write("done")


async def _order(
    connection: sqlite3.Connection, brief: Brief, broker: EmbeddedBroker, chance: random.Random
) -> None:
    name = shop.customer(chance.randrange(brief.customers))
    first = chance.random() < 0.5
    fails = chance.random() < 0.1
    connection.execute("BEGIN IMMEDIATE")
    try:
        order = shop.next_order(connection, name, amount=chance.randrange(100, 10_000), note="")
        sent = encode(order, topic=shop.TOPIC)
        shop.write_order(connection, order, sent)
        if first:
            await _announce(broker, sent)
        if fails:
            return
        connection.execute("COMMIT")
        if not first:
            await _announce(broker, sent)
    finally:
        if connection.in_transaction:
            connection.execute("ROLLBACK")


async def _announce(broker: EmbeddedBroker, sent: Message) -> None:
    """Publish, and hope: nobody looks at the answer, as the order is there anyway."""
    await broker.publish([sent], timeout=_TIMEOUT)


async def naive_consumer(brief: Brief, journal: Journal, broker: EmbeddedBroker) -> None:
    """Write one effect for each delivery, then acknowledge."""
    stop = _stop_on_sigterm()
    connection = shop.connect(brief.places.effects(brief.consumer))
    work = asyncio.create_task(_consume_on(connection, brief, journal, broker))
    journal.write("ready")
    await stop.wait()
    work.cancel()
    await asyncio.gather(work, return_exceptions=True)
    connection.close()
    journal.write("done")


async def _consume_on(
    connection: sqlite3.Connection, brief: Brief, journal: Journal, broker: EmbeddedBroker
) -> None:
    while True:
        try:
            await _consume(connection, brief, broker)
        except (PostroomError, sqlite3.OperationalError) as error:
            journal.write("refused", error=str(error))
            await asyncio.sleep(_PAUSE)


async def _consume(connection: sqlite3.Connection, brief: Brief, broker: EmbeddedBroker) -> None:
    subscription = broker.subscribe([shop.TOPIC], group=brief.consumer, prefetch=_PREFETCH)
    async with subscription as deliveries:
        async for delivery in deliveries:
            order = decode(delivery.message, shop.OrderPlaced)
            with shop.transaction(connection):
                shop.write_effect(connection, order, delivery.message.id)
            await delivery.ack()


def _stop_on_sigterm() -> asyncio.Event:
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    return stop
