"""How callers wait for each other: one transaction at a time, and a bell for every commit."""

import asyncio
import threading
from collections import deque
from concurrent.futures import Future
from dataclasses import dataclass, field
from datetime import timedelta

from postroom._clock import Clock
from postroom.errors import StoreError


@dataclass(slots=True, eq=False)
class Turn:
    """A place in the queue, and who stands there."""

    thread: int = field(default_factory=threading.get_ident)
    granted: Future[None] = field(default_factory=Future)


class Turns:
    """One writer at a time, first come first served, for threads and coroutines alike."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._queue: deque[Turn] = deque()

    def take_if_free(self) -> Turn | None:
        """Return a turn that has begun, or None where somebody else has it."""
        with self._guard:
            return None if self._queue else self._join()

    def wait(self) -> Turn:
        """Block this thread until its turn has come."""
        with self._guard:
            if any(turn.thread == threading.get_ident() for turn in self._queue):
                raise StoreError(
                    "a transaction of this memory store is already open in this thread, and "
                    "waiting for it here would never end; commit it first, or use `async with`"
                )
            turn = self._join()
        turn.granted.result()
        return turn

    async def wait_async(self) -> Turn:
        """Wait for a turn without blocking the event loop."""
        with self._guard:
            turn = self._join()
        try:
            await asyncio.shield(asyncio.wrap_future(turn.granted))
        except asyncio.CancelledError:
            self.end(turn)
            raise
        return turn

    def end(self, turn: Turn) -> None:
        """Leave the queue; the next one's turn begins."""
        with self._guard:
            self._queue.remove(turn)
            if self._queue and not self._queue[0].granted.done():
                self._queue[0].granted.set_result(None)

    def _join(self) -> Turn:
        turn = Turn()
        if not self._queue:
            turn.granted.set_result(None)
        self._queue.append(turn)
        return turn


class Bell:
    """Rings at every commit that may concern a sleeping relay."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._rung = 0
        self._heard = 0
        self._waiters: list[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = []

    def ring(self) -> None:
        """Wake whoever waits; if nobody does, the next one to wait does not."""
        with self._guard:
            self._rung += 1
            for loop, event in self._waiters:
                loop.call_soon_threadsafe(event.set)

    async def wait(self, timeout: timedelta, clock: Clock) -> None:
        """Wait for the bell, or for the time-out."""
        waiter = (asyncio.get_running_loop(), asyncio.Event())
        with self._guard:
            if self._rung > self._heard:
                self._heard = self._rung
                return
            self._waiters.append(waiter)
        sleep = asyncio.ensure_future(clock.sleep(timeout.total_seconds()))
        woken = asyncio.ensure_future(waiter[1].wait())
        try:
            await asyncio.wait({sleep, woken}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            with self._guard:
                self._waiters.remove(waiter)
                self._heard = self._rung
            sleep.cancel()
            woken.cancel()
            await asyncio.wait({sleep, woken})
