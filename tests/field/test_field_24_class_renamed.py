"""Class renamed or moved.

Pending rows and queued messages of a class that is then renamed and moved: names are explicit,
an alias reads the old one, and what nobody knows is kept with its data, never dropped.
"""

import asyncio
from dataclasses import dataclass
from datetime import timedelta

from postroom import events
from postroom.brokers.memory import MemoryBroker
from postroom.consumer import AsyncContext, Consumer
from postroom.events import Event
from postroom.message import message
from postroom.outbox import Outbox
from postroom.relay import Relay
from postroom.retry import Backoff, RetryPolicy
from postroom.stores.memory import MemoryStore, MemoryTransaction


def old_code() -> type:
    """Return the class as it was before the deploy."""

    @message("shop.OrderCreated")
    @dataclass
    class OrderCreated:
        order_id: str

    return OrderCreated


@message("shop.order-placed", aliases=("shop.OrderCreated",))
@dataclass
class OrderPlaced:
    """The class as it is after the deploy: renamed, moved, with a field more."""

    order_id: str
    note: str = ""


async def test_field_24_class_renamed() -> None:
    store, broker = MemoryStore(), MemoryBroker()
    created, outbox = old_code(), Outbox(store)
    async with store.begin() as transaction:
        await outbox.put(transaction, created("queued before the deploy"))
    await Relay(store, broker, name="before").step()
    async with store.begin() as transaction:
        await outbox.put(transaction, created("pending over the deploy"))
    happened: list[Event] = []
    consumer = Consumer(
        "billing", begin=store.begin, store=store, observers=[happened.append], retry=_short()
    )
    handled: list[str] = []

    @consumer.on(OrderPlaced)
    async def handle(event: OrderPlaced, context: AsyncContext[MemoryTransaction]) -> None:
        del context
        handled.append(event.order_id)

    await Relay(store, broker, name="after").run(await _soon(lambda: len(broker.published) == 2))
    await consumer.run(broker, await _soon(lambda: len(handled) == 2))

    assert handled == ["queued before the deploy", "pending over the deploy"]


async def test_field_24_a_type_nobody_knows_is_kept_with_its_data() -> None:
    """The topic carries it to a consumer without a handler for it."""
    store, broker = MemoryStore(), MemoryBroker()
    async with store.begin() as transaction:
        await Outbox(store).put(transaction, old_code()("kept"), topic="orders")
    await Relay(store, broker).step()
    happened: list[Event] = []
    consumer = Consumer(
        "billing", begin=store.begin, store=store, observers=[happened.append], retry=_short()
    )

    @consumer.on("shop.order-placed", topic="orders")
    async def handle(*_: object) -> None:
        raise AssertionError("not for this handler")

    await consumer.run(
        broker, await _soon(lambda: any(isinstance(one, events.DeadLettered) for one in happened))
    )

    (letter,) = await broker.dead_letters("billing")
    assert letter.message.payload == b'{"order_id":"kept"}'
    assert "no handler takes shop.OrderCreated" in letter.reason


def _short() -> RetryPolicy:
    return RetryPolicy(max_attempts=3, backoff=Backoff(initial=timedelta(milliseconds=1)))


async def _soon(condition: object) -> asyncio.Event:
    """Return an event that is set as soon as the condition holds."""
    stop = asyncio.Event()
    assert callable(condition)

    def look() -> None:
        if condition():
            stop.set()
        else:
            asyncio.get_running_loop().call_later(0.005, look)

    look()
    return stop
