"""What publishing through the NATS driver costs: `python -m bench.nats [URL]`.

Three ways to bring the same bytes with the same headers to the same file stream of one server,
each message confirmed, each way in turn in every round:

- bare: nats-py's `publish_async`, 500 in flight, headers made beforehand as its dicts
- one call: `publish` with 500 messages, one call after the other
- two calls: `publish` with 250 messages, two calls at the same time

and the way back: a consumer's messages received and acknowledged, by nats-py (`fetch` of 100, an
`ack_sync` each, all of a batch at once) and by the driver (prefetch 100).

Without a URL a server is started.
"""

import argparse
import asyncio
import statistics
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from uuid import uuid4

from nats import connect

from postroom.broker import Delivery
from postroom.brokers.nats import NatsBroker
from postroom.brokers.nats.headers import parsed, readable
from postroom.brokers.nats.mapping import packed
from postroom.lab.servers.nats import any_server
from postroom.message import Message, new_id

TOPIC = "shop.order-placed"
WINDOW = 500
_TIMEOUT = timedelta(seconds=30)
_GOAL = 0.7
_FETCH = 100


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


def headers(message: Message, stream: str) -> dict[str, str]:
    """Return what the driver writes for this message, as nats-py takes it."""
    rest = packed(message, stream=stream.encode(), limit=2**20).after.partition(b"\r\n")[2]
    raw = rest[: rest.index(b"\r\n\r\n") + 4]
    return {readable(name): readable(value) for name, value in parsed(raw)}


async def bare(url: str, stream: str, batch: Sequence[Message]) -> float:
    """Publish by `publish_async`."""
    made = [(one.payload, headers(one, stream)) for one in batch]
    client = await connect(url, allow_reconnect=False)
    context = client.jetstream(publish_async_max_pending=WINDOW)
    began = time.perf_counter()
    futures = [await context.publish_async(TOPIC, payload, headers=each) for payload, each in made]
    acks = await asyncio.gather(*futures)
    spent = time.perf_counter() - began
    await client.close()
    assert all(ack.stream == stream and not ack.duplicate for ack in acks)
    return len(batch) / spent


async def one_call(url: str, stream: str, batch: Sequence[Message]) -> float:
    """Publish through the driver, one call after the other."""
    return await _driver(url, stream, [batch], WINDOW)


async def two_calls(url: str, stream: str, batch: Sequence[Message]) -> float:
    """Publish through the driver, two calls of half the size at the same time."""
    half = len(batch) // 2
    return await _driver(url, stream, [batch[:half], batch[half:]], WINDOW // 2)


async def _driver(url: str, stream: str, shares: Sequence[Sequence[Message]], size: int) -> float:
    broker = NatsBroker(url, stream=stream)
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


async def fetched(url: str, stream: str, count: int) -> float:
    """Receive by nats-py."""
    client = await connect(url, allow_reconnect=False)
    subscription = await client.jetstream().pull_subscribe_bind("bare", stream)
    began, done = time.perf_counter(), 0
    while done < count:
        batch = await subscription.fetch(min(_FETCH, count - done), timeout=10)
        await asyncio.gather(*(one.ack_sync(timeout=10) for one in batch))
        done += len(batch)
    spent = time.perf_counter() - began
    await client.close()
    return count / spent


async def received(url: str, stream: str, count: int) -> float:
    """Receive by the driver."""
    broker = NatsBroker(url, stream=stream)
    await broker.open()
    working: set[asyncio.Task[None]] = set()
    began = time.perf_counter()
    async with broker.subscribe([TOPIC], group="driver", prefetch=_FETCH) as box:
        for _ in range(count):
            delivery: Delivery = await anext(box)
            task = asyncio.ensure_future(delivery.ack())
            working.add(task)
            task.add_done_callback(working.discard)
        await asyncio.gather(*working)
        spent = time.perf_counter() - began
    await broker.close()
    return count / spent


Way = Callable[[str, str, Sequence[Message]], Awaitable[float]]
WAYS: dict[str, Way] = {"bare": bare, "one call": one_call, "two calls": two_calls}


async def measure(url: str, *, rounds: int, count: int) -> dict[str, list[float]]:
    """Return the rates of every round, by way."""
    rates: dict[str, list[float]] = {name: [] for name in (*WAYS, "fetch", "receive")}
    for _ in range(rounds):
        stream = f"bench-{uuid4().hex[:8]}"
        broker = NatsBroker(url, stream=stream)
        await broker.open()
        await broker.apply_topology({"bare": [TOPIC], "driver": [TOPIC]})
        for name, way in WAYS.items():
            rates[name].append(await way(url, stream, messages(count)))
        rates["fetch"].append(await fetched(url, stream, count))
        rates["receive"].append(await received(url, stream, count))
        await broker.close()
        client = await connect(url)
        for each in (stream, f"{stream}-dead", f"{stream}-tries"):
            await client.jetstream().delete_stream(each)
        await client.close()
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
    parser = argparse.ArgumentParser(prog="python -m bench.nats")
    parser.add_argument("url", nargs="?", help="a running server; without it one is started")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--count", type=int, default=20_000)
    given = parser.parse_args()
    with _server(given.url) as url:
        rates = asyncio.run(measure(url, rounds=given.rounds, count=given.count))
    print(f"{given.rounds} rounds of {given.count}:")
    for name, found in rates.items():
        base = "fetch" if name in {"fetch", "receive"} else "bare"
        ratio = statistics.median(a / b for a, b in zip(found, rates[base], strict=True))
        missed = "" if ratio >= _GOAL else f"  (goal {_GOAL})"
        print(
            f"  {name:<10} {statistics.median(found):>8.0f}/s  "
            f"{min(found):.0f} to {max(found):.0f}  {ratio:.2f} of {base}{missed}"
        )


if __name__ == "__main__":
    main()
