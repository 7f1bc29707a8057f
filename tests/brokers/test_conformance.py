"""Every broker keeps the contract."""

from collections.abc import Sequence
from datetime import timedelta
from functools import cached_property
from pathlib import Path

from postroom.broker import Broker
from postroom.brokers.memory import MemoryBroker
from postroom.brokers.sqlite import EmbeddedBroker
from postroom.message import Message
from postroom.testing.conformance.broker_suite import BrokerSuite
from postroom.testing.scripted import ScriptedBroker


class TestMemoryBroker(BrokerSuite):
    """One object, as all clients."""

    @cached_property
    def broker(self) -> MemoryBroker:
        """The object of this test."""
        return MemoryBroker(max_message_bytes=100_000)

    def make_broker(self, directory: Path) -> Broker:
        """Return the one object."""
        del directory
        return self.broker

    async def sever(self, broker: Broker) -> None:
        """Lose them."""
        del broker
        self.broker.lose_consumers()


class TestScriptedBroker(BrokerSuite):
    """Without rules it is an ordinary broker."""

    @cached_property
    def broker(self) -> ScriptedBroker:
        """The object of this test."""
        return ScriptedBroker(max_message_bytes=100_000)

    def make_broker(self, directory: Path) -> Broker:
        """Return the one object."""
        del directory
        return self.broker

    async def sever(self, broker: Broker) -> None:
        """Lose them."""
        del broker
        self.broker.lose_consumers()

    async def dead_letters(self, broker: Broker, group: str) -> Sequence[tuple[Message, str]]:
        """Ask the memory broker inside."""
        del broker
        letters = await self.broker.memory.dead_letters(group)
        return [(letter.message, letter.reason) for letter in letters]


class TestEmbeddedBroker(BrokerSuite):
    """On a file of its own for every test."""

    def make_broker(self, directory: Path) -> Broker:
        """Return another client of the same file."""
        return EmbeddedBroker(
            directory / "broker.db", lease=timedelta(seconds=0.4), max_message_bytes=100_000
        )

    async def sever(self, broker: Broker) -> None:
        """Stop renewing."""
        assert isinstance(broker, EmbeddedBroker)
        broker._subscriptions = ()
