"""What the tests of a broker act on, and how a broker is given to them."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager
from datetime import timedelta
from pathlib import Path
from uuid import uuid4

import pytest
import pytest_asyncio

from postroom.broker import Broker, BrokerFeatures, Delivery, Keeper
from postroom.errors import BrokerError
from postroom.message import Message

PATIENCE = 15.0
"""Seconds after which the suite gives up waiting for something that must come."""
TIMEOUT = timedelta(seconds=10)
SOON = timedelta(milliseconds=50)

Box = AsyncIterator[Delivery]


class BrokerHooks:
    """What a suite needs to know of the broker that it tests."""

    pytestmark = pytest.mark.asyncio

    def make_broker(self, directory: Path) -> Broker:
        """Return a client of the server under test, not open yet.

        `directory` is empty at the start of every test. Called again in the same test it must
        return another client of the same server; a broker that lives in its own process's
        memory may return the same object.
        """
        raise NotImplementedError

    async def sever(self, broker: Broker) -> None:
        """Make the consumers of this client look dead, as if their process were frozen.

        What they have out must come to others within some seconds. The tests have as many
        messages out as their prefetch allows.
        """
        raise NotImplementedError

    async def dead_letters(self, broker: Broker, group: str) -> Sequence[tuple[Message, str]]:
        """Return the dead letters of a group with their reasons, the oldest first."""
        assert isinstance(broker, Keeper), "define the hook dead_letters"
        letters = await broker.dead_letters(group)
        return [(letter.message, letter.reason) for letter in letters]

    @pytest_asyncio.fixture
    async def stage(self, tmp_path: Path) -> AsyncIterator["Stage"]:
        """An open broker, and more clients when asked; all are closed after the test."""
        stage = Stage(self, tmp_path)
        await stage.start()
        yield stage
        await stage.stop()


class Stage:
    """A broker, and short words for what the tests do with it."""

    def __init__(self, hooks: BrokerHooks, directory: Path) -> None:
        """Make the first client."""
        self.hooks = hooks
        self.directory = directory
        self.broker = hooks.make_broker(directory)
        self.topic = f"orders-{uuid4().hex}"
        """A topic of this test alone."""
        self._clients = [self.broker]

    @property
    def features(self) -> BrokerFeatures:
        """What the broker can do."""
        return self.broker.features

    async def start(self) -> None:
        """Connect."""
        await self.broker.open()

    async def stop(self) -> None:
        """Disconnect all clients."""
        for client in self._clients:
            await client.close()

    async def another(self) -> Broker:
        """Return one more client of the same server, open."""
        client = self.hooks.make_broker(self.directory)
        self._clients.append(client)
        await client.open()
        return client

    async def restart(self) -> None:
        """Close every client and continue with a new one."""
        await self.stop()
        self.broker = await self.another()

    def message(self, name: str, *, key: str | None = None, topic: str | None = None) -> Message:
        """Return a message of this name."""
        return Message(
            id=name, type="shop.order-placed", payload=b"{}", key=key, topic=topic or self.topic
        )

    async def publish(self, *messages: Message, by: Broker | None = None) -> None:
        """Publish, and insist on every confirm."""
        results = await (by or self.broker).publish(messages, timeout=TIMEOUT)
        assert list(results) == [None] * len(messages)

    async def attempt(self, *messages: Message) -> list[type[BrokerError] | None]:
        """Publish; return the kinds of the results."""
        results = await self.broker.publish(messages, timeout=TIMEOUT)
        return [None if result is None else type(result) for result in results]

    def subscribe(
        self,
        group: str = "billing",
        *,
        topics: Sequence[str] | None = None,
        prefetch: int = 10,
        by: Broker | None = None,
    ) -> AbstractAsyncContextManager[Box]:
        """Subscribe to the topic of this test."""
        client = by or self.broker
        return client.subscribe(topics or [self.topic], group=group, prefetch=prefetch)

    async def found(self, *groups: str, topics: Sequence[str] | None = None) -> None:
        """Make the groups known to the broker, so that they miss nothing from now on."""
        for group in groups or ("billing",):
            async with self.subscribe(group, topics=topics):
                pass


async def receive(box: Box) -> Delivery:
    """Return the next delivery; fail when none comes."""
    async with asyncio.timeout(PATIENCE):
        return await anext(box)


async def drain(box: Box, count: int) -> list[str]:
    """Receive and acknowledge that many; return their ids."""
    names: list[str] = []
    for _ in range(count):
        delivery = await receive(box)
        names.append(delivery.message.id)
        await delivery.ack()
    return names
