"""An outage of the broker: how long a route pauses, and when it tries again."""

from datetime import timedelta

from postroom._clock import Clock
from postroom.retry import Backoff


class Outage:
    """Counts failures without a success in between; the pause grows with them."""

    def __init__(self, probe: Backoff, clock: Clock) -> None:
        """Begin in health."""
        self._probe = probe
        self._clock = clock
        self._failures = 0
        self._since: float | None = None
        self._next = 0.0

    @property
    def active(self) -> bool:
        """Whether the route pauses now."""
        return self._since is not None

    @property
    def next_in(self) -> float:
        """Seconds until the next probe; 0 or less when it is due."""
        return self._next - self._clock.elapsed()

    def fail(self, *, at_once: bool) -> timedelta:
        """Note a failure and return the pause; `at_once` probes a first failure without one."""
        now = self._clock.elapsed()
        if self._since is None:
            self._since = now
        self._failures += 1
        pause = self._probe.delay(self._failures)
        if at_once and self._failures == 1:
            pause = timedelta(0)
        self._next = now + pause.total_seconds()
        return pause

    def answer(self) -> timedelta:
        """Note that the broker answers; return how long it did not."""
        since = self._clock.elapsed() if self._since is None else self._since
        self._since = None
        return timedelta(seconds=self._clock.elapsed() - since)

    def confirmed(self) -> None:
        """Note that a message was confirmed: the next failure is a first one again."""
        self._failures = 0
