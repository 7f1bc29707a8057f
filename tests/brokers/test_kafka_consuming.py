"""What the Kafka driver promises a consumer: offsets, rebalances, retries, dead letters."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from datetime import timedelta
from typing import Any

import pytest
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient

from postroom.broker import Delivery
from postroom.brokers.kafka import KafkaBroker
from postroom.errors import BrokerUnavailable, DeliveryLost
from tests.brokers.log import (
    Client,
    committed,
    dead_letters,
    everything,
    gone,
    make_topic,
    message,
    outcome,
    put,
)
from tests.kafka import Ground

Box = AsyncIterator[Delivery]


@pytest.fixture
async def broker(kafka_client: Client) -> KafkaBroker:
    made = kafka_client()
    await made.open()
    return made


@pytest.fixture
def topic(log: Ground) -> str:
    """A topic with one partition."""
    return make_topic(log.servers, f"{log.prefix}orders")


async def test_the_offset_never_passes_what_is_not_done(
    broker: KafkaBroker, kafka_client: Client, log: Ground, topic: str
) -> None:
    """Field case 13: of 1 to 10 all are done but the third; it comes again, they do not."""
    await outcome(broker, *(message(str(n), topic=topic, key=str(n)) for n in range(1, 11)))
    async with broker.subscribe([topic], group="billing", prefetch=20) as box:
        out = [await _next(box) for _ in range(10)]
        for delivery in out:
            if delivery.message.id != "3":
                await delivery.ack()
        await _until(lambda: _committed(log, topic) == 2)
        _abandon(broker)

    other = kafka_client()
    await other.open()
    async with other.subscribe([topic], group="billing", prefetch=20) as box:
        third = await _next(box)
        assert third.message.id == "3"
        assert third.redelivered
        again = [await _next(box) for _ in range(7)]
        assert all(one.redelivered for one in again)


async def test_offsets_move_on_over_what_was_done_out_of_order(
    broker: KafkaBroker, log: Ground, topic: str
) -> None:
    await outcome(broker, *(message(str(n), topic=topic) for n in range(4)))

    async with broker.subscribe([topic], group="billing", prefetch=20) as box:
        out = [await _next(box) for _ in range(4)]
        await out[3].ack()
        await out[1].ack()
        await out[0].ack()
        await _until(lambda: _committed(log, topic) == 2)
        await out[2].ack()
        await _until(lambda: _committed(log, topic) == 4)


async def test_what_was_never_handed_out_is_not_redelivered_after_a_stop(
    broker: KafkaBroker, topic: str
) -> None:
    await outcome(broker, *(message(str(n), topic=topic) for n in range(5)))
    async with broker.subscribe([topic], group="billing", prefetch=2) as box:
        await _next(box)
        await (await _next(box)).ack()

    async with broker.subscribe([topic], group="billing", prefetch=10) as box:
        again = [(one.message.id, one.redelivered) for one in [await _next(box) for _ in range(5)]]

    assert again == [("0", True), ("1", True), ("2", False), ("3", False), ("4", False)]


async def test_kafka_is_told_before_anything_is_handed_out(
    broker: KafkaBroker, kafka_client: Client, topic: str
) -> None:
    """So that what kills the process at once is known as redelivered."""
    await outcome(broker, message("poison", topic=topic))
    async with broker.subscribe([topic], group="billing", prefetch=1) as box:
        await _next(box)
        _abandon(broker)

    other = kafka_client()
    await other.open()
    async with other.subscribe([topic], group="billing", prefetch=1) as box:
        assert (await _next(box)).redelivered


async def test_a_revoked_partition_loses_what_is_out_and_keeps_what_is_done(
    broker: KafkaBroker, kafka_client: Client, log: Ground
) -> None:
    topic = make_topic(log.servers, f"{log.prefix}wide", partitions=2)
    for number in range(2):
        for name in ("done", "out"):
            put(log.servers, topic, name.encode(), partition=number)
    second = kafka_client()
    await second.open()
    async with broker.subscribe([topic], group="billing", prefetch=10) as box:
        mine = [await _next(box) for _ in range(4)]
        for delivery in mine:
            if delivery.message.payload == b"done":
                await delivery.ack()

        async with second.subscribe([topic], group="billing", prefetch=10) as theirs:
            given = await _next(theirs)
            assert given.message.payload == b"out"
            assert given.redelivered
            outcomes = [await _answer(one) for one in mine if one.message.payload == b"out"]
            assert sorted(outcomes) == ["kept", "lost"]
            await given.ack()


async def test_a_slow_handler_keeps_its_partition(
    broker: KafkaBroker, kafka_client: Client, topic: str
) -> None:
    """Longer than the session: the thread polls on, whatever the handlers do."""
    del broker
    session = timedelta(seconds=3)
    slow = kafka_client(session_timeout=session)
    await slow.open()
    await outcome(slow, message("a", topic=topic), message("b", topic=topic))
    async with slow.subscribe([topic], group="billing", prefetch=1) as box:
        delivery = await _next(box)

        await asyncio.sleep(session.total_seconds() + 1)

        await delivery.ack()
        assert (await _next(box)).message.id == "b"


async def test_a_retry_holds_its_key_and_no_other(broker: KafkaBroker, topic: str) -> None:
    keys = ["k", "l", "k", "l", "k"]
    await outcome(broker, *(message(str(n), topic=topic, key=k) for n, k in enumerate(keys)))
    async with broker.subscribe([topic], group="billing", prefetch=10) as box:
        out = [await _next(box) for _ in range(5)]
        await out[0].retry(timedelta(seconds=1), "not yet")
        for number in (2, 4):
            await out[number].release()
        begun = time.monotonic()

        again = [(await _next(box)) for _ in range(3)]

        assert [one.message.id for one in again] == ["0", "2", "4"]
        assert time.monotonic() - begun > 0.9
        for one in (out[1], out[3], *again):
            await one.ack()


async def test_far_more_than_fits_flows_past_a_held_key(broker: KafkaBroker, topic: str) -> None:
    """The partition is paused and resumed, and nothing is lost or out of order."""
    names = [str(number) for number in range(5000)]
    await outcome(broker, *(message(name, topic=topic, key=name) for name in names))
    received: list[str] = []
    async with broker.subscribe([topic], group="billing", prefetch=10) as box:
        first = await _next(box)
        await first.retry(timedelta(seconds=1), "not yet")
        while len(received) < len(names):
            delivery = await _next(box)
            received.append(delivery.message.id)
            await delivery.ack()

    assert sorted(received) == sorted(names)
    others = [name for name in received if name != "0"]
    assert others == names[1:]


async def test_a_dead_letter_keeps_everything(broker: KafkaBroker, log: Ground, topic: str) -> None:
    make_topic(log.servers, f"{log.prefix}billing.dead")
    put(log.servers, topic, b"\xff", key=b"\xfe", headers=[("theirs", b"\xfd"), ("none", None)])
    async with broker.subscribe([topic], group="billing", prefetch=1) as box:
        await (await _next(box)).reject("cannot be read: \ud83d\0")

    [record] = everything(log.servers, f"{log.prefix}billing.dead")
    headers: Any = record.headers()
    assert (record.key(), record.value()) == (b"\xfe", b"\xff")
    found = dict(headers)
    assert found["theirs"] == b"\xfd"
    assert found["none"] is None
    assert found["postroom-topic"] == topic.encode()
    assert found["postroom-partition"] == b"0"
    assert found["postroom-offset"] == b"0"
    assert found["postroom-group"] == b"billing"
    assert found["postroom-reason"].startswith(b"cannot be read: ")
    [(dead, _)] = dead_letters(log.servers, f"{log.prefix}billing.dead")
    assert dead.topic == topic


async def test_without_its_dead_letters_nothing_is_given_up(
    broker: KafkaBroker, log: Ground, topic: str
) -> None:
    """Field case 12: the topic is missing, so the message stays; it is kept once it is there."""
    await outcome(broker, message("a", topic=topic))
    async with broker.subscribe([topic], group="billing", prefetch=1) as box:
        delivery = await _next(box)
        with pytest.raises(BrokerUnavailable, match="dead letter"):
            await delivery.reject("poison")
        assert _committed(log, topic) in {None, 0}
        await delivery.retry(timedelta(0), "poison")
        make_topic(log.servers, f"{log.prefix}billing.dead")

        await (await _next(box)).reject("poison")

    assert _committed(log, topic) == 1
    assert len(dead_letters(log.servers, f"{log.prefix}billing.dead")) == 1


async def test_strange_records_stop_nothing(broker: KafkaBroker, log: Ground, topic: str) -> None:
    """A tombstone, no headers, headers and keys that are no text: all are messages."""
    put(log.servers, topic, None, key=b"k")
    put(log.servers, topic, b"plain")
    put(log.servers, topic, b"x", key=b"\xff\xfe", headers=[("postroom-version", b"many")])
    put(log.servers, topic, b"x", headers=[("postroom-id", b"\xff"), ("", b""), ("n", None)])
    put(log.servers, topic, b"x", headers=[("twice", b"1"), ("twice", b"2")])
    await outcome(broker, message("ours", topic=topic))

    async with broker.subscribe([topic], group="billing", prefetch=10) as box:
        found = [(await _next(box)).message for _ in range(6)]

    assert [one.payload for one in found] == [b"", b"plain", b"x", b"x", b"x", b"{}"]
    assert [one.type for one in found[:2]] == [topic, topic]
    assert [one.id for one in found] == ["", "", "", "\\xff", "", "ours"]
    assert found[2].key == "\\xff\\xfe"
    assert found[2].version is None
    assert found[4].headers == {"twice": "2"}


async def test_a_missing_topic_is_said_at_once(broker: KafkaBroker, log: Ground) -> None:
    with pytest.raises(BrokerUnavailable, match="postroom topology --apply"):
        async with broker.subscribe([f"{log.prefix}none"], group="billing", prefetch=1):
            pass


async def test_a_topic_that_is_made_again_is_read_from_its_beginning(
    broker: KafkaBroker, log: Ground, topic: str
) -> None:
    admin = AdminClient({"bootstrap.servers": log.servers})
    await outcome(broker, *(message(f"old-{n}", topic=topic) for n in range(5)))
    async with broker.subscribe([topic], group="billing", prefetch=10) as box:
        for _ in range(5):
            await (await _next(box)).ack()
        for future in admin.delete_topics([topic]).values():
            future.result(20)
        await gone(log.servers, topic)
        make_topic(log.servers, topic)
        put(log.servers, topic, b"new")

        async with asyncio.timeout(40):
            assert (await anext(box)).message.payload == b"new"


async def test_a_group_that_somebody_else_moved_is_followed(
    broker: KafkaBroker, log: Ground, topic: str
) -> None:
    """Offsets set back by Kafka's own tools: what comes up to the prefetch is redelivered."""
    await outcome(broker, *(message(str(n), topic=topic) for n in range(6)))
    async with broker.subscribe([topic], group="billing", prefetch=10) as box:
        for _ in range(6):
            await (await _next(box)).ack()
    tool = Consumer({"bootstrap.servers": log.servers, "group.id": f"{log.prefix}billing"})
    tool.commit(offsets=[TopicPartition(topic, 0, 1)], asynchronous=False)
    tool.close()

    async with broker.subscribe([topic], group="billing", prefetch=3) as box:
        found = []
        for _ in range(5):
            delivery = await _next(box)
            found.append((delivery.message.id, delivery.redelivered))
            await delivery.ack()

    assert found == [("1", True), ("2", True), ("3", True), ("4", False), ("5", False)]


async def test_the_topology_is_shown_and_made_and_left_alone(
    kafka_client: Client, log: Ground
) -> None:
    broker = kafka_client(partitions=3, replication=1)
    await broker.open()
    wanted = {"billing": [f"{log.prefix}a", f"{log.prefix}b"]}

    parts = broker.topology(wanted)
    await broker.apply_topology(wanted)
    await broker.apply_topology(wanted)

    names = [f"{log.prefix}a", f"{log.prefix}b", f"{log.prefix}billing.dead"]
    assert [(part.kind, part.name) for part in parts] == [("topic", name) for name in names]
    look = Consumer({"bootstrap.servers": log.servers, "group.id": "look"})
    topics = look.list_topics(timeout=10).topics
    assert [len(topics[name].partitions) for name in names] == [3, 3, 1]
    look.close()
    other = kafka_client(partitions=4, replication=1)
    await other.open()
    with pytest.raises(Exception, match="has 3 partitions, not 4"):
        await other.apply_topology(wanted)


async def _next(box: Box) -> Delivery:
    async with asyncio.timeout(20):
        return await anext(box)


async def _answer(delivery: Delivery) -> str:
    try:
        await delivery.ack()
    except DeliveryLost:
        return "lost"
    return "kept"


def _committed(log: Ground, topic: str) -> int | None:
    return committed(log.servers, f"{log.prefix}billing", topic)


async def _until(seen: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not await asyncio.to_thread(seen):
            await asyncio.sleep(0.05)


def _abandon(broker: KafkaBroker) -> None:
    """Let its consumers end as a killed process does: nothing more is committed."""
    for subscription in broker._subscriptions:
        listener: Any = subscription.listener
        listener._commit_for_good = lambda *_: None
    with suppress(KeyError):
        broker._subscriptions.clear()
