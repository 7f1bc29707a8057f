"""NATS JetStream, a file stream: nats-py's `publish_async` and `fetch`."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

from nats import connect

from bench.brokers.course import TOPIC, WINDOW, Course, Stretch, serving
from bench.brokers.publish import FETCH, GROUP
from postroom.brokers.nats import NatsBroker
from postroom.brokers.nats.headers import parsed, readable
from postroom.brokers.nats.mapping import packed
from postroom.lab.servers.nats import any_server
from postroom.message import Message


def headers(message: Message, stream: str) -> dict[str, str]:
    """Return what the driver writes for this message, as nats-py takes it."""
    rest = packed(message, stream=stream.encode(), limit=2**20).after.partition(b"\r\n")[2]
    raw = rest[: rest.index(b"\r\n\r\n") + 4]
    return {readable(name): readable(value) for name, value in parsed(raw)}


async def bare(stretch: Stretch) -> float:
    """Publish with headers made beforehand, 500 in flight."""
    batch = [(one.payload, headers(one, stretch.name)) for one in stretch.batch]
    client = await connect(stretch.url, allow_reconnect=False)
    context = client.jetstream(publish_async_max_pending=WINDOW)
    began = time.perf_counter()
    futures = [await context.publish_async(TOPIC, payload, headers=each) for payload, each in batch]
    acks = await asyncio.gather(*futures)
    spent = time.perf_counter() - began
    await client.close()
    assert all(ack.stream == stretch.name and not ack.duplicate for ack in acks)
    return len(batch) / spent


async def fetched(stretch: Stretch) -> float:
    """Receive by `fetch` of 100, an `ack_sync` each, all of a batch at once."""
    client = await connect(stretch.url, allow_reconnect=False)
    subscription = await client.jetstream().pull_subscribe_bind(GROUP, stretch.name)
    began, left = time.perf_counter(), len(stretch.batch)
    while left:
        batch = await subscription.fetch(min(FETCH, left), timeout=10)
        await asyncio.gather(*(one.ack_sync(timeout=10) for one in batch))
        left -= len(batch)
    spent = time.perf_counter() - began
    await client.close()
    return len(stretch.batch) / spent


@asynccontextmanager
async def made(url: str, name: str) -> AsyncIterator[None]:
    """Make a stream with a consumer."""
    broker = NatsBroker(url, stream=name)
    await broker.open()
    await broker.apply_topology({GROUP: [TOPIC]})
    await broker.close()
    try:
        yield
    finally:
        client = await connect(url)
        for each in (name, f"{name}-dead", f"{name}-tries"):
            await client.jetstream().delete_stream(each)
        await client.close()


async def version(url: str) -> str:
    """Return what the server says of itself."""
    client = await connect(url)
    try:
        return f"NATS {client.connected_server_version}, file storage"
    finally:
        await client.close()


COURSE = Course(
    title="NATS JetStream",
    serve=partial(serving, server=any_server),
    version=version,
    made=made,
    broker=lambda url, name: NatsBroker(url, stream=name),
    bare={"nats-py": bare},
    goal=0.7,
    received=fetched,
)
