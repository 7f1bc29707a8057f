"""What the tests of the NATS driver share."""

from collections.abc import AsyncIterator, Callable, Sequence
from datetime import timedelta
from typing import Any

import pytest

from postroom.brokers.nats import NatsBroker
from postroom.errors import BrokerError
from postroom.message import Message
from tests.nats import Ground

TIMEOUT = timedelta(seconds=10)
SHORT = timedelta(seconds=1)
KIND = "shop.order-placed"

Client = Callable[..., NatsBroker]


def message(name: str, *, topic: str, key: str | None = None, **more: Any) -> Message:
    """Return a message of this id."""
    fields = {"type": KIND, "payload": b"{}", **more}
    return Message(id=name, topic=topic, key=key, **fields)


async def outcome(
    broker: NatsBroker, *messages: Message, timeout: timedelta = TIMEOUT
) -> list[BrokerError | None]:
    """Publish, and return what the driver says of each."""
    return list(await broker.publish(messages, timeout=timeout))


def kinds(results: Sequence[BrokerError | None]) -> list[type[BrokerError] | None]:
    """Return the classes of the results, those of the contract."""
    return [None if result is None else _of_the_contract(type(result)) for result in results]


def _of_the_contract(kind: type[BrokerError]) -> type[BrokerError]:
    return next(one for one in kind.__mro__ if one.__module__ == "postroom.errors")


@pytest.fixture
async def client(jetstream: Ground) -> AsyncIterator[Client]:
    """Makes clients of the test's stream, which are closed after the test."""
    made: list[NatsBroker] = []

    def make(url: str = jetstream.url, **options: Any) -> NatsBroker:
        made.append(NatsBroker(url, stream=jetstream.stream, **options))
        return made[-1]

    yield make
    for broker in made:
        await broker.close()
