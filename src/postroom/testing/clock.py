"""A clock that stands still until a test moves it."""

import asyncio
from datetime import UTC, datetime, timedelta

_START = datetime(2030, 1, 1, 12, 0, tzinfo=UTC)


class ManualClock:
    """A clock for tests: time passes only by `advance`, and sleepers wake then.

    Example:
        clock = ManualClock()
        relay = Relay(store, broker, clock=clock)
        clock.advance(30)
    """

    def __init__(self, start: datetime = _START) -> None:
        """Begin at `start`, which must be aware."""
        if start.tzinfo is None:
            raise ValueError("start needs a time zone, such as datetime.now(UTC)")
        self._now = start.astimezone(UTC)
        self._passed = timedelta(0)
        self._sleepers: dict[asyncio.Future[None], timedelta] = {}

    @property
    def sleepers(self) -> int:
        """How many `sleep` calls are waiting now."""
        return len(self._sleepers)

    def now(self) -> datetime:
        """Return the time that the test has set."""
        return self._now

    def elapsed(self) -> float:
        """Return the seconds advanced so far."""
        return self._passed.total_seconds()

    def advance(self, by: float | timedelta) -> None:
        """Move on by seconds or a timedelta, and wake every sleeper whose time has come.

        They run when the caller next awaits something.
        """
        step = by if isinstance(by, timedelta) else timedelta(seconds=by)
        if step < timedelta(0):
            raise ValueError("a clock that runs backwards needs set_back()")
        self._now += step
        self._passed += step
        for future, until in list(self._sleepers.items()):
            if until <= self._passed:
                del self._sleepers[future]
                future.get_loop().call_soon_threadsafe(_wake, future)

    def set_back(self, by: float | timedelta) -> None:
        """Step the wall clock back, as a wrong time server does; `elapsed` goes on."""
        self._now -= by if isinstance(by, timedelta) else timedelta(seconds=by)

    async def sleep(self, seconds: float) -> None:
        """Wait until the clock was advanced by that many seconds; none or less only yields."""
        if seconds <= 0:
            await asyncio.sleep(0)
            return
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._sleepers[future] = self._passed + timedelta(seconds=seconds)
        try:
            await future
        finally:
            self._sleepers.pop(future, None)


def _wake(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
