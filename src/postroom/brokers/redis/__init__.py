"""Redis and Valkey: topics are streams, groups are consumer groups."""

from postroom.brokers.redis.broker import RedisBroker

__all__ = ["RedisBroker"]
