"""The consumer: take, apply, acknowledge."""

from postroom.consumer.consumer import Consumer
from postroom.consumer.context import AsyncContext, Context
from postroom.consumer.handling import Result

__all__ = ["AsyncContext", "Consumer", "Context", "Result"]
