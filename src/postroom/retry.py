"""When to try again and when to give up: pure decisions, used by the relay and the consumer."""

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta

from postroom._clock import check_span
from postroom.outcome import Dead, Retry


@dataclass(frozen=True, slots=True, kw_only=True)
class Backoff:
    """A delay that grows by `factor` with every attempt, up to `maximum`."""

    initial: timedelta = timedelta(seconds=1)
    factor: float = 2.0
    maximum: timedelta = timedelta(minutes=5)
    jitter: float = 0.2
    """Share of the delay that is random, so that failures of one instant do not return as one."""

    def __post_init__(self) -> None:
        """Refuse values that would never wait or never end."""
        if self.initial <= timedelta(0) or self.maximum < self.initial:
            raise ValueError("backoff needs 0 < initial <= maximum")
        check_span("backoff.maximum", self.maximum)
        if self.factor < 1 or not 0 <= self.jitter < 1:
            raise ValueError("backoff needs factor >= 1 and 0 <= jitter < 1")

    def delay(self, attempts: int, chance: Callable[[], float] = random.random) -> timedelta:
        """Return how long to wait after that many attempts (1 or more).

        `chance` gives a number from 0 up to, not including, 1.
        """
        ceiling = self.maximum.total_seconds()
        steps = min(max(attempts, 1) - 1, 64)
        try:
            seconds = min(self.initial.total_seconds() * self.factor**steps, ceiling)
        except OverflowError:
            seconds = ceiling
        return timedelta(seconds=seconds * (1 - self.jitter * chance()))


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """How often a refused message is tried, and how long apart."""

    max_attempts: int = 10
    """Attempts until it is dead, the first included; outages do not count."""
    backoff: Backoff = field(default_factory=Backoff)

    def __post_init__(self) -> None:
        """Refuse a policy under which nothing is ever tried."""
        if self.max_attempts < 1:
            raise ValueError("max_attempts must be at least 1")

    def decide(
        self,
        attempts: int,
        error: str,
        *,
        blocks: bool = False,
        chance: Callable[[], float] = random.random,
    ) -> Retry | Dead:
        """Decide what follows a refusal; `attempts` includes the one just refused."""
        if attempts >= self.max_attempts:
            return Dead(error=error, blocks=blocks)
        return Retry(delay=self.backoff.delay(attempts, chance), error=error)
