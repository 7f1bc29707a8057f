"""What the tests of the RabbitMQ driver do to a server besides what the driver does."""

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any
from urllib.parse import urlsplit

from pamqp import commands
from pamqp.base import Frame

from postroom.brokers.rabbitmq import RabbitmqBroker, frames
from postroom.brokers.rabbitmq.address import parse
from postroom.brokers.rabbitmq.channel import Arrived, Channel, GetOk
from postroom.brokers.rabbitmq.connection import Connection, open_connection
from postroom.errors import BrokerError
from postroom.message import Message

TIMEOUT = timedelta(seconds=10)
TOPIC = "shop.order-placed"


def message(name: str, *, topic: str = TOPIC, key: str | None = None, **more: Any) -> Message:
    """Return a message of this id."""
    return Message(id=name, type=TOPIC, topic=topic, payload=b"{}", key=key, **more)


def at_port(url: str, port: int, *, user: str | None = None) -> str:
    """Return the address with another port, and with another user and password."""
    parts = urlsplit(url)
    named = user or f"{parts.username}:{parts.password}"
    return f"{parts.scheme}://{named}@127.0.0.1:{port}{parts.path}"


async def outcome(
    broker: RabbitmqBroker, *messages: Message, timeout: timedelta = TIMEOUT
) -> list[BrokerError | None]:
    """Publish, and return what the driver says of each."""
    return list(await broker.publish(messages, timeout=timeout))


@asynccontextmanager
async def raw(url: str) -> AsyncIterator[Channel]:
    """Give a channel on a connection of its own."""
    connection: Connection = await open_connection(
        parse(url), tls=None, heartbeat=60, external=False, name="test"
    )
    try:
        yield await connection.channel()
    finally:
        await connection.close()


async def do(url: str, *methods: Frame) -> list[Frame]:
    """Send methods, one after the other; return the answers."""
    async with raw(url) as channel:
        return [await channel.begin(method) for method in methods]


async def get(url: str, queue: str) -> Arrived | None:
    """Take the next message out of a queue, whatever it is."""
    [answer] = await do(url, commands.Basic.Get(queue=queue, no_ack=True))
    return answer.content if isinstance(answer, GetOk) else None


async def count(url: str, queue: str) -> int:
    """Return how many messages are ready in a queue."""
    [answer] = await do(url, commands.Queue.Declare(queue=queue, passive=True))
    assert isinstance(answer, commands.Queue.DeclareOk)
    return answer.message_count or 0


async def put(
    url: str,
    exchange: str,
    routing_key: str,
    body: bytes,
    *,
    fields: Mapping[int, bytes] | None = None,
    headers: frames.Table | None = None,
) -> None:
    """Publish as a program that knows nothing of Postroom."""
    flags, packed = frames.Properties(fields=fields or {}, headers=headers or {}).packed()
    async with raw(url) as channel:
        await channel.begin(commands.Confirm.Select())
        channel.write(
            frames.publish_method(channel.number, exchange, routing_key, mandatory=False)
            + frames.content_frames(channel.number, packed, flags, body, 131_072)
        )
        # The answer to anything later says that it was taken.
        await channel.begin(commands.Basic.Qos(prefetch_count=1))


async def bound_queue(
    url: str, exchange: str, *topics: str, arguments: Mapping[str, Any] | None = None
) -> str:
    """Make a queue of somebody else's, bound to these topics."""
    queue = f"{exchange}.theirs"
    await do(
        url,
        commands.Exchange.Declare(exchange=exchange, exchange_type="direct", durable=True),
        commands.Queue.Declare(queue=queue, durable=True, arguments=dict(arguments or {})),
        *(
            commands.Queue.Bind(queue=queue, exchange=exchange, routing_key=topic)
            for topic in topics
        ),
    )
    return queue


def kinds(results: Sequence[BrokerError | None]) -> list[type[BrokerError] | None]:
    """Return the classes of the results."""
    return [None if result is None else type(result) for result in results]
