"""Redis Streams: redis-py's pipeline, and commands that were made beforehand."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from urllib.parse import urlsplit

import redis.asyncio as client

from bench.brokers.course import TOPIC, Course, Stretch, serving
from postroom.brokers.redis import RedisBroker, mapping
from postroom.brokers.redis.names import Names
from postroom.brokers.redis.wire import bulk
from postroom.lab.servers.redis import any_server


async def bare(stretch: Stretch) -> float:
    """Publish as redis-py's manual shows it, without a look at the order of keys."""
    stream = Names(stretch.name).stream(TOPIC)
    server = client.Redis.from_url(stretch.url)
    await server.exists(stream)  # connect
    began = time.perf_counter()
    for part in stretch.parts():
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
    return len(stretch.batch) / spent


async def ceiling(stretch: Stretch) -> float:
    """Write commands that were made beforehand, and count the lines that come back."""
    stream = Names(stretch.name).stream(TOPIC)
    parts = []
    for part in stretch.parts():
        made = []
        for message in part:
            count, fields = mapping.packed(message, None)
            made.append(b"*%d\r\n%b%b%b" % (count + 3, bulk(b"XADD"), bulk(stream), bulk(b"*")))
            made.append(fields)
        parts.append((b"".join(made), len(part) * 2))
    place = urlsplit(stretch.url)
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
    return len(stretch.batch) / spent


@asynccontextmanager
async def made(url: str, name: str) -> AsyncIterator[None]:
    """Delete the stream that the first message makes."""
    yield
    server = client.Redis.from_url(url)
    await server.delete(Names(name).stream(TOPIC))
    await server.aclose()


async def version(url: str) -> str:
    """Return what the server says of itself."""
    server = client.Redis.from_url(url)
    said = await server.info()
    await server.aclose()
    return f"Redis {said['redis_version']}, appendonly {'on' if said['aof_enabled'] else 'off'}"


COURSE = Course(
    title="Redis",
    serve=partial(serving, server=any_server),
    version=version,
    made=made,
    broker=lambda url, name: RedisBroker(url, prefix=name, missing_stream="create"),
    bare={"redis-py": bare, "commands made beforehand": ceiling},
    goal=0.7,
)
ON_DISK = replace(
    COURSE,
    title="Redis with appendonly",
    serve=partial(serving, server=partial(any_server, persistent=True)),
)
