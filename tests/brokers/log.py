"""What the tests of the Kafka driver do to a server besides what the driver does."""

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import Any
from uuid import uuid4

from confluent_kafka import (
    Consumer,
    KafkaException,
    Producer,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka import Message as KafkaMessage
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    ResourceType,
)

from postroom.brokers.kafka import KafkaBroker
from postroom.brokers.kafka.mapping import REASON, message_of
from postroom.errors import BrokerError
from postroom.message import Message

TIMEOUT = timedelta(seconds=10)
SESSION = timedelta(seconds=5)
"""After that a consumer that does not poll is out; a busy machine must not get there."""
Client = Callable[..., KafkaBroker]
KIND = "shop.order-placed"


def message(name: str, *, topic: str, key: str | None = None, **more: Any) -> Message:
    """Return a message of this id."""
    fields = {"type": KIND, "payload": b"{}", **more}
    return Message(id=name, topic=topic, key=key, **fields)


async def outcome(
    broker: KafkaBroker, *messages: Message, timeout: timedelta = TIMEOUT
) -> list[BrokerError | None]:
    """Publish, and return what the driver says of each."""
    return list(await broker.publish(messages, timeout=timeout))


def kinds(results: Sequence[BrokerError | None]) -> list[type[BrokerError] | None]:
    """Return the classes of the results."""
    return [None if result is None else type(result) for result in results]


def set_topic(servers: str, topic: str, **config: str) -> None:
    """Change settings of a topic; their dots are written as underscores."""
    admin = AdminClient({"bootstrap.servers": servers})
    entries = [
        ConfigEntry(name.replace("_", "."), value, incremental_operation=AlterConfigOpType.SET)
        for name, value in config.items()
    ]
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=entries)
    for future in admin.incremental_alter_configs([resource]).values():
        future.result(20)


def committed(servers: str, group: str, topic: str) -> int | None:
    """Return what the group has committed of the topic's first partition."""
    look = Consumer({"bootstrap.servers": servers, "group.id": group})
    try:
        [found] = look.committed([TopicPartition(topic, 0)], timeout=10)
    finally:
        look.close()
    return None if found.offset < 0 else found.offset


def make_topic(
    servers: str, name: str, *, partitions: int = 1, config: Mapping[str, str] | None = None
) -> str:
    """Make a topic, and wait until it can be seen; return its name."""
    admin = AdminClient({"bootstrap.servers": servers})
    wanted = NewTopic(name, partitions, 1, config=dict(config or {}))
    for future in admin.create_topics([wanted]).values():
        future.result(20)
    until = time.monotonic() + 20
    while not _seen(admin, name):
        assert time.monotonic() < until
        time.sleep(0.02)
    return name


def _seen(admin: AdminClient, name: str) -> bool:
    [future] = admin.describe_topics(TopicCollection([name])).values()
    try:
        found: Any = future.result(20)
    except KafkaException:
        return False
    return all(one.leader is not None for one in found.partitions)


def everything(servers: str, topic: str) -> list[KafkaMessage]:
    """Return what is in a topic, in the order of offsets, partition by partition."""
    consumer = Consumer({"bootstrap.servers": servers, "group.id": f"look-{uuid4().hex[:8]}"})
    found: list[KafkaMessage] = []
    try:
        described = consumer.list_topics(timeout=10).topics.get(topic)
        for number in sorted(described.partitions) if described else ():
            place = TopicPartition(topic, number, 0)
            _, end = consumer.get_watermark_offsets(place, timeout=10)
            consumer.assign([place])
            offset = 0
            while offset < end:
                one = consumer.poll(10)
                if one is None:
                    break
                assert one.error() is None
                found.append(one)
                offset = (one.offset() or 0) + 1
    finally:
        consumer.close()
    return found


def ids(servers: str, topic: str) -> list[str]:
    """Return the ids of what is in a topic."""
    return [as_message(one).id for one in everything(servers, topic)]


def as_message(one: KafkaMessage) -> Message:
    """Return a record as the driver reads it."""
    headers: Any = one.headers() or ()
    return message_of(one.topic() or "", one.key(), one.value(), headers)


def dead_letters(servers: str, topic: str) -> list[tuple[Message, str]]:
    """Return the dead letters in a topic with their reasons."""
    found = []
    for one in everything(servers, topic):
        headers: Any = dict(one.headers() or ())
        found.append((as_message(one), headers[REASON].decode()))
    return found


def put(
    servers: str,
    topic: str,
    value: bytes | None,
    *,
    key: bytes | None = None,
    headers: list[tuple[str, bytes | None]] | None = None,
    partition: int = -1,
) -> None:
    """Publish as a program that knows nothing of Postroom."""
    producer = Producer({"bootstrap.servers": servers})
    failed: list[object] = []
    produce: Any = producer.produce
    produce(
        topic,
        value,
        key,
        partition=partition,
        headers=headers,
        on_delivery=lambda error, _: failed.append(error),
    )
    assert producer.flush(10) == 0
    assert failed == [None]


async def gone(servers: str, topic: str) -> None:
    """Wait until a topic that was deleted cannot be seen any more."""
    admin = AdminClient({"bootstrap.servers": servers})
    async with asyncio.timeout(20):
        while _seen(admin, topic):
            await asyncio.sleep(0.02)
