"""Time, so that tests can bring their own."""

import asyncio
import time
from datetime import UTC, datetime, timedelta
from typing import Protocol


class Clock(Protocol):
    """Tells the time and waits."""

    def now(self) -> datetime:
        """Return the wall-clock time, aware and in UTC."""
        ...

    def elapsed(self) -> float:
        """Return seconds since some fixed point; never steps back."""
        ...

    async def sleep(self, seconds: float) -> None:
        """Wait for that many seconds of `elapsed`."""
        ...


class SystemClock:
    """The machine's own clocks."""

    def now(self) -> datetime:
        """Return the wall-clock time, aware and in UTC."""
        return datetime.now(UTC)

    def elapsed(self) -> float:
        """Return seconds since boot, time spent suspended included.

        A relay judges its own lease by this clock: `CLOCK_MONOTONIC` stands still while a
        laptop or a virtual machine sleeps, and the owner would wake up believing it still owns.
        """
        return time.clock_gettime(_BOOT_CLOCK)

    async def sleep(self, seconds: float) -> None:
        """Wait for that many seconds."""
        await asyncio.sleep(seconds)


_BOOT_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


LONGEST = timedelta(days=36_500)
"""No length of time that can be set is longer: added to now it must still be a moment."""

LONGEST_PATIENCE = timedelta(days=1)
"""The longest time to wait for a lock; SQLite counts milliseconds in 32 bits."""


def check_span(
    name: str, span: timedelta, *, least: timedelta = timedelta(0), most: timedelta = LONGEST
) -> None:
    """Raise ValueError where a length of time could not work, because it is absurd."""
    if not least <= span <= most:
        raise ValueError(f"{name} must be from {_told(least)} to {_told(most)}, not {_told(span)}")


def _told(span: timedelta) -> str:
    return f"{span.days} days" if span.days else f"{span.total_seconds():g} s"


def to_micros(moment: datetime) -> int:
    """Return the moment as microseconds since 1970, the form in which SQL keeps it."""
    if moment.tzinfo is None:
        raise ValueError("a datetime without a time zone is ambiguous; use datetime.now(UTC)")
    delta = moment - _EPOCH
    return (delta.days * 86_400 + delta.seconds) * 1_000_000 + delta.microseconds


def span_micros(span: timedelta) -> int:
    """Return the length of time in whole microseconds."""
    return span // _MICROSECOND


def from_micros(micros: int) -> datetime:
    """Return the moment that `to_micros` made this number from."""
    return _EPOCH + timedelta(microseconds=micros)


def nearest_moment(micros: float) -> datetime:
    """Return the moment that this number stands for, or the nearest that a datetime can tell.

    For numbers that others wrote: one in nanoseconds is a year that no datetime has.
    """
    return from_micros(min(max(int(micros), _FIRST), _LAST))


_MICROSECOND = timedelta(microseconds=1)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_FIRST = to_micros(datetime.min.replace(tzinfo=UTC))
_LAST = to_micros(datetime.max.replace(tzinfo=UTC))
