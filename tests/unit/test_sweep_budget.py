"""Searches of a sweep that walk over dead rows take a fixed share of the time, not more."""

import pytest

from postroom.stores.postgresql.sweeping import SHARE, SMALL_SHARE, Budget, Progress
from postroom.testing.clock import ManualClock


@pytest.mark.parametrize("share", [SHARE, SMALL_SHARE])
def test_a_search_that_took_long_waits_until_its_share_is_earned(share: float) -> None:
    clock = ManualClock()
    budget = Budget(clock.elapsed, share=share)

    with budget:
        clock.advance(0.01)

    clock.advance(0.01 / share - 0.001)
    assert not budget.left
    clock.advance(0.002)
    assert budget.left


def test_a_search_that_took_no_time_may_always_run() -> None:
    clock = ManualClock()
    budget = Budget(clock.elapsed)

    with budget:
        clock.advance(0.001)

    assert budget.left


def test_all_searches_together_stay_within_a_bit_more_than_a_hundredth_of_the_time() -> None:
    clock = ManualClock()
    progress = Progress(keys=Budget(clock.elapsed), below=Budget(clock.elapsed, share=SMALL_SHARE))
    spent = 0.0

    for _ in range(600):  # sweeps, a second apart
        for budget, takes in ((progress.keys, 0.04), (progress.below, 0.04)):
            if budget.left:
                with budget:
                    clock.advance(takes)
                spent += takes
        clock.advance(1)

    assert spent / clock.elapsed() < SHARE + SMALL_SHARE
