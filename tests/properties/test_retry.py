"""Backoff and retry policy: pure decisions, for all values that their constructors take."""

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from postroom.outcome import Dead, Retry
from postroom.retry import Backoff, RetryPolicy

seconds = st.floats(min_value=0.001, max_value=10_000)
attempts = st.integers(min_value=1, max_value=10_000)
chances = st.floats(min_value=0, max_value=1, exclude_max=True)


@st.composite
def backoffs(draw: st.DrawFn) -> Backoff:
    initial = draw(seconds)
    return Backoff(
        initial=timedelta(seconds=initial),
        factor=draw(st.floats(min_value=1, max_value=1e9)),
        maximum=timedelta(seconds=initial + draw(seconds)),
        jitter=draw(st.floats(min_value=0, max_value=0.999)),
    )


policies = st.builds(RetryPolicy, max_attempts=st.integers(1, 1000), backoff=backoffs())


@given(backoffs(), attempts, chances)
def test_a_delay_is_never_zero_and_never_above_the_maximum(
    backoff: Backoff, attempt: int, chance: float
) -> None:
    delay = backoff.delay(attempt, lambda: chance)

    assert timedelta(0) < delay <= backoff.maximum


@given(backoffs(), attempts, attempts)
def test_without_chance_delays_never_shrink(backoff: Backoff, first: int, second: int) -> None:
    earlier, later = sorted((first, second))

    assert backoff.delay(earlier, _never) <= backoff.delay(later, _never)


@given(backoffs(), attempts, chances)
def test_jitter_takes_off_no_more_than_its_share(
    backoff: Backoff, attempt: int, chance: float
) -> None:
    whole = backoff.delay(attempt, _never)

    delay = backoff.delay(attempt, lambda: chance)

    least = whole * (1 - backoff.jitter) - timedelta(microseconds=2)
    assert least <= delay <= whole


@given(backoffs())
def test_the_first_delay_is_the_initial_one(backoff: Backoff) -> None:
    assert backoff.delay(1, _never) == backoff.initial
    assert backoff.delay(0, _never) == backoff.initial


@given(backoffs())
def test_a_growing_delay_reaches_its_maximum(backoff: Backoff) -> None:
    grows_by_a_tenth = backoff.factor >= 1.5

    last = backoff.delay(10_000, _never)

    assert last == backoff.maximum or not grows_by_a_tenth


@given(policies, attempts, st.text(), st.booleans(), chances)
def test_a_policy_gives_up_exactly_when_the_attempts_are_used_up(
    policy: RetryPolicy, attempt: int, error: str, blocks: bool, chance: float
) -> None:
    decision = policy.decide(attempt, error, blocks=blocks, chance=lambda: chance)

    if attempt >= policy.max_attempts:
        assert decision == Dead(error=error, blocks=blocks)
    else:
        delay = policy.backoff.delay(attempt, lambda: chance)
        assert decision == Retry(delay=delay, error=error)


@pytest.mark.parametrize(
    "make",
    [
        lambda: Backoff(initial=timedelta(0)),
        lambda: Backoff(initial=timedelta(seconds=2), maximum=timedelta(seconds=1)),
        lambda: Backoff(factor=0.5),
        lambda: Backoff(jitter=1),
        lambda: Backoff(jitter=-0.1),
        lambda: RetryPolicy(max_attempts=0),
    ],
)
def test_values_that_would_never_wait_or_never_try_are_refused(make: object) -> None:
    assert callable(make)
    with pytest.raises(ValueError, match=r"backoff needs|max_attempts must"):
        make()


def _never() -> float:
    return 0.0
