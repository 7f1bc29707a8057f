"""What the tests of the Redis driver do to a server besides what the driver does."""

import asyncio
import socket
from collections.abc import Iterable
from typing import Any
from urllib.parse import urlsplit

from postroom.brokers.redis.wire import command


def do(url: str, *commands: Iterable[str | bytes | int]) -> list[Any]:
    """Send commands, as a program that knows nothing of Postroom; errors are returned."""
    parts = urlsplit(url)
    with socket.create_connection((parts.hostname or "", parts.port or 0), timeout=20) as wire:
        wire.sendall(b"".join(command(*each) for each in commands))
        reader = wire.makefile("rb")
        return [_reply(reader) for _ in commands]


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
