"""What the embedded broker keeps, what people see of it, and the same of the memory broker."""

import asyncio
import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from postroom.broker import Broker, Keeper, QueueStatus
from postroom.brokers.memory import MemoryBroker
from postroom.brokers.sqlite import EmbeddedBroker
from postroom.message import Message
from postroom.testing.clock import ManualClock
from postroom.testing.conformance.broker_stage import drain, receive

SECOND = timedelta(seconds=1)
PATIENCE = timedelta(seconds=10)


@asynccontextmanager
async def opened(path: Path, **settings: Any) -> AsyncIterator[EmbeddedBroker]:
    broker = EmbeddedBroker(path, **settings)
    await broker.open()
    try:
        yield broker
    finally:
        await broker.close()


def message(name: str, *, key: str | None = None, topic: str = "orders") -> Message:
    return Message(type="shop.order-placed", payload=b"{}", id=name, key=key, topic=topic)


async def publish(broker: Broker, *messages: Message) -> None:
    assert list(await broker.publish(messages, timeout=PATIENCE)) == [None] * len(messages)


Kept = EmbeddedBroker | MemoryBroker


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest_asyncio.fixture(params=["embedded", "memory"])
async def broker(
    request: pytest.FixtureRequest, path: Path, clock: ManualClock
) -> AsyncIterator[Kept]:
    broker: Kept = MemoryBroker(clock=clock)
    if request.param == "embedded":
        broker = EmbeddedBroker(path, clock=clock)
    yield broker
    await broker.close()


# Leases


async def test_a_slow_handler_keeps_its_delivery(path: Path) -> None:
    """The lease is renewed for as long as the consumer is subscribed."""
    lease = timedelta(seconds=0.3)
    async with opened(path, lease=lease) as slow, opened(path, lease=lease) as other:
        await publish(slow, message("a"))
        async with (
            slow.subscribe(["orders"], group="billing", prefetch=1) as box,
            other.subscribe(["orders"], group="billing", prefetch=1) as other_box,
        ):
            delivery = await receive(box)

            with pytest.raises(TimeoutError):
                await asyncio.wait_for(anext(other_box), 1.5)

            await delivery.ack()


# What is kept


async def test_a_new_group_receives_what_is_still_kept(broker: Kept) -> None:
    await publish(broker, message("a", key="k"), message("b", key="k"), message("c"))
    async with broker.subscribe(["orders"], group="first", prefetch=3) as box:
        await drain(box, 3)

    async with broker.subscribe(["orders"], group="second", prefetch=3) as box:
        assert sorted(await drain(box, 3)) == ["a", "b", "c"]


async def test_finished_messages_are_pruned_after_the_retention(path: Path) -> None:
    clock = ManualClock()
    async with opened(path, clock=clock) as broker:
        await publish(broker, message("done"), message("pending"))
        await publish(broker, message("unclaimed", topic="nobody"))
        async with broker.subscribe(["orders"], group="billing", prefetch=1) as box:
            assert await drain(box, 1) == ["done"]

        clock.advance(timedelta(days=1, seconds=1))
        await _prune(broker)
        assert _ids(path) == ["pending", "unclaimed"]

        clock.advance(timedelta(days=6))
        await _prune(broker)
        assert _ids(path) == ["pending"]


async def test_pruning_goes_through_long_queues_in_chunks(path: Path) -> None:
    clock = ManualClock()
    async with opened(path, clock=clock, unclaimed_retention=SECOND, retention=SECOND) as broker:
        await publish(broker, *(message(str(number)) for number in range(1200)))
        clock.advance(2)
        await publish(broker, message("new"))

        await _prune(broker)

        assert _ids(path) == ["new"]


async def _prune(broker: EmbeddedBroker) -> None:
    """Prune now; each ping waits for the jobs before it, one of which may follow another."""
    broker._prune_at = 0
    broker._prune_if_due()
    for _ in range(5):
        await broker.ping()


def _ids(path: Path) -> list[str]:
    with closing(sqlite3.connect(path)) as connection:
        return [row[0] for row in connection.execute("SELECT id FROM message ORDER BY position")]


async def test_what_expired_becomes_a_dead_letter(broker: Kept, clock: ManualClock) -> None:
    expiring = replace(message("old", key="k"), expires_at=clock.now() + SECOND)
    await publish(broker, expiring, message("next", key="k"))
    clock.advance(2)

    async with broker.subscribe(["orders"], group="billing", prefetch=1) as box:
        assert await drain(box, 1) == ["next"]

    [letter] = await broker.dead_letters("billing")
    assert letter.message == expiring
    assert letter.reason == "expired"
    assert letter.attempts == 0


# What people see and do


async def test_people_see_every_queue(broker: Kept, clock: ManualClock) -> None:
    assert isinstance(broker, Keeper)
    async with broker.subscribe(["orders", "idle"], group="billing", prefetch=1) as box:
        published_at = clock.now()
        await publish(broker, *(message(name, key="k") for name in "abcd"), message("e"))
        clock.advance(5)
        await (await receive(box)).reject("poison")
        await (await receive(box)).retry(timedelta(hours=1), "not yet")
        delivery = await receive(box)
        assert delivery.message.id == "e"

        statuses = await broker.queues()

    idle = QueueStatus(
        group="billing",
        topic="idle",
        ready=0,
        out=0,
        delayed=0,
        dead=0,
        oldest_at=None,
        consumers=1,
    )
    orders = replace(
        idle, topic="orders", ready=2, out=1, delayed=1, dead=1, oldest_at=published_at
    )
    assert list(statuses) == [idle, orders]
    assert {one.consumers for one in await broker.queues()} == {0}


async def test_people_see_what_no_group_receives(broker: Kept, clock: ManualClock) -> None:
    published_at = clock.now()
    await publish(broker, message("a"), message("b"))
    clock.advance(5)
    await publish(broker, message("c"))

    (nobody,) = await broker.queues()
    assert (nobody.group, nobody.topic, nobody.ready) == ("", "orders", 3)
    assert (nobody.oldest_at, nobody.consumers) == (published_at, 0)

    async with broker.subscribe(["orders"], group="billing", prefetch=1):
        assert [one.group for one in await broker.queues()] == ["billing"]


async def test_dead_letters_can_be_replayed_and_discarded(broker: Kept) -> None:
    async with (
        broker.subscribe(["orders"], group="billing", prefetch=1) as box,
        broker.subscribe(["orders"], group="audit", prefetch=9) as audit,
    ):
        await publish(broker, *(message(name, key=name) for name in "abc"))
        for _ in range(3):
            delivery = await receive(box)
            await delivery.retry(timedelta(0), "once")
            await (await receive(box)).reject(f"poison {delivery.message.id}")
        letters = await broker.dead_letters("billing", limit=2)
        assert [letter.message.id for letter in letters] == ["a", "b"]
        assert [letter.attempts for letter in letters] == [2, 2]
        await publish(broker, message("d"))

        assert await broker.discard_dead("billing", [letters[0].position]) == 1
        assert await broker.replay_dead("billing", [letters[1].position, 4711]) == 1
        assert await broker.replay_dead("billing", limit=5) == 1
        assert await broker.replay_dead("nobody") == 0

        assert await drain(box, 3) == ["d", "b", "c"]
        assert await broker.dead_letters() == []
        assert await drain(audit, 4) == ["a", "b", "c", "d"]


async def test_a_replay_reaches_no_other_group(broker: Kept) -> None:
    async with broker.subscribe(["orders"], group="billing", prefetch=1) as box:
        await publish(broker, message("a", key="k"))
        await (await receive(box)).reject("poison")
        await broker.replay_dead("billing")
        await publish(broker, message("end", key="k"))

        async with broker.subscribe(["orders"], group="newcomer", prefetch=3) as newcomer:
            assert await drain(newcomer, 2) == ["a", "end"]
        first = await receive(box)
        assert (first.message.id, first.attempt) == ("a", 1)


async def test_a_dropped_group_or_topic_keeps_nothing_and_blocks_nothing(broker: Kept) -> None:
    async with broker.subscribe(["orders", "parcels"], group="billing", prefetch=1):
        pass
    await publish(broker, message("p", key="k", topic="parcels"), message("o", key="k"))

    async with broker.subscribe(["orders"], group="billing", prefetch=1) as box:
        assert await broker.drop_group("billing", ["parcels"]) == 1
        assert await drain(box, 1) == ["o"]

    queues = [(one.group, one.topic) for one in await broker.queues()]
    assert queues == [("", "parcels"), ("billing", "orders")]
    await publish(broker, message("q"))
    assert await broker.drop_group("billing") == 1
    assert await broker.drop_group("billing") == 0
    assert {one.group for one in await broker.queues()} == {""}
