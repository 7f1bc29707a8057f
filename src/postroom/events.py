"""What happened, as values given to observers: logs, metrics, tests and the lab are observers."""

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import timedelta

from postroom.lane import Lane
from postroom.message import Entry, Message


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """The root of all events."""


# The relay


@dataclass(frozen=True, slots=True, kw_only=True)
class RelayStarted(Event):
    """A relay began to look for lanes."""

    relay: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RelayStopped(Event):
    """A relay gave its lanes back and ended."""

    relay: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LanesTaken(Event):
    """The relay became the owner of these lanes."""

    relay: str
    lanes: tuple[Lane, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class LanesGiven(Event):
    """The relay gave these lanes back, to share or to stop."""

    relay: str
    lanes: tuple[Lane, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class LanesLost(Event):
    """These lanes have another owner now, or our lease ran out by our own clock."""

    relay: str
    lanes: tuple[Lane, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Read(Event):
    """A batch was read and none of it is sent yet."""

    route: str
    entries: tuple[Entry, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Publishing(Event):
    """These messages are about to be given to the broker."""

    route: str
    entries: tuple[Entry, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Published(Event):
    """The broker answered for these; nothing is settled yet."""

    route: str
    confirmed: int
    entries: tuple[Entry, ...]
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Sent(Event):
    """The message is confirmed and settled."""

    entry: Entry


@dataclass(frozen=True, slots=True, kw_only=True)
class Retried(Event):
    """The message was refused for now and will be tried again after `delay`."""

    entry: Entry
    delay: timedelta
    error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Dead(Event):
    """The message was given up; `blocks` says whether its key waits for a person."""

    entry: Entry
    error: str
    blocks: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Suspected(Event):
    """The outcome was unknown twice in a row; from now on the message is sent alone."""

    entry: Entry
    error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Held(Event):
    """These rows wait behind an earlier message of their key."""

    route: str
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Swept(Event):
    """Rows were made ready: due retries, due schedules, held rows with nothing before them."""

    due: int
    scheduled: int
    freed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SettleRefused(Event):
    """Rows changed hands while we published; their new owner decides about them."""

    route: str
    entries: tuple[Entry, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class LaneMismatch(Event):
    """A row stands in a lane that its key does not belong to: its writer computes lanes wrongly."""

    entry: Entry
    expected: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Paused(Event):
    """The broker cannot be reached; the route waits and tries again after `delay`."""

    route: str
    error: str
    delay: timedelta


@dataclass(frozen=True, slots=True, kw_only=True)
class Resumed(Event):
    """The broker answers again."""

    route: str
    after: timedelta


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreLost(Event):
    """The database cannot be reached or is read-only; tried again after `delay`."""

    error: str
    delay: timedelta


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreBack(Event):
    """The database answers again."""


# The consumer


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerStarted(Event):
    """A consumer subscribed to its topics."""

    consumer: str
    topics: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerStopped(Event):
    """A consumer gave back what it held and ended."""

    consumer: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Handling(Event):
    """The inbox row is written in the open transaction; the handler is about to run."""

    consumer: str
    message: Message


@dataclass(frozen=True, slots=True, kw_only=True)
class Handled(Event):
    """The handler returned; nothing is committed yet."""

    consumer: str
    message: Message


@dataclass(frozen=True, slots=True, kw_only=True)
class Committed(Event):
    """Effect and inbox row are committed; the delivery is not acknowledged yet."""

    consumer: str
    message: Message
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Acknowledged(Event):
    """The broker knows that the message is done."""

    consumer: str
    message: Message


@dataclass(frozen=True, slots=True, kw_only=True)
class Duplicate(Event):
    """A copy of a message whose effect is already there; acknowledged without a second one."""

    consumer: str
    message: Message


@dataclass(frozen=True, slots=True, kw_only=True)
class HandlerFailed(Event):
    """The handler raised; everything was rolled back and the message comes again."""

    consumer: str
    message: Message
    error: str
    attempt: int
    delay: timedelta
    exception: BaseException | None = field(default=None, compare=False)
    """What was raised, with its traceback; only here, never stored."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLettered(Event):
    """The consumer gave the message up; it is in the broker's dead letters with the reason."""

    consumer: str
    message: Message
    error: str
    exception: BaseException | None = field(default=None, compare=False)
    """What was raised, with its traceback; only here, never stored."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetterFailed(Event):
    """The dead-letter target did not take the message; it was not acknowledged."""

    consumer: str
    message: Message
    error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AcknowledgeFailed(Event):
    """The effect is committed but the broker was not told; a copy will come and be dropped."""

    consumer: str
    message: Message
    error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerPaused(Event):
    """The consumer's own database or its broker cannot be reached; no delivery is spent."""

    consumer: str
    error: str
    delay: timedelta


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerResumed(Event):
    """The consumer works again."""

    consumer: str


# People


@dataclass(frozen=True, slots=True, kw_only=True)
class DeskActed(Event):
    """A person changed rows: replayed, discarded, released or pruned them."""

    action: str
    count: int


Observer = Callable[[Event], None]


class Observers:
    """Gives every event to every observer; a failing observer never stops the work."""

    def __init__(self, observers: Iterable[Observer] = ()) -> None:
        """Take the observers in the order in which they are called."""
        self._observers = tuple(observers)

    def with_also(self, observers: Iterable[Observer]) -> "Observers":
        """Return these and the others; one that is here already is not added again."""
        return Observers((*self._observers, *(o for o in observers if o not in self._observers)))

    def emit(self, event: Event) -> None:
        """Give the event to each observer in turn."""
        for observer in self._observers:
            try:
                observer(event)
            except Exception:
                _log.exception("observer %r failed on %s", observer, type(event).__name__)


_log = logging.getLogger(__name__)
