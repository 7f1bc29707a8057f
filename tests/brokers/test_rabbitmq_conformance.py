"""The RabbitMQ driver keeps the contract, with classic and with quorum queues."""

from pathlib import Path

import pytest

from postroom.broker import Broker
from postroom.brokers.rabbitmq import RabbitmqBroker
from postroom.brokers.rabbitmq.topology import QueueType
from postroom.testing.conformance.broker_suite import BrokerSuite
from tests.rabbitmq import Ground


class RabbitmqSuite(BrokerSuite):
    """With an exchange of its own for every test."""

    queue_type: QueueType
    single_active_consumer = True

    @pytest.fixture(autouse=True)
    def _ground(self, rabbit: Ground) -> None:
        self.ground = rabbit

    def make_broker(self, directory: Path) -> Broker:
        """Return another client of the same server."""
        return RabbitmqBroker(
            self.ground.url,
            exchange=f"test-{directory.name}-{self.queue_type}",
            queue_type=self.queue_type,
            single_active_consumer=self.single_active_consumer,
            declare=True,
            max_message_bytes=100_000,
        )

    async def sever(self, broker: Broker) -> None:
        """Lose the connection of its consumers."""
        assert isinstance(broker, RabbitmqBroker)
        connection = await broker._consuming().connection()
        connection.abort("cut by the test")


class TestClassicQueues(RabbitmqSuite):
    """On one node."""

    queue_type: QueueType = "classic"


class TestQuorumQueues(RabbitmqSuite):
    """Replicated."""

    queue_type: QueueType = "quorum"


class TestSharedQueues(RabbitmqSuite):
    """Every consumer of a group receives, and no key keeps its order."""

    queue_type: QueueType = "classic"
    single_active_consumer = False


del RabbitmqSuite, BrokerSuite  # their tests run in the classes above
