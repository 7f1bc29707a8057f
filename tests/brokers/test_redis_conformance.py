"""The Redis driver keeps the contract, on Redis and on Valkey."""

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Literal
from uuid import uuid4

import pytest

from postroom.broker import Broker
from postroom.brokers.redis import RedisBroker
from postroom.testing.conformance.broker_suite import BrokerSuite
from tests.brokers.streams import forget


class RedisSuite(BrokerSuite):
    """With names of its own for every test."""

    missing_stream: Literal["refuse", "create"] = "refuse"
    delete_acked = False
    single_active_consumer = False

    @pytest.fixture(autouse=True)
    def _ground(self, redis_url: str) -> Iterator[None]:
        self.url = redis_url
        self.prefix = f"test-{uuid4().hex[:12]}"
        yield
        forget(redis_url, self.prefix)

    def make_broker(self, directory: Path) -> Broker:
        """Return another client of the same server."""
        del directory
        return RedisBroker(
            self.url,
            prefix=self.prefix,
            declare=True,
            missing_stream=self.missing_stream,
            delete_acked=self.delete_acked,
            single_active_consumer=self.single_active_consumer,
            lease=timedelta(seconds=1),
            max_message_bytes=100_000,
        )

    async def sever(self, broker: Broker) -> None:
        """Freeze its consumers."""
        assert isinstance(broker, RedisBroker)
        for subscription in broker._subscriptions:
            await subscription.freeze()


class TestStreams(RedisSuite):
    """As it comes."""


class TestStreamsMadeByPublishing(RedisSuite):
    """A topic that nobody receives is kept; what is done is deleted."""

    missing_stream: Literal["refuse", "create"] = "create"
    delete_acked = True

    @pytest.fixture
    def redis_url(self, one_redis_url: str) -> str:
        """One server is enough for what differs here."""
        return one_redis_url


class TestSingleActiveConsumer(RedisSuite):
    """One consumer of a group receives, and every key keeps its order."""

    single_active_consumer = True


del RedisSuite, BrokerSuite  # their tests run in the classes above
