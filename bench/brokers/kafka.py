"""Kafka, idempotent and with acks=all: librdkafka as it comes."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import asynccontextmanager
from functools import partial

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from bench.brokers.course import TOPIC, WINDOW, Course, Stretch, serving
from postroom.brokers.kafka import KafkaBroker
from postroom.brokers.kafka.mapping import Record, record_of
from postroom.lab.servers.kafka import any_server, installed

PARTITIONS = 4


class Bare:
    """The client library alone, and a count of what it confirmed."""

    def __init__(self, url: str) -> None:
        """Set up as the driver does."""
        self.confirmed = 0
        self._producer = Producer(
            {
                "bootstrap.servers": _servers(url),
                "enable.idempotence": True,
                "partitioner": "murmur2_random",
                "linger.ms": 5,
            }
        )

    def send(self, records: Sequence[Record]) -> None:
        """Send these, and wait for the confirms."""
        produce: Callable[..., None] = self._producer.produce
        for number, one in enumerate(records):
            produce(one.topic, one.value, one.key, on_delivery=self._counted, headers=one.headers)
            if number % 1000 == 0:
                self._producer.poll(0)
        assert self._producer.flush(30) == 0

    def _counted(self, error: object, _: object) -> None:
        assert error is None
        self.confirmed += 1


async def bare(stretch: Stretch, *, size: int | None = None) -> float:
    """Send records made beforehand, so many at a time, each lot confirmed before the next."""
    return await asyncio.to_thread(_send, stretch, size or len(stretch.batch))


def _send(stretch: Stretch, size: int) -> float:
    records = [record_of(one) for one in stretch.batch]
    producer = Bare(stretch.url)
    producer.send(records[:1])  # connected, with its number as a producer
    began = time.perf_counter()
    for at in range(0, len(records), size):
        producer.send(records[at : at + size])
    spent = time.perf_counter() - began
    assert producer.confirmed == len(records) + 1
    return len(records) / spent


@asynccontextmanager
async def made(url: str, name: str) -> AsyncIterator[None]:
    """Make the topic; on a server that is given it may not be there yet."""
    del name
    admin = AdminClient({"bootstrap.servers": _servers(url)})
    await _done(admin.create_topics([NewTopic(TOPIC, PARTITIONS, 1)]))
    try:
        yield
    finally:
        await _done(admin.delete_topics([TOPIC]))
        await asyncio.to_thread(_forgotten, admin)


def _forgotten(admin: AdminClient) -> None:
    while TOPIC in admin.list_topics(timeout=10).topics:
        time.sleep(0.05)


async def version(url: str) -> str:
    """Name the broker that would be started, which says nothing of one that is given."""
    del url
    folder = installed()
    jars = sorted(folder.glob("kafka_*.jar")) if folder else []
    return f"Kafka ({jars[-1].stem if jars else 'unknown version'}), {PARTITIONS} partitions"


async def _done(futures: Mapping[str, Future[None]]) -> None:
    for future in futures.values():
        await asyncio.to_thread(future.result, 20)


def _servers(url: str) -> str:
    return url.removeprefix("kafka://")


COURSE = Course(
    title="Kafka",
    serve=partial(serving, server=any_server),
    version=version,
    made=made,
    broker=lambda url, _: KafkaBroker(url),
    bare={
        f"librdkafka with {WINDOW} at a time": partial(bare, size=WINDOW),
        "librdkafka in one go": bare,
    },
    goal=0.6,
)
