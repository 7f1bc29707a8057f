"""What became of one attempt to send, and of one lane settlement."""

from dataclasses import dataclass
from datetime import timedelta

from postroom.message import Entry


@dataclass(frozen=True, slots=True)
class Sent:
    """The broker confirmed it."""


@dataclass(frozen=True, slots=True)
class Retry:
    """The broker refused it for now: one attempt more, not again before `delay` is over."""

    delay: timedelta
    error: str


@dataclass(frozen=True, slots=True)
class Dead:
    """Given up. With `blocks` the later messages of its key stay behind it (policy `park`)."""

    error: str
    blocks: bool
    attempted: bool = True
    """False where the broker was never asked (expired): then no attempt is counted."""


@dataclass(frozen=True, slots=True)
class Released:
    """Nobody's fault: stays ready, no attempt spent."""

    error: str


Outcome = Sent | Retry | Dead | Released


@dataclass(frozen=True, slots=True)
class Settled:
    """One entry of a batch, and what became of it."""

    entry: Entry
    outcome: Sent | Retry | Dead
