"""NATS JetStream: topics are subjects of a stream, groups are durable pull consumers."""

from postroom.brokers.nats.broker import NatsBroker

__all__ = ["NatsBroker"]
