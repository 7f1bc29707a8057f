"""Run a transaction again, as a whole, when another one got in its way."""

from collections.abc import Awaitable, Callable
from datetime import timedelta

from postroom._clock import Clock
from postroom.connections import conflict
from postroom.retry import Backoff

_TIMES = 8
_PATIENCE = timedelta(seconds=3)
"""What takes longer does not pass by itself: every try may wait for a lock, up to a time-out."""
_PAUSE = Backoff(initial=timedelta(milliseconds=5), maximum=timedelta(milliseconds=500), jitter=0.9)


async def persistently(work: Callable[[], Awaitable[bool]], clock: Clock) -> bool:
    """Do the work until no conflict ends it, a few times at most; return what it returned.

    A deadlock or a serialization failure is nobody's fault and passes by itself, so it costs the
    message no attempt. The pauses are mostly random: those who met once should not meet again.
    """
    began = clock.elapsed()
    for times in range(1, _TIMES):
        try:
            return await work()
        except Exception as error:
            late = clock.elapsed() - began >= _PATIENCE.total_seconds()
            if late or not conflict(error):
                raise
        await clock.sleep(_PAUSE.delay(times).total_seconds())
    return await work()
