"""Streams of a test's own in a NATS server, looked at and removed by nats-py itself."""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

from nats import connect
from nats.aio.client import Client
from nats.js import JetStreamContext
from nats.js.api import RawStreamMsg
from nats.js.errors import NotFoundError


@dataclass(frozen=True, slots=True)
class Ground:
    """Names of one test in a server."""

    url: str
    stream: str
    topic: str
    """A topic that no other test uses."""

    @asynccontextmanager
    async def client(self) -> AsyncIterator[Client]:
        """Give a connection that knows nothing of Postroom."""
        client = await connect(self.url, allow_reconnect=False)
        try:
            yield client
        finally:
            await client.close()

    @asynccontextmanager
    async def jetstream(self) -> AsyncIterator[JetStreamContext]:
        """Give a context of a connection of its own."""
        async with self.client() as client:
            yield client.jetstream()

    async def make(self, *subjects: str, **config: Any) -> None:
        """Make the stream by hand; it takes the topic of the test, or these subjects."""
        async with self.jetstream() as context:
            await context.add_stream(
                name=self.stream, subjects=list(subjects or (self.topic,)), **config
            )

    async def count(self, stream: str | None = None) -> int:
        """Return how many messages are in the stream."""
        async with self.jetstream() as context:
            return (await context.stream_info(stream or self.stream)).state.messages

    async def stored(self, sequence: int, stream: str | None = None) -> RawStreamMsg:
        """Return a message as it lies in the stream."""
        async with self.jetstream() as context:
            return await context.get_msg(stream or self.stream, sequence)

    async def ids(self, stream: str | None = None) -> list[str]:
        """Return the native ids of what is in the stream, in its order."""
        async with self.jetstream() as context:
            name = stream or self.stream
            state = (await context.stream_info(name)).state
            found = [
                await context.get_msg(name, number)
                for number in range(state.first_seq, state.last_seq + 1)
            ]
        return [(one.headers or {}).get("Nats-Msg-Id", "") for one in found]

    async def put(
        self, body: bytes, *, subject: str | None = None, headers: Mapping[str, str] | None = None
    ) -> None:
        """Publish as a program that knows nothing of Postroom."""
        async with self.jetstream() as context:
            await context.publish(subject or self.topic, body, headers=dict(headers or {}) or None)

    async def put_raw(self, headers: bytes, body: bytes) -> None:
        """Publish with headers that no client would write."""
        async with self.client() as client:
            inbox = client.new_inbox()
            answer = await client.subscribe(inbox)
            total = len(headers) + len(body)
            line = f"HPUB {self.topic} {inbox} {len(headers)} {total}\r\n".encode()
            await client._send_command(line + headers + body + b"\r\n")
            await client.flush()
            assert b'"error"' not in (await answer.next_msg(5)).data

    async def remove(self) -> None:
        """Delete every stream that the test has made."""
        async with self.jetstream() as context:
            for name in (self.stream, f"{self.stream}-dead", f"{self.stream}-tries"):
                try:
                    await context.delete_stream(name)
                except NotFoundError:
                    continue


def ground(url: str) -> Ground:
    """Return names of its own."""
    name = f"test-{uuid4().hex[:10]}"
    return Ground(url, name, f"{name}.order-placed")
