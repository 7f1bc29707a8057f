"""The batch after this one, read while the broker has this one."""

import asyncio
from collections.abc import Coroutine, Iterable, Sequence
from typing import Any

from postroom.errors import StoreError
from postroom.lane import Lane
from postroom.message import Entry


class Ahead:
    """One read that runs beside a publish.

    Ready rows of a lane change through its owner alone. So what was read stays true while the
    lanes are the same, except for the keys of which something before it was not sent: their
    later messages have to wait now. Those are left out, and are read again.
    """

    def __init__(self) -> None:
        """Begin with nothing."""
        self._reading: asyncio.Task[Sequence[Entry]] | None = None
        self._lanes: tuple[Lane, ...] = ()
        self._stopped: set[str | None] = set()

    def begin(self, lanes: Sequence[Lane], reading: Coroutine[Any, Any, Sequence[Entry]]) -> None:
        """Begin to read these lanes."""
        self.drop()
        self._lanes = tuple(lanes)
        self._stopped = set()
        self._reading = asyncio.ensure_future(reading)
        self._reading.add_done_callback(_look_at_failure)

    async def take(self, lanes: Sequence[Lane]) -> Sequence[Entry]:
        """Return what may be sent of exactly these lanes; where there is nothing, read again."""
        reading, self._reading = self._reading, None
        if reading is None:
            return ()
        if self._lanes != tuple(lanes):
            reading.cancel()
            return ()
        try:
            entries = await reading
        except StoreError:
            return ()  # the read that follows meets it too
        if not self._stopped:
            return entries
        return [entry for entry in entries if entry.message.key not in self._stopped]

    def leave_out(self, stopped: Iterable[Entry]) -> None:
        """Leave out whatever has the key of one of these, which were not sent."""
        self._stopped.update(entry.message.key for entry in stopped)
        self._stopped.discard(None)

    def drop(self) -> None:
        """Forget what was read."""
        if self._reading is not None:
            self._reading.cancel()
            self._reading = None


def _look_at_failure(reading: "asyncio.Task[Sequence[Entry]]") -> None:
    """Ask for the failure of a read that may have been dropped, so that asyncio does not."""
    if not reading.cancelled():
        reading.exception()
