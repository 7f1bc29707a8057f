"""How often a transaction is run again that another one got in the way of."""

from collections.abc import Awaitable, Callable

import pytest

from postroom.consumer.conflicts import persistently
from postroom.testing.clock import ManualClock


class LockNotAvailableError(Exception):
    """What a client library raises when a lock was not given in time."""

    sqlstate = "55P03"


class HurriedClock(ManualClock):
    """Whoever sleeps by it finds that the time has passed."""

    async def sleep(self, seconds: float) -> None:
        """Let the time pass at once."""
        self.advance(seconds)


def failing(
    clock: ManualClock, seconds: float, tries: list[float]
) -> Callable[[], Awaitable[bool]]:
    async def work() -> bool:
        tries.append(clock.elapsed())
        clock.advance(seconds)
        raise LockNotAvailableError

    return work


@pytest.mark.parametrize(("seconds", "times"), [(0.0, 8), (1.5, 2), (60.0, 1)])
async def test_it_is_tried_a_few_times_but_not_for_long(seconds: float, times: int) -> None:
    """What is refused at once may pass soon; one lock time-out after the other is an outage."""
    clock, tries = HurriedClock(), list[float]()

    with pytest.raises(LockNotAvailableError):
        await persistently(failing(clock, seconds, tries), clock)

    assert len(tries) == times
