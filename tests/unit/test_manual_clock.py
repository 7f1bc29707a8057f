"""The clock that tests turn by hand."""

import asyncio
from datetime import datetime, timedelta

import pytest

from postroom.testing.clock import ManualClock


async def test_a_sleeper_wakes_when_its_time_has_come() -> None:
    clock = ManualClock()
    sleeper = asyncio.create_task(clock.sleep(10))
    await asyncio.sleep(0)

    clock.advance(9.5)
    await asyncio.sleep(0)
    early = sleeper.done()
    clock.advance(timedelta(seconds=0.5))
    await sleeper

    assert not early
    assert clock.sleepers == 0


async def test_no_time_to_sleep_only_yields() -> None:
    clock = ManualClock()

    await clock.sleep(0)
    await clock.sleep(-1)

    assert clock.elapsed() == 0


async def test_a_cancelled_sleeper_is_forgotten() -> None:
    clock = ManualClock()
    sleeper = asyncio.create_task(clock.sleep(10))
    await asyncio.sleep(0)
    waiting = clock.sleepers

    sleeper.cancel()
    await asyncio.gather(sleeper, return_exceptions=True)
    clock.advance(10)

    assert (waiting, clock.sleepers) == (1, 0)


async def test_a_sleeper_cancelled_as_it_wakes_stays_cancelled() -> None:
    clock = ManualClock()
    sleeper = asyncio.create_task(clock.sleep(10))
    await asyncio.sleep(0)

    clock.advance(10)
    sleeper.cancel()
    await asyncio.gather(sleeper, return_exceptions=True)

    assert sleeper.cancelled()


def test_steps_add_up_exactly() -> None:
    clock = ManualClock()
    start = clock.now()

    for _ in range(10):
        clock.advance(0.1)

    assert clock.elapsed() == 1
    assert clock.now() - start == timedelta(seconds=1)


def test_only_the_wall_clock_can_be_set_back() -> None:
    clock = ManualClock()
    start = clock.now()
    clock.advance(60)

    clock.set_back(timedelta(hours=1))
    clock.set_back(1)

    assert clock.elapsed() == 60
    assert clock.now() == start + timedelta(seconds=60 - 3_601)
    with pytest.raises(ValueError, match="set_back"):
        clock.advance(-1)


def test_a_start_needs_a_time_zone() -> None:
    with pytest.raises(ValueError, match="time zone"):
        ManualClock(datetime(2030, 1, 1))  # noqa: DTZ001
