"""Shipping and billing: one effect for each order, in the transaction of the inbox row."""

import asyncio
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

from postroom.consumer import AsyncContext, Consumer, Context
from postroom.lab import plants, shop
from postroom.lab.backstage import open_broker, stop_on_sigterm
from postroom.lab.brief import Brief
from postroom.lab.database import Hands
from postroom.lab.journal import Journal
from postroom.lab.kill import Trap
from postroom.retry import Backoff, RetryPolicy


def run(brief: Brief, journal: Journal, trap: Trap) -> None:
    """Consume until SIGTERM comes."""
    asyncio.run(_run(brief, journal, trap))


async def _run(brief: Brief, journal: Journal, trap: Trap) -> None:
    stop = stop_on_sigterm()
    broker = open_broker(brief)
    await broker.open()
    async with brief.places.effects(brief.consumer).hands() as hands:
        consumer = Consumer(
            brief.consumer,
            begin=hands.begin,
            store=plants.inbox(brief),
            retry=_retries(brief),
            probe=Backoff(initial=timedelta(milliseconds=100), maximum=timedelta(seconds=0.5)),
            observers=(journal.observe, trap.observe),
        )
        consumer.on(shop.OrderPlaced)(_handler(brief, hands))
        journal.write("ready", client=hands.client)
        try:
            await consumer.run(broker, stop)
        finally:
            await broker.close()


def _handler(brief: Brief, hands: Hands) -> Callable[[Any, Any], Any]:
    async def take_async(order: shop.OrderPlaced, context: AsyncContext[Any]) -> None:
        await hands.write(context.connection, shop.effect(order, context.message.id))
        _read(order)
        if brief.pause:
            await asyncio.sleep(brief.pause)

    def take(order: shop.OrderPlaced, context: Context[Any]) -> None:
        hands.write(context.connection, shop.effect(order, context.message.id))
        _read(order)
        if brief.pause:
            time.sleep(brief.pause)

    return take_async if hands.awaits else take


def _read(order: shop.OrderPlaced) -> None:
    if order.note == shop.POISON:
        raise ValueError("an order that nobody can read")


def _retries(brief: Brief) -> RetryPolicy:
    backoff = Backoff(initial=timedelta(milliseconds=200), maximum=timedelta(seconds=1), jitter=0.2)
    return RetryPolicy(max_attempts=brief.attempts, backoff=backoff)
