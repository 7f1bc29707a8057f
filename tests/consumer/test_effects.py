"""One message, one effect: in every kind of transaction a user may have."""

import asyncio
from dataclasses import replace

import pytest

from postroom import Consumer, events
from postroom.errors import SettingsError
from postroom.message import Message
from postroom.stores.memory import MemoryStore
from tests.consumer.conftest import Billing, OrderPlaced, _message, numbers


async def test_effect_inbox_row_and_what_it_puts_are_committed_together(billing: Billing) -> None:
    (cause,) = await billing.publish(OrderPlaced("ann", 1))

    await billing.consume(billing.consumer(), until=billing.done(1))

    assert billing.effects() == [("ann", 1)]
    assert billing.query("select consumer, message_id from postroom_inbox") == [
        ("billing", cause.id)
    ]
    ((kind, headers),) = billing.query("select type, headers from postroom_outbox")
    assert kind == "shop.invoiced"
    assert f'"causation-id":"{cause.id}"' in headers.replace(" ", "")


async def test_a_failing_handler_leaves_nothing_and_runs_again(billing: Billing) -> None:
    def fail_twice(_order: OrderPlaced, context: object) -> None:
        if context.attempt < 3:  # type: ignore[attr-defined]
            raise ValueError("not yet")

    billing.invoke = fail_twice
    await billing.publish(OrderPlaced("ann", 1))

    await billing.consume(billing.consumer(), until=billing.done(1))

    assert billing.effects() == [("ann", 1)]
    assert billing.count(events.HandlerFailed) == 2
    assert len(billing.query("select 1 from postroom_outbox")) == 1


async def test_copies_have_one_effect(billing: Billing) -> None:
    """Also when they are handled side by side: without a key nothing keeps them apart."""
    order = replace(_message(OrderPlaced("ann", 1)), key=None)
    await billing.publish(*[order] * 6)

    await billing.consume(billing.consumer(concurrency=4), until=billing.done(6))

    assert billing.effects() == [("ann", 1)]
    assert billing.count(events.Duplicate) == 5


async def test_a_poison_message_dies_with_its_reason_and_delays_no_other_key(
    billing: Billing,
) -> None:
    def fail(order: OrderPlaced, _context: object) -> None:
        if order.trouble:
            raise ValueError("bad \0 \ud800 🚚")

    billing.invoke = fail
    await billing.publish(
        OrderPlaced("ann", 1, trouble="poison"), *(OrderPlaced("bob", n) for n in range(5))
    )

    await billing.consume(
        billing.consumer(),
        until=lambda: billing.count(events.DeadLettered) == 1 and billing.done(5)(),
    )

    (letter,) = await billing.broker.dead_letters()
    assert letter.reason == "ValueError: bad \\x00 \\ud800 🚚"
    assert numbers(billing.effects(), "bob") == [0, 1, 2, 3, 4]
    assert numbers(billing.effects(), "ann") == []


async def test_the_messages_of_a_key_keep_their_order_through_a_failure(simple: Billing) -> None:
    failed = False

    def fail_once(order: OrderPlaced, _context: object) -> None:
        nonlocal failed
        if order.number == 3 and not failed:
            failed = True
            raise ValueError("once")

    simple.invoke = fail_once
    await simple.publish(*(OrderPlaced("ann", number) for number in range(20)))

    await simple.consume(simple.consumer(), until=simple.done(20))

    assert numbers(simple.effects(), "ann") == list(range(20))


async def test_two_processes_of_a_group_share_the_messages(simple: Billing) -> None:
    await simple.publish(*(OrderPlaced(f"c{n % 7}", n) for n in range(70)))

    await simple.consume(simple.consumer(), simple.consumer(), until=simple.done(70))

    assert len(simple.effects()) == 70
    for customer in range(7):
        own = numbers(simple.effects(), f"c{customer}")
        assert own == sorted(own)


async def test_an_old_name_is_read_by_its_alias(simple: Billing) -> None:
    consumer = simple.consumer()
    old = replace(_message(OrderPlaced("ann", 1)), type="shop.OrderPlaced")

    await simple.publish(replace(old, topic="shop.OrderPlaced"))
    await simple.consume(consumer, until=simple.done(1))

    assert simple.effects() == [("ann", 1)]


async def test_undecodable_bytes_are_dead_at_once(simple: Billing) -> None:
    broken = replace(_message(OrderPlaced("ann", 1)), payload=b"\xff{")
    await simple.publish(broken, OrderPlaced("bob", 2))

    await simple.consume(
        simple.consumer(),
        until=lambda: simple.count(events.DeadLettered) == 1 and bool(simple.effects()),
    )

    assert simple.effects() == [("bob", 2)]
    assert simple.count(events.HandlerFailed) == 0


async def test_idempotency_keys_tell_steps_consumers_and_messages_apart(simple: Billing) -> None:
    keys: list[str] = []

    def note(_order: OrderPlaced, context: object) -> None:
        keys.extend(context.idempotency_key(step) for step in ("charge", "ship"))  # type: ignore[attr-defined]
        if len(keys) == 2:
            raise ValueError("again")

    simple.invoke = note
    await simple.publish(OrderPlaced("ann", 1))
    await simple.consume(simple.consumer(), until=simple.done(1))
    await simple.consume(simple.consumer("shipping"), until=simple.done(2))

    assert keys[0:2] == keys[2:4], "the same after a failure"
    assert len(set(keys)) == 4


async def test_the_consumer_stops_in_order(simple: Billing) -> None:
    """What has begun ends; what was only taken is given back, uncounted."""
    release = asyncio.Event()
    begun = asyncio.Event()
    stop = asyncio.Event()
    consumer = Consumer(
        "waiting",
        begin=MemoryStore().begin,
        store=MemoryStore(),
        observers=[simple.events.append],
        concurrency=1,
    )

    @consumer.on(OrderPlaced)
    async def handle(_order: OrderPlaced, _context: object) -> None:
        begun.set()
        await release.wait()

    await simple.publish(*(OrderPlaced(f"c{number}", number) for number in range(5)))
    running = asyncio.ensure_future(consumer.run(simple.broker, stop))
    await begun.wait()

    stop.set()
    for _ in range(20):
        await asyncio.sleep(0)
    release.set()
    await running

    assert simple.count(events.Acknowledged) == 1
    assert simple.count(events.ConsumerStopped) == 1
    queues = [one for one in await simple.broker.queues() if one.group == "waiting"]
    assert sum(queue.ready for queue in queues) == 4
    assert sum(queue.out for queue in queues) == 0


async def test_handlers_that_do_not_fit_the_transactions_are_refused(simple: Billing) -> None:
    consumer = Consumer("wrong", begin=object, store=simple.store)  # type: ignore[arg-type]

    @consumer.on(OrderPlaced)
    def handle(_order: OrderPlaced, _context: object) -> None: ...

    with pytest.raises(SettingsError, match="which `with` cannot use"):
        await consumer.run(simple.broker, asyncio.Event())


def test_a_class_without_a_name_is_refused(simple: Billing) -> None:
    with pytest.raises(SettingsError, match="has no stable name"):
        simple.consumer().on(Message)(lambda _event, _context: None)


def test_two_handlers_for_one_type_are_refused(simple: Billing) -> None:
    with pytest.raises(SettingsError, match="two handlers take"):
        simple.consumer().on(OrderPlaced)(lambda _event, _context: None)
