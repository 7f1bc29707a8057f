"""The Kafka driver keeps the contract, with one partition and with several."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from postroom.broker import Broker
from postroom.brokers.kafka import KafkaBroker
from postroom.message import Message
from postroom.testing.conformance.broker_sharing import GroupTests
from postroom.testing.conformance.broker_stage import BrokerHooks
from postroom.testing.conformance.broker_suite import BrokerSuite
from tests.brokers.log import SESSION, dead_letters
from tests.kafka import Ground


class Hooks(BrokerHooks):
    """With groups of its own for every test."""

    partitions = 1

    @pytest.fixture(autouse=True)
    def _ground(self, log: Ground) -> None:
        self.ground = log

    def make_broker(self, directory: Path) -> Broker:
        """Return another client of the same server."""
        del directory
        return KafkaBroker(
            self.ground.url,
            group_prefix=self.ground.prefix,
            partitions=self.partitions,
            replication=1,
            declare=True,
            max_message_bytes=100_000,
            session_timeout=SESSION,
        )

    async def sever(self, broker: Broker) -> None:
        """Have its consumers hang: their threads stop to poll."""
        assert isinstance(broker, KafkaBroker)
        for subscription in broker._subscriptions:
            subscription.listener.freeze()

    async def dead_letters(self, broker: Broker, group: str) -> Sequence[tuple[Message, str]]:
        """Read the topic of dead letters."""
        del broker
        return dead_letters(self.ground.servers, f"{self.ground.prefix}{group}.dead")


class TestOnePartition(Hooks, BrokerSuite):
    """Everything in one order."""


class TestSeveralPartitions(Hooks, GroupTests):
    """What groups promise where a topic has several; without a key nothing has an order there."""

    partitions = 5
    """Of these the keys of the suite are in such that two consumers do not share."""


del BrokerSuite, GroupTests  # their tests run in the classes above
