"""A broker driver for Kafka, with the client library confluent-kafka (librdkafka)."""

from postroom.brokers.kafka.broker import KafkaBroker

__all__ = ["KafkaBroker"]
