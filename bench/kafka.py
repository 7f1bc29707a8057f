"""What publishing through the Kafka driver costs: `python -m bench.kafka [URL]`.

Ways to bring the same bytes with the same keys and headers to the same topic, idempotent and with
acks=all, each in turn in every round:

- pipelined: bare librdkafka, records made beforehand, no end until all are confirmed; a callback
  for each counts it
- batches: the same, but 500 at a time, each confirmed before the next
- one call: `publish` with 500 messages, one call after the other
- two calls: `publish` with 500 messages, two calls at the same time

Without a URL a server is started.
"""

import argparse
import asyncio
import statistics
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any
from uuid import uuid4

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from postroom.brokers.kafka import KafkaBroker
from postroom.brokers.kafka.mapping import Record, record_of
from postroom.lab.servers.kafka import any_server
from postroom.message import Message, new_id

SIZE = 500
_TIMEOUT = timedelta(seconds=30)
_GOAL = 0.6


def messages(topic: str, count: int) -> list[Message]:
    """Return messages as a relay gives them to a broker: 160 bytes of JSON, two labels."""
    payload = b'{"order_id": "0193a1b2-7c3d", "note": "' + b"x" * 118 + b'"}'
    return [
        Message(
            id=str(new_id()),
            type="shop.order-placed",
            topic=topic,
            payload=payload,
            key=f"order-{number % 1000}",
            headers={"postroom-seq": str(1_000_000 + number), "postroom-epoch": "1"},
        )
        for number in range(count)
    ]


class Bare:
    """The client library alone, and a count of what it confirmed."""

    def __init__(self, servers: str) -> None:
        """Set up as the driver does."""
        self.confirmed = 0
        self._producer = Producer(
            {
                "bootstrap.servers": servers,
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


async def pipelined(url: str, batch: Sequence[Message]) -> float:
    """Bare, all in one go."""
    return await asyncio.to_thread(_bare, url, batch, len(batch))


async def batches(url: str, batch: Sequence[Message]) -> float:
    """Bare, one batch after the other."""
    return await asyncio.to_thread(_bare, url, batch, SIZE)


def _bare(url: str, batch: Sequence[Message], size: int) -> float:
    records = [record_of(one) for one in batch]
    bare = Bare(url.removeprefix("kafka://"))
    bare.send(records[:1])  # connected, with its number as a producer
    began = time.perf_counter()
    for at in range(0, len(records), size):
        bare.send(records[at : at + size])
    spent = time.perf_counter() - began
    assert bare.confirmed == len(records) + 1
    return len(records) / spent


async def one_call(url: str, batch: Sequence[Message]) -> float:
    """Publish through the driver, one call after the other."""
    return await _driver(url, [batch])


async def two_calls(url: str, batch: Sequence[Message]) -> float:
    """Publish through the driver, two calls at the same time."""
    half = len(batch) // 2
    return await _driver(url, [batch[:half], batch[half:]])


async def _driver(url: str, shares: Sequence[Sequence[Message]]) -> float:
    broker = KafkaBroker(url)
    await broker.open()

    async def publish(share: Sequence[Message]) -> None:
        for at in range(0, len(share), SIZE):
            assert not any(await broker.publish(share[at : at + SIZE], timeout=_TIMEOUT))

    await asyncio.gather(*(publish(share[:1]) for share in shares))
    began = time.perf_counter()
    await asyncio.gather(*map(publish, shares))
    spent = time.perf_counter() - began
    await broker.close()
    return sum(map(len, shares)) / spent


WAYS: dict[str, Callable[[str, Sequence[Message]], Awaitable[float]]] = {
    "pipelined": pipelined,
    "batches": batches,
    "one call": one_call,
    "two calls": two_calls,
}


async def measure(url: str, *, rounds: int, count: int, partitions: int) -> dict[str, list[float]]:
    """Return the rates of every round, by way."""
    topic = f"bench-{uuid4().hex[:8]}"
    admin = AdminClient({"bootstrap.servers": url.removeprefix("kafka://")})
    for future in admin.create_topics([NewTopic(topic, partitions, 1)]).values():
        future.result(20)
    batch = messages(topic, count)
    rates: dict[str, list[float]] = {name: [] for name in WAYS}
    for _ in range(rounds):
        for name, way in WAYS.items():
            rates[name].append(await way(url, batch))
    for future in admin.delete_topics([topic]).values():
        future.result(20)
    return rates


@contextmanager
def _server(url: str | None) -> Iterator[str]:
    if url:
        yield url
        return
    server = any_server()
    try:
        server.start()
        yield server.url
    finally:
        server.remove()


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m bench.kafka")
    parser.add_argument("url", nargs="?", help="a running server; without it one is started")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--count", type=int, default=20_000)
    parser.add_argument("--partitions", type=int, default=4)
    given = parser.parse_args()
    with _server(given.url) as url:
        size: dict[str, Any] = {
            "rounds": given.rounds,
            "count": given.count,
            "partitions": given.partitions,
        }
        rates = asyncio.run(measure(url, **size))
    print(f"{given.partitions} partitions, {given.rounds} rounds of {given.count}:")
    for name, found in rates.items():
        ratios = {
            way: statistics.median(a / b for a, b in zip(found, rates[way], strict=True))
            for way in ("pipelined", "batches")
        }
        missed = "" if ratios["batches"] >= _GOAL else f"  (goal {_GOAL})"
        print(
            f"  {name:<10} {statistics.median(found):>8.0f}/s  {min(found):.0f} to "
            f"{max(found):.0f}  {ratios['batches']:.2f} of bare batches, "
            f"{ratios['pipelined']:.2f} of pipelined{missed}"
        )


if __name__ == "__main__":
    main()
