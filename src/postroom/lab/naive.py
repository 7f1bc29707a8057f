"""What many shops do: save, then publish; and a consumer that trusts every delivery.

The same business, the same broker and the same blows. Two writes to two systems, and no
transaction around them: a kill between the two loses the announcement, or announces an order
that never was.
"""

import asyncio
import random
import time
from contextlib import closing
from datetime import timedelta

from postroom.broker import Broker
from postroom.codecs import decode, encode
from postroom.errors import PostroomError
from postroom.lab import shop
from postroom.lab.backstage import stop_on_sigterm
from postroom.lab.brief import Brief
from postroom.lab.database import Till, Unusable
from postroom.lab.journal import Journal
from postroom.message import Message

_TIMEOUT = timedelta(seconds=0.3)
_PAUSE = 0.05
_PREFETCH = 16


async def naive_orders(brief: Brief, journal: Journal, broker: Broker) -> None:
    """Write orders; half of the time announce them after the commit, half before it."""
    stop = stop_on_sigterm()
    chance = random.Random(brief.seed)  # noqa: S311
    till = brief.places.shop.till(brief.number)
    journal.write("ready")
    with closing(till):
        while not stop.is_set():
            began = time.monotonic()
            try:
                await _order(till, brief, broker, chance)
            except Unusable as error:
                journal.write("refused", error=str(error))
                await asyncio.sleep(_PAUSE)
            rest = 1 / brief.per_second - (time.monotonic() - began)
            await asyncio.sleep(max(0.0, rest))
    journal.write("done")


async def _order(till: Till, brief: Brief, broker: Broker, chance: random.Random) -> None:
    name = shop.customer(chance.randrange(brief.customers))
    first = chance.random() < 0.5
    fails = chance.random() < 0.1
    try:
        till.begin()
        n = shop.next_number(till, name)
        order = shop.OrderPlaced(customer=name, n=n, amount=chance.randrange(100, 10_000))
        sent = encode(order, topic=shop.TOPIC)
        shop.write_order(till, order, sent)
        if first:
            await _announce(broker, sent)
        if fails:
            return
        till.commit()
        if not first:
            await _announce(broker, sent)
    finally:
        till.rollback()


async def _announce(broker: Broker, sent: Message) -> None:
    """Publish, and hope: nobody looks at the answer, as the order is there anyway."""
    await broker.publish([sent], timeout=_TIMEOUT)


async def naive_consumer(brief: Brief, journal: Journal, broker: Broker) -> None:
    """Write one effect for each delivery, then acknowledge."""
    stop = stop_on_sigterm()
    till = brief.places.effects(brief.consumer).till(brief.number)
    work = asyncio.create_task(_consume_on(till, brief, journal, broker))
    journal.write("ready")
    await stop.wait()
    work.cancel()
    await asyncio.gather(work, return_exceptions=True)
    till.close()
    journal.write("done")


async def _consume_on(till: Till, brief: Brief, journal: Journal, broker: Broker) -> None:
    while True:
        try:
            await _consume(till, brief, broker)
        except (PostroomError, Unusable) as error:
            journal.write("refused", error=str(error))
            await asyncio.sleep(_PAUSE)


async def _consume(till: Till, brief: Brief, broker: Broker) -> None:
    subscription = broker.subscribe([shop.TOPIC], group=brief.consumer, prefetch=_PREFETCH)
    async with subscription as deliveries:
        async for delivery in deliveries:
            order = decode(delivery.message, shop.OrderPlaced)
            try:
                till.begin()
                for sql, values in shop.effect(order, delivery.message.id):
                    till.rows(sql, *values)
                till.commit()
            finally:
                till.rollback()
            await delivery.ack()
