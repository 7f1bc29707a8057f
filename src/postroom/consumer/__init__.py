"""The consumer: take, apply, acknowledge."""

from postroom.consumer.consumer import Consumer, Result
from postroom.consumer.context import AsyncContext, Context

__all__ = ["AsyncContext", "Consumer", "Context", "Result"]
