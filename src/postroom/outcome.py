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


Outcome = Sent | Retry | Dead
"""What is written down. Where it was nobody's fault nothing is: the row stays ready."""


@dataclass(frozen=True, slots=True)
class Settled:
    """One entry of a batch, and what became of it."""

    entry: Entry
    outcome: Outcome
