"""A broker in this process's memory, for tests."""

from postroom.brokers.memory.broker import MemoryBroker

__all__ = ["MemoryBroker"]
