"""What publishing through the RabbitMQ driver costs: `python -m bench.rabbitmq [URL]`.

Four ways to bring the same bytes to the same durable queue, persistent, mandatory and confirmed,
each in turn in every round, with 500 messages in flight:

- ceiling: frames made beforehand, written in pieces as confirms make room; nothing else
- pamqp: each batch of 500 marshalled by pamqp and written at once
- one call: `publish` with 500 messages, one call after the other
- two calls: `publish` with 250 messages, two calls at the same time

Without a URL a server is started. With `--relay` a relay drains a PostgreSQL outbox as well, by
`one call` for each of its batches.
"""

import argparse
import asyncio
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

from pamqp import body, commands, frame, header

from bench import stage
from bench.postgresql.ground import Ground, prepared
from bench.postgresql.running import relayed
from postroom.brokers.rabbitmq import RabbitmqBroker
from postroom.brokers.rabbitmq.address import parse
from postroom.brokers.rabbitmq.channel import Arrived, Channel, Closed
from postroom.brokers.rabbitmq.connection import Connection, open_connection
from postroom.brokers.rabbitmq.packing import Packer
from postroom.lab.servers import postgresql
from postroom.lab.servers.rabbitmq import any_server
from postroom.message import Message, new_id

TOPIC = "shop.order-placed"
WINDOW = 500
_TIMEOUT = timedelta(seconds=30)
_PIECE = 100
_GOAL = 0.75
_DURABLE = {"fsync": "on", "full_page_writes": "on", "shared_buffers": "512MB"}
"""PostgreSQL as in production: a commit waits for the disk."""


class Counter:
    """Counts confirms, and says when there is room for more."""

    def __init__(self) -> None:
        """Begin with none."""
        self.confirmed = 0
        self.more = asyncio.Event()

    def acknowledged(self, tag: int, *, multiple: bool, positive: bool) -> None:
        """Count: an acknowledgement of several says the highest."""
        assert positive
        self.confirmed = tag if multiple else self.confirmed + 1
        self.more.set()

    def arrived(self, content: Arrived) -> None:
        """Nothing may be returned."""
        raise AssertionError(content)

    def cancelled(self) -> None:
        """Nothing is consumed."""

    def closed(self, how: Closed) -> None:
        """Nothing may fail."""
        del how
        self.more.set()


def messages(count: int) -> list[Message]:
    """Return messages as a relay gives them to a broker: 160 bytes of JSON, two labels."""
    payload = b'{"order_id": "0193a1b2-7c3d", "note": "' + b"x" * 118 + b'"}'
    return [
        Message(
            id=str(new_id()),
            type=TOPIC,
            topic=TOPIC,
            payload=payload,
            key=f"order-{number % 1000}",
            headers={"postroom-seq": str(1_000_000 + number), "postroom-epoch": "1"},
        )
        for number in range(count)
    ]


async def confirming(url: str, counter: Counter) -> tuple[Connection, Channel]:
    """Return a channel in confirm mode on a connection of its own."""
    connection = await open_connection(
        parse(url), tls=None, heartbeat=60, external=False, name="bench"
    )
    channel = await connection.channel(counter)
    await channel.call(commands.Confirm.Select(), commands.Confirm.SelectOk)
    return connection, channel


async def ceiling(url: str, exchange: str, batch: Sequence[Message]) -> float:
    """Write frames that were made beforehand."""
    counter = Counter()
    connection, channel = await confirming(url, counter)
    packed = Packer(exchange, 2**20).pack(batch, channel=channel.number, most=connection.frame_max)
    data = [getattr(one, "data", b"") for one in packed]
    pieces = [b"".join(data[at : at + _PIECE]) for at in range(0, len(data), _PIECE)]
    began, written = time.perf_counter(), 0
    for piece in pieces:
        while written + _PIECE - counter.confirmed > WINDOW:
            counter.more.clear()
            await counter.more.wait()
        channel.write(piece)
        written += _PIECE
    await _all(counter, len(batch))
    spent = time.perf_counter() - began
    await connection.close()
    return len(batch) / spent


async def by_pamqp(url: str, exchange: str, batch: Sequence[Message]) -> float:
    """Marshal each batch by pamqp, and write it at once."""
    counter = Counter()
    connection, channel = await confirming(url, counter)
    began, done = time.perf_counter(), 0
    for at in range(0, len(batch), WINDOW):
        part = batch[at : at + WINDOW]
        channel.write(b"".join([_marshalled(each, exchange, channel.number) for each in part]))
        done += len(part)
        await _all(counter, done)
    spent = time.perf_counter() - began
    await connection.close()
    return len(batch) / spent


def _marshalled(message: Message, exchange: str, channel: int) -> bytes:
    properties = commands.Basic.Properties(
        content_type=message.content_type,
        headers={**message.headers, "postroom-key": message.key},
        delivery_mode=2,
        message_id=message.id,
        message_type=message.type,
    )
    size = len(message.payload)
    publish = commands.Basic.Publish(exchange=exchange, routing_key=message.topic, mandatory=True)
    return b"".join(
        (
            frame.marshal(publish, channel),
            frame.marshal(header.ContentHeader(body_size=size, properties=properties), channel),
            frame.marshal(body.ContentBody(message.payload), channel),
        )
    )


async def one_call(url: str, exchange: str, batch: Sequence[Message]) -> float:
    """Publish through the driver, one call after the other."""
    return await _driver(url, exchange, [batch], WINDOW)


async def two_calls(url: str, exchange: str, batch: Sequence[Message]) -> float:
    """Publish through the driver, two calls of half the size at the same time."""
    half = len(batch) // 2
    return await _driver(url, exchange, [batch[:half], batch[half:]], WINDOW // 2)


async def _driver(url: str, exchange: str, shares: Sequence[Sequence[Message]], size: int) -> float:
    broker = RabbitmqBroker(url, exchange=exchange)
    await broker.open()
    await broker.ping()

    async def publish(share: Sequence[Message]) -> None:
        for at in range(0, len(share), size):
            assert not any(await broker.publish(share[at : at + size], timeout=_TIMEOUT))

    began = time.perf_counter()
    await asyncio.gather(*map(publish, shares))
    spent = time.perf_counter() - began
    await broker.close()
    return sum(map(len, shares)) / spent


async def _all(counter: Counter, count: int) -> None:
    while counter.confirmed < count:
        counter.more.clear()
        await counter.more.wait()


WAYS: dict[str, Callable[[str, str, Sequence[Message]], Awaitable[float]]] = {
    "ceiling": ceiling,
    "pamqp": by_pamqp,
    "one call": one_call,
    "two calls": two_calls,
}


async def measure(url: str, *, queue_type: str, rounds: int, count: int) -> dict[str, list[float]]:
    """Return the rates of every round, by way."""
    exchange = f"bench-{uuid4().hex[:8]}"
    connection, channel = await confirming(url, Counter())
    queue = await _made(channel, exchange, TOPIC, queue_type)
    batch = messages(count)
    rates: dict[str, list[float]] = {name: [] for name in WAYS}
    for _ in range(rounds):
        for name, way in WAYS.items():
            rates[name].append(await way(url, exchange, batch))
            await channel.begin(commands.Queue.Purge(queue=queue))
    await _removed(channel, exchange, queue)
    await connection.close()
    return rates


async def relays(
    url: str, ground: Ground, *, queue_type: str, rounds: int, count: int
) -> list[float]:
    """Return the rates at which a relay moves messages from PostgreSQL to that RabbitMQ."""
    exchange = f"bench-{uuid4().hex[:8]}"
    connection, channel = await confirming(url, Counter())
    queue = await _made(channel, exchange, stage.topic(), queue_type)
    rates = []
    for _ in range(rounds):
        await ground.emptied()
        await ground.add(count)
        await ground.settled_down()
        broker = RabbitmqBroker(url, exchange=exchange)
        await broker.open()
        rates.append(await relayed(ground, count, broker=broker))
        await broker.close()
        await channel.begin(commands.Queue.Purge(queue=queue))
    await _removed(channel, exchange, queue)
    await connection.close()
    return rates


async def _made(channel: Channel, exchange: str, topic: str, queue_type: str) -> str:
    queue = f"{exchange}.queue"
    arguments: dict[str, Any] = {"x-queue-type": queue_type}
    for method in (
        commands.Exchange.Declare(exchange=exchange, durable=True),
        commands.Queue.Declare(queue=queue, durable=True, arguments=arguments),
        commands.Queue.Bind(queue=queue, exchange=exchange, routing_key=topic),
    ):
        await channel.begin(method)
    return queue


async def _removed(channel: Channel, exchange: str, queue: str) -> None:
    await channel.begin(commands.Queue.Delete(queue=queue))
    await channel.begin(commands.Exchange.Delete(exchange=exchange))


def packing(count: int = 20_000) -> Iterator[tuple[str, float]]:
    """Yield what packing one message costs, in microseconds: by our own code, and by pamqp."""
    batch = messages(count)
    packer = Packer("bench", 2**20)
    began = time.perf_counter()
    packer.pack(batch, channel=1, most=131_072)
    yield "our own frames", (time.perf_counter() - began) / count * 1e6
    began = time.perf_counter()
    for each in batch:
        _marshalled(each, "bench", 1)
    yield "pamqp", (time.perf_counter() - began) / count * 1e6


@contextmanager
def _server(url: str | None) -> Iterator[str]:
    if url:
        yield url
        return
    server = any_server()
    try:
        server.start()
        yield server.url.partition("?")[0]
    finally:
        server.remove()


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m bench.rabbitmq")
    parser.add_argument("url", nargs="?", help="a running server; without it one is started")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--count", type=int, default=20_000)
    parser.add_argument("--queue-type", nargs="+", default=["classic", "quorum"])
    parser.add_argument("--relay", action="store_true", help="a relay from PostgreSQL as well")
    given = parser.parse_args()
    for name, cost in packing():
        print(f"packing, {name}: {cost:.1f} us a message")
    with _server(given.url) as url:
        for queue_type in given.queue_type:
            size: dict[str, Any] = {
                "queue_type": queue_type,
                "rounds": given.rounds,
                "count": given.count,
            }
            rates = asyncio.run(measure(url, **size))
            if given.relay:
                with _postgresql() as ground:
                    rates["relay"] = asyncio.run(relays(url, ground, **size))
            print(f"\n{queue_type} queue, {given.rounds} rounds of {given.count}:")
            _show(rates)


@contextmanager
def _postgresql() -> Iterator[Ground]:
    server = postgresql.any_server(settings=_DURABLE)
    try:
        server.start()
        with (
            tempfile.TemporaryDirectory() as folder,
            prepared(server.url, "rabbitmq", Path(folder)) as ground,
        ):
            yield ground
    finally:
        server.remove()


def _show(rates: dict[str, list[float]]) -> None:
    for name, found in rates.items():
        ratios = [a / b for a, b in zip(found, rates["ceiling"], strict=True)]
        ratio = statistics.median(ratios)
        missed = "" if ratio >= _GOAL or name in {"ceiling", "relay"} else f"  (goal {_GOAL})"
        print(
            f"  {name:<10} {statistics.median(found):>8.0f}/s  "
            f"{min(found):.0f} to {max(found):.0f}  {ratio:.2f} of the ceiling{missed}"
        )


if __name__ == "__main__":
    main()
