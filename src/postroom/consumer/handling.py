"""Handle one delivery to its end, and tell the broker."""

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Coroutine
from enum import StrEnum
from typing import Any, assert_never

from postroom import events
from postroom._clock import Clock
from postroom.broker import Delivery
from postroom.connections import outage
from postroom.consumer.applying import Applying, NotBegunError
from postroom.consumer.conflicts import persistently
from postroom.consumer.excuses import Excuses
from postroom.consumer.handlers import Handlers
from postroom.errors import (
    BrokerUnavailable,
    DeliveryLost,
    PostroomError,
    SettingsError,
    Undecodable,
    printable,
)
from postroom.events import Observers
from postroom.outcome import Dead, Retry
from postroom.retry import RetryPolicy

_REMEMBERED = 10_000


class Result(StrEnum):
    """What became of one delivery."""

    DONE = "done"
    """Effect and inbox row are committed."""
    DUPLICATE = "duplicate"
    """The effect was there already."""
    FAILED = "failed"
    """Rolled back; the broker delivers it again."""
    DEAD = "dead"
    """In the dead letters of its group, with the reason."""
    RETURNED = "returned"
    """Given back uncounted: the consumer's own database cannot be used."""


class Handling:
    """Turns a delivery into an effect, a retry or a dead letter."""

    def __init__(
        self,
        consumer: str,
        handlers: Handlers,
        *,
        applying: Callable[[], Applying],
        retry: RetryPolicy,
        observers: Observers,
        clock: Clock,
        untold: Callable[[str], None],
    ) -> None:
        """Handle for that consumer.

        `applying` gives the way in which handlers run now; `untold` is called, with the reason,
        where the broker could not be told.
        """
        self._consumer = consumer
        self._handlers = handlers
        self._applying = applying
        self._retry = retry
        self._observers = observers
        self._clock = clock
        self._untold = untold
        self._excuses = Excuses()
        self._counted: OrderedDict[str, int] = OrderedDict()

    async def handle(self, delivery: Delivery) -> tuple[Result, str]:
        """Handle the delivery; return what became of it, and why."""
        message = delivery.message
        began = self._clock.elapsed()
        attempt = self._attempt(delivery)
        try:
            handler, event = self._handlers.of(message)
            first = await persistently(
                lambda: self._applying().apply(handler, event, message, attempt), self._clock
            )
        except (SettingsError, KeyboardInterrupt):
            raise
        except BaseException as error:
            if _is_cancelled():
                raise
            return await self._failed(delivery, error, attempt)
        self._counted.pop(message.id, None)
        self._excuses.committed(message.id)
        if not first:
            self._observers.emit(events.Duplicate(consumer=self._consumer, message=message))
        else:
            seconds = self._clock.elapsed() - began
            self._observers.emit(
                events.Committed(consumer=self._consumer, message=message, seconds=seconds)
            )
        await self._acknowledge(delivery)
        return (Result.DONE if first else Result.DUPLICATE), ""

    async def _acknowledge(self, delivery: Delivery) -> None:
        try:
            await delivery.ack()
        except (DeliveryLost, BrokerUnavailable) as error:
            self._not_told(delivery, error)
        else:
            self._observers.emit(
                events.Acknowledged(consumer=self._consumer, message=delivery.message)
            )

    async def _failed(
        self, delivery: Delivery, error: BaseException, attempt: int
    ) -> tuple[Result, str]:
        message = delivery.message
        away = _why_away(error)
        # A handler that has not run cannot have provoked what looks like an outage.
        innocent = isinstance(error, NotBegunError) and outage(error) is not None
        if isinstance(error, NotBegunError) and error.__cause__ is not None:
            error = error.__cause__
        if away is not None and (innocent or self._excuses.excuse(message.id)):
            await self._tell(delivery, delivery.release())
            return Result.RETURNED, printable(away)
        reason = reason_of(error)
        if isinstance(error, Undecodable):
            return await self._give_up(delivery, reason, error), reason
        decision = self._retry.decide(attempt, reason)
        match decision:
            case Dead():
                return await self._give_up(delivery, reason, error), reason
            case Retry(delay=delay):
                self._count(delivery, attempt)
                self._observers.emit(
                    events.HandlerFailed(
                        consumer=self._consumer,
                        message=message,
                        error=reason,
                        attempt=attempt,
                        delay=delay,
                        exception=error,
                    )
                )
                await self._tell(delivery, delivery.retry(delay, reason))
                return Result.FAILED, reason
            case _:
                assert_never(decision)

    async def _give_up(self, delivery: Delivery, reason: str, cause: BaseException) -> Result:
        """Dead-letter it; where that fails it is not acknowledged but comes again."""
        message = delivery.message
        try:
            await delivery.reject(reason)
        except DeliveryLost as error:
            self._not_told(delivery, error)
            return Result.FAILED
        except Exception as error:
            self._observers.emit(
                events.DeadLetterFailed(
                    consumer=self._consumer, message=message, error=reason_of(error)
                )
            )
            delay = self._retry.backoff.delay(self._retry.max_attempts)
            await self._tell(delivery, delivery.retry(delay, reason))
            return Result.FAILED
        self._counted.pop(message.id, None)
        self._excuses.forget(message.id)
        self._observers.emit(
            events.DeadLettered(
                consumer=self._consumer, message=message, error=reason, exception=cause
            )
        )
        return Result.DEAD

    async def _tell(self, delivery: Delivery, telling: Coroutine[Any, Any, None]) -> None:
        try:
            await telling
        except (DeliveryLost, BrokerUnavailable) as error:
            self._not_told(delivery, error)

    def _not_told(self, delivery: Delivery, error: PostroomError) -> None:
        if isinstance(error, BrokerUnavailable):
            # The broker believes it in our hands, and its key waits, until we leave.
            self._untold(error.reason)
        self._observers.emit(
            events.AcknowledgeFailed(
                consumer=self._consumer, message=delivery.message, error=error.reason
            )
        )

    def _attempt(self, delivery: Delivery) -> int:
        """Count by the broker, or in memory where the broker does not count."""
        if delivery.attempt is not None:
            return delivery.attempt
        return self._counted.get(delivery.message.id, 0) + 1

    def _count(self, delivery: Delivery, attempt: int) -> None:
        if delivery.attempt is None:
            self._counted[delivery.message.id] = attempt
            while len(self._counted) > _REMEMBERED:
                self._counted.popitem(last=False)


def _why_away(error: BaseException) -> str | None:
    """Return why the database cannot be used, or None where the handler has failed."""
    if isinstance(error, NotBegunError) and error.__cause__ is not None:
        return outage(error.__cause__) or reason_of(error.__cause__)
    return outage(error)


def reason_of(error: BaseException) -> str:
    """Return what the error says, whatever it is made of."""
    if isinstance(error, PostroomError):
        return error.reason
    try:
        said = str(error)
    except Exception:
        said = "(its text cannot be had)"
    return printable(f"{type(error).__name__}: {said}")


def _is_cancelled() -> bool:
    """Whether it is this task that is cancelled, and not something that the handler awaited."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
