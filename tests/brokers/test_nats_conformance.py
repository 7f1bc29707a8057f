"""The NATS driver keeps the contract."""

from datetime import timedelta
from pathlib import Path

import pytest

from postroom.broker import Broker
from postroom.brokers.nats import NatsBroker
from postroom.testing.conformance.broker_suite import BrokerSuite
from tests.nats import Ground


class TestNats(BrokerSuite):
    """With a stream of its own for every test."""

    @pytest.fixture(autouse=True)
    def _ground(self, jetstream: Ground) -> None:
        self.ground = jetstream

    def make_broker(self, directory: Path) -> Broker:
        """Return another client of the same server."""
        del directory
        return NatsBroker(
            self.ground.url,
            stream=self.ground.stream,
            declare=True,
            ack_wait=timedelta(seconds=1),
            max_message_bytes=100_000,
        )

    async def sever(self, broker: Broker) -> None:
        """Say no more of what its consumers have in hand."""
        assert isinstance(broker, NatsBroker)
        for subscription in broker._subscriptions:
            for task in subscription._tasks:
                task.cancel()


del BrokerSuite  # its tests run in the class above
