"""What the tests of the Redis driver do to a server besides what the driver does."""

import asyncio
import socket
from collections.abc import Awaitable, Callable, Iterable
from datetime import timedelta
from typing import Any
from urllib.parse import urlsplit

from postroom.brokers.redis import RedisBroker
from postroom.brokers.redis.wire import command
from postroom.errors import BrokerError, BrokerUnavailable
from postroom.message import Message


def do(url: str, *commands: Iterable[str | bytes | int]) -> list[Any]:
    """Send commands, as a program that knows nothing of Postroom; errors are returned."""
    parts = urlsplit(url)
    with socket.create_connection((parts.hostname or "", parts.port or 0), timeout=20) as wire:
        chosen = ("SELECT", parts.path[1:] or "0")
        wire.sendall(b"".join(command(*each) for each in (chosen, *commands)))
        reader = wire.makefile("rb")
        return [_reply(reader) for _ in (chosen, *commands)][1:]


class Refused(Exception):
    """An error of the server."""


def _reply(reader: Any) -> Any:
    line = reader.readline()
    kind, rest = line[:1], line[1:-2]
    match kind:
        case b"+":
            return rest
        case b"-":
            return Refused(rest.decode())
        case b":":
            return int(rest)
        case b"$":
            size = int(rest)
            return None if size < 0 else reader.read(size + 2)[:-2]
        case b"*":
            count = int(rest)
            return None if count < 0 else [_reply(reader) for _ in range(count)]
        case _:
            raise EOFError(line)


async def ask(url: str, *parts: str | bytes | int) -> Any:
    """Send one command; raise what the server refuses."""
    [reply] = await asyncio.to_thread(do, url, parts)
    if isinstance(reply, Refused):
        raise reply
    return reply


def forget(url: str, prefix: str) -> None:
    """Delete every key that begins so."""
    cursor = b"0"
    while True:
        [(cursor, keys)] = do(url, ("SCAN", cursor, "MATCH", f"{prefix}*", "COUNT", 1000))
        if keys:
            do(url, ("DEL", *keys))
        if cursor == b"0":
            return


TOPIC = "shop.order-placed"
TIMEOUT = timedelta(seconds=10)


def message(name: str, *, topic: str = TOPIC, key: str | None = None, **more: Any) -> Message:
    """Return a message of this id."""
    return Message(id=name, type=TOPIC, topic=topic, payload=b"{}", key=key, **more)


def kinds(results: Iterable[BrokerError | None]) -> list[type[BrokerError] | None]:
    """Return the classes of the results."""
    return [None if result is None else type(result) for result in results]


async def outcome(
    broker: RedisBroker, *messages: Message, timeout: timedelta = TIMEOUT
) -> list[BrokerError | None]:
    """Publish, and return what the driver says of each."""
    return list(await broker.publish(messages, timeout=timeout))


async def until(holds: Callable[[], Awaitable[Any]], patience: float = 15) -> Any:
    """Wait until this returns something that is true, and return it."""
    async with asyncio.timeout(patience):
        while not (found := await holds()):
            await asyncio.sleep(0.02)
        return found


async def pings(broker: RedisBroker) -> bool:
    """Say whether a publish has a chance."""
    try:
        await broker.ping()
    except BrokerUnavailable:
        return False
    return True


async def ids(url: str, stream: str) -> list[str]:
    """Return the ids of the messages in a stream."""
    return await _each(url, stream, b"id")


async def payloads(url: str, stream: str) -> list[str]:
    """Return the payloads of the messages in a stream."""
    return await _each(url, stream, b"payload")


async def _each(url: str, stream: str, field: bytes) -> list[str]:
    entries = await ask(url, "XRANGE", stream, "-", "+")
    return [dict(zip(f[::2], f[1::2], strict=True))[field].decode() for _, f in entries]
