"""RabbitMQ: topics are routing keys of an exchange, groups are queues."""

from postroom.brokers.rabbitmq.broker import RabbitmqBroker

__all__ = ["RabbitmqBroker"]
