"""How a process of the lab ends by its own hand, at an exact point."""

import os
import signal
from dataclasses import dataclass

from postroom.events import Event


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """A point on a message's way, at which a process is hit by a signal."""

    event: str
    """The event's class name, or a point that an order service names itself."""
    nth: int = 1
    signal: int = signal.SIGKILL
    message: str = ""
    """Only events that carry this message id count; any message where empty."""


class Trap:
    """Sends the signal to its own process when the point is reached.

    It is an observer: the product does not know that it is there, and SIGKILL gives it no
    chance to tidy up.
    """

    def __init__(self, point: Point | None) -> None:
        """Wait for this point, or for none."""
        self._point = point
        self._left = point.nth if point else 0

    def observe(self, event: Event) -> None:
        """Count an event of a relay or a consumer."""
        self.reach(type(event).__name__, _messages(event))

    def reach(self, name: str, messages: tuple[str, ...] = ()) -> None:
        """Count a point that was reached, and strike at the nth."""
        point = self._point
        if point is None or point.event != name:
            return
        if point.message and point.message not in messages:
            return
        self._left -= 1
        if self._left == 0:
            os.kill(os.getpid(), point.signal)


def _messages(event: Event) -> tuple[str, ...]:
    entries = getattr(event, "entries", ())
    single = getattr(event, "message", None)
    if single is not None:
        return (single.id,)
    return tuple(entry.message.id for entry in entries)
