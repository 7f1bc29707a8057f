"""What publishing through the Redis driver costs: `python -m bench.redis [URL]`.

Four ways to bring the same fields to the same stream, 500 messages at a time, each in turn in
every round:

- ceiling: commands made beforehand, written to a socket and counted back; nothing else
- bare: redis-py as its manual shows it, `pipeline(transaction=False)` and `xadd`
- one call: `publish` with 500 messages, one call after the other
- two calls: `publish` with 250 messages, two calls at the same time

Without a URL a server is started, without a disk (`--disk`: with appendonly). With `--relay` a
relay drains a PostgreSQL outbox as well, by `one call` for each of its batches.
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
from urllib.parse import urlsplit
from uuid import uuid4

import redis.asyncio as client

from bench import stage
from bench.postgresql.ground import Ground, prepared
from bench.postgresql.running import relayed
from postroom.brokers.redis import RedisBroker, mapping
from postroom.brokers.redis.names import Names
from postroom.brokers.redis.wire import bulk
from postroom.lab.servers import postgresql
from postroom.lab.servers.redis import any_server
from postroom.message import Message, new_id

TOPIC = "shop.order-placed"
WINDOW = 500
_TIMEOUT = timedelta(seconds=30)
_GOAL = 0.7
_DURABLE = {"fsync": "on", "full_page_writes": "on", "shared_buffers": "512MB"}
"""PostgreSQL as in production: a commit waits for the disk."""


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


def batches(batch: Sequence[Message]) -> Iterator[Sequence[Message]]:
    """Return them in parts of a transaction's size."""
    for at in range(0, len(batch), WINDOW):
        yield batch[at : at + WINDOW]


async def ceiling(url: str, prefix: str, batch: Sequence[Message]) -> float:
    """Write commands that were made beforehand, and count the lines that come back."""
    stream = Names(prefix).stream(TOPIC)
    parts = []
    for part in batches(batch):
        made = []
        for message in part:
            count, fields = mapping.packed(message, None)
            made.append(b"*%d\r\n%b%b%b" % (count + 3, bulk(b"XADD"), bulk(stream), bulk(b"*")))
            made.append(fields)
        parts.append((b"".join(made), len(part) * 2))
    place = urlsplit(url)
    reader, writer = await asyncio.open_connection(place.hostname, place.port)
    began = time.perf_counter()
    for data, lines in parts:
        writer.write(data)
        left = lines
        while left > 0:
            left -= (await reader.read(65_536)).count(b"\n")
    spent = time.perf_counter() - began
    writer.close()
    await writer.wait_closed()
    return len(batch) / spent


async def bare(url: str, prefix: str, batch: Sequence[Message]) -> float:
    """Publish with redis-py alone, without a look at the order of keys."""
    stream = Names(prefix).stream(TOPIC)
    server = client.Redis.from_url(url)
    await server.exists(stream)  # connect
    began = time.perf_counter()
    for part in batches(batch):
        pipeline = server.pipeline(transaction=False)
        for message in part:
            pipeline.xadd(
                stream,
                {
                    "id": message.id,
                    "type": message.type,
                    "content_type": message.content_type,
                    "key": message.key or "",
                    **{f"header:{name}": text for name, text in message.headers.items()},
                    "payload": message.payload,
                },
            )
        assert len(await pipeline.execute()) == len(part)
    spent = time.perf_counter() - began
    await server.aclose()
    return len(batch) / spent


async def published(url: str, prefix: str, batch: Sequence[Message], *, calls: int) -> float:
    """Publish through the driver, in so many calls at a time."""
    broker = RedisBroker(url, prefix=prefix, missing_stream="create")
    await broker.open()
    await broker.ping()
    size = WINDOW // calls
    parts = [batch[at : at + size] for at in range(0, len(batch), size)]
    parts.reverse()

    async def work() -> None:
        while parts:
            results = await broker.publish(parts.pop(), timeout=_TIMEOUT)
            assert not any(results)

    began = time.perf_counter()
    await asyncio.gather(*(work() for _ in range(calls)))
    spent = time.perf_counter() - began
    await broker.close()
    return len(batch) / spent


Way = Callable[[str, str, Sequence[Message]], Awaitable[float]]
WAYS: dict[str, Way] = {
    "ceiling": ceiling,
    "bare": bare,
    "one call": lambda *given: published(*given, calls=1),
    "two calls": lambda *given: published(*given, calls=2),
}


async def measured(url: str, *, count: int, rounds: int) -> dict[str, list[float]]:
    """Run every way in turn, round by round, each on a stream of its own."""
    batch = messages(count)
    rates: dict[str, list[float]] = {name: [] for name in WAYS}
    for _ in range(rounds):
        for name, way in WAYS.items():
            prefix = f"bench-{uuid4().hex[:8]}"
            rates[name].append(await way(url, prefix, batch))
            await forget(url, Names(prefix).stream(TOPIC))
    return rates


async def forget(url: str, stream: bytes) -> None:
    """Delete a stream; fail where it is not as long as it should be."""
    server = client.Redis.from_url(url)
    assert await server.delete(stream) == 1
    await server.aclose()


async def relays(url: str, ground: Ground, *, rounds: int, count: int) -> list[float]:
    """Return the rates at which a relay moves messages from PostgreSQL to that Redis."""
    rates = []
    for _ in range(rounds):
        await ground.emptied()
        await ground.add(count)
        await ground.settled_down()
        prefix = f"bench-{uuid4().hex[:8]}"
        broker = RedisBroker(url, prefix=prefix, missing_stream="create")
        await broker.open()
        rates.append(await relayed(ground, count, broker=broker))
        await broker.close()
        await forget(url, Names(prefix).stream(stage.topic()))
    return rates


@contextmanager
def _postgresql() -> Iterator[Ground]:
    server = postgresql.any_server(settings=_DURABLE)
    try:
        server.start()
        with (
            tempfile.TemporaryDirectory() as folder,
            prepared(server.url, "redis", Path(folder)) as ground,
        ):
            yield ground
    finally:
        server.remove()


def report(rates: dict[str, list[float]], relay: list[float]) -> None:
    """Print what was measured, and the ratios."""
    base = statistics.median(rates["bare"])
    for name, found in rates.items():
        middle = statistics.median(found)
        low, high = min(found), max(found)
        print(
            f"  {name:<10}{middle:>9,.0f} /s  {middle / base:5.2f} of bare"
            f"   {low:,.0f} to {high:,.0f}"
        )
    for name in ("one call", "two calls"):
        ratios = [a / b for a, b in zip(rates[name], rates["bare"], strict=True)]
        verdict = "reached" if statistics.median(ratios) >= _GOAL else "MISSED"
        print(f"  goal {_GOAL} of bare, {name}: {statistics.median(ratios):.2f}, {verdict}")
    if relay:
        middle = statistics.median(relay)
        print(f"  relay from PostgreSQL: {middle:,.0f} /s ({min(relay):,.0f} to {max(relay):,.0f})")


@contextmanager
def at(url: str | None, *, disk: bool) -> Iterator[str]:
    """Give the address, or that of a server of our own."""
    if url is not None:
        yield url
        return
    server = any_server(persistent=disk)
    try:
        server.start()
        yield server.url
    finally:
        server.remove()


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("url", nargs="?")
    parser.add_argument("--messages", type=int, default=20_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--disk", action="store_true", help="a server with appendonly")
    parser.add_argument("--relay", action="store_true", help="also a relay from PostgreSQL")
    given = parser.parse_args()
    with at(given.url, disk=given.disk) as url:
        rates = asyncio.run(measured(url, count=given.messages, rounds=given.rounds))
        relay = []
        if given.relay:
            with _postgresql() as ground:
                size = {"rounds": given.rounds, "count": given.messages}
                relay = asyncio.run(relays(url, ground, **size))
    report(rates, relay)


if __name__ == "__main__":
    main()
