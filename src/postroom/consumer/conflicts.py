"""Run a transaction again, as a whole, when another one got in its way."""

from collections.abc import Awaitable, Callable
from datetime import timedelta

from postroom._clock import Clock
from postroom.connections import conflict
from postroom.retry import Backoff

_TIMES = 8
_PAUSE = Backoff(initial=timedelta(milliseconds=5), maximum=timedelta(milliseconds=500), jitter=0.9)


async def persistently(work: Callable[[], Awaitable[bool]], clock: Clock) -> bool:
    """Do the work until no conflict ends it, a few times at most; return what it returned.

    A deadlock or a serialization failure is nobody's fault and passes by itself, so it costs the
    message no attempt. The pauses are mostly random: those who met once should not meet again.
    """
    for times in range(1, _TIMES):
        try:
            return await work()
        except Exception as error:
            if not conflict(error):
                raise
        await clock.sleep(_PAUSE.delay(times).total_seconds())
    return await work()
