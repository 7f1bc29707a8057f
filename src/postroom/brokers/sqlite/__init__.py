"""The embedded broker: durable topics and consumer groups in one SQLite file."""

from postroom.brokers.sqlite.broker import EmbeddedBroker

__all__ = ["EmbeddedBroker"]
