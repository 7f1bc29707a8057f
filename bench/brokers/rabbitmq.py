"""RabbitMQ, durable, persistent, mandatory and confirmed: frames that were made beforehand."""

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

from pamqp import body, commands, frame, header

from bench.brokers.course import TOPIC, WINDOW, Course, Stretch, serving
from postroom.brokers.rabbitmq import RabbitmqBroker
from postroom.brokers.rabbitmq.address import parse
from postroom.brokers.rabbitmq.channel import Arrived, Channel, Closed
from postroom.brokers.rabbitmq.connection import Connection, open_connection
from postroom.brokers.rabbitmq.packing import Packer
from postroom.lab.servers.rabbitmq import any_server
from postroom.message import Message

_PIECE = 100


class Counter:
    """Counts confirms, and says when there is room for more."""

    def __init__(self) -> None:
        """Begin with none."""
        self.confirmed = 0
        self._more = asyncio.Event()

    async def until(self, count: int) -> None:
        """Return when so many are confirmed."""
        while self.confirmed < count:
            self._more.clear()
            await self._more.wait()

    def acknowledged(self, tag: int, *, multiple: bool, positive: bool) -> None:
        """Count: an acknowledgement of several says the highest."""
        assert positive
        self.confirmed = tag if multiple else self.confirmed + 1
        self._more.set()

    def arrived(self, content: Arrived) -> None:
        """Nothing may be returned."""
        raise AssertionError(content)

    def cancelled(self) -> None:
        """Nothing is consumed."""

    def closed(self, how: Closed) -> None:
        """Nothing may fail."""
        del how
        self._more.set()


async def confirming(url: str, counter: Counter) -> tuple[Connection, Channel]:
    """Return a channel in confirm mode on a connection of its own."""
    connection = await open_connection(
        parse(url), tls=None, heartbeat=60, external=False, name="bench"
    )
    channel = await connection.channel(counter)
    await channel.call(commands.Confirm.Select(), commands.Confirm.SelectOk)
    return connection, channel


async def ceiling(stretch: Stretch) -> float:
    """Write frames that were made beforehand, in pieces, as confirms make room; nothing else."""
    counter = Counter()
    connection, channel = await confirming(stretch.url, counter)
    packer = Packer(stretch.name, 2**20)
    packed = packer.pack(stretch.batch, channel=channel.number, most=connection.frame_max)
    data = [getattr(one, "data", b"") for one in packed]
    pieces = [b"".join(data[at : at + _PIECE]) for at in range(0, len(data), _PIECE)]
    began, written = time.perf_counter(), 0
    for piece in pieces:
        await counter.until(written + _PIECE - WINDOW)
        channel.write(piece)
        written += _PIECE
    await counter.until(len(data))
    spent = time.perf_counter() - began
    await connection.close()
    return len(data) / spent


async def by_pamqp(stretch: Stretch) -> float:
    """Marshal each batch by pamqp, write it at once, and wait for its confirms."""
    counter = Counter()
    connection, channel = await confirming(stretch.url, counter)
    began, done = time.perf_counter(), 0
    for part in stretch.parts():
        channel.write(b"".join([_marshalled(one, stretch.name, channel.number) for one in part]))
        done += len(part)
        await counter.until(done)
    spent = time.perf_counter() - began
    await connection.close()
    return done / spent


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


@asynccontextmanager
async def made(url: str, name: str, *, queue_type: str) -> AsyncIterator[None]:
    """Make an exchange with a durable queue of that type."""
    connection, channel = await confirming(url, Counter())
    arguments: dict[str, Any] = {"x-queue-type": queue_type}
    for method in (
        commands.Exchange.Declare(exchange=name, durable=True),
        commands.Queue.Declare(queue=name, durable=True, arguments=arguments),
        commands.Queue.Bind(queue=name, exchange=name, routing_key=TOPIC),
    ):
        await channel.begin(method)
    try:
        yield
    finally:
        await channel.begin(commands.Queue.Delete(queue=name))
        await channel.begin(commands.Exchange.Delete(exchange=name))
        await connection.close()


@contextmanager
def serve(address: str) -> Iterator[str]:
    """Give the address, without what only the lab needs."""
    with serving(address, any_server) as url:
        yield url.partition("?")[0]


async def version(url: str) -> str:
    """Return what the server says of itself."""
    connection, _ = await confirming(url, Counter())
    await connection.close()
    return f"RabbitMQ {'.'.join(map(str, connection.version))}"


CLASSIC = Course(
    title="RabbitMQ, classic queue",
    serve=serve,
    version=version,
    made=partial(made, queue_type="classic"),
    broker=lambda url, name: RabbitmqBroker(url, exchange=name),
    bare={"frames made beforehand": ceiling, "frames by pamqp": by_pamqp},
    goal=0.75,
)
QUORUM = replace(CLASSIC, title="RabbitMQ, quorum queue", made=partial(made, queue_type="quorum"))
