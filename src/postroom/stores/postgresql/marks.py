"""Low-water marks: from where a lane is read, so that dead rows behind it cost nothing.

A mark may pass only what no open transaction can precede. Every insert takes its transaction's id
before its place. So: read the position P of the sequence, then take an id X of our own. Every
place up to P belongs to a transaction older than X, and a snapshot whose oldest running
transaction is X or later sees them all. What a read with such a snapshot did not return up to P
is not ready, and never becomes so by a commit.

It may become so by a retry that is due, a release or a replay: whoever does that lowers the mark
in the lane's row in the same transaction and raises its count of nudges. A read compares the
count, and begins at the row's mark when it changed.
"""

import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from postroom.lane import Lane

PROPOSE_EVERY = 0.5
KEEP_EVERY = 30.0
_WORTH_KEEPING = 1_000
"""Places that a mark must have risen by, to be written down for the next owner."""


@dataclass(slots=True)
class Mark:
    """What is known of one lane."""

    place: int = 0
    """Nothing up to here is ready, as of `nudges`."""
    nudges: int = -1
    kept: int = 0
    """What the lane's row says."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A position, and the transaction before which everything up to it was begun."""

    position: int
    transaction: int


class Seen(NamedTuple):
    """What one read saw of a lane."""

    mark: int
    """Where it began."""
    nudges: int
    first: int | None
    """The lowest ready row, None if there was none."""


class Marks:
    """The marks of the owned lanes; forgotten with the epoch."""

    def __init__(self, tick: Callable[[], float] = time.monotonic) -> None:
        """Measure pauses by that clock."""
        self._tick = tick
        self._lanes: dict[Lane, Mark] = {}
        self._candidate: Candidate | None = None
        self._ripe: Candidate | None = None
        self._stirred = False
        self._propose_at = tick()
        self._keep_at = tick() + KEEP_EVERY

    @property
    def lanes(self) -> Collection[Lane]:
        """Lanes of which something is known."""
        return self._lanes.keys()

    def of(self, lanes: Iterable[Lane]) -> list[Mark]:
        """Return what is known of these lanes; nothing yet of new ones."""
        return [self._lanes.get(lane) or Mark() for lane in lanes]

    def learn(self, seen: Mapping[Lane, Seen], oldest: int, skip: Collection[int] = ()) -> None:
        """Take in a read: `oldest` is the oldest transaction that was running for it.

        Lanes of which nothing came back for want of room must not be in `seen`. Rows in `skip`
        were left out although they are ready.
        """
        if self._candidate is not None and oldest >= self._candidate.transaction:
            # Kept for the lanes that other reads see: later snapshots see as much.
            self._ripe, self._candidate = self._candidate, None
        ripe = self._ripe
        if ripe is not None and oldest < ripe.transaction:
            ripe = None
        for lane, one in seen.items():
            mark = self._lanes.get(lane)
            if mark is None:
                mark = self._lanes[lane] = Mark()
            if mark.nudges != one.nudges:
                mark.place, mark.nudges, mark.kept = one.mark, one.nudges, one.mark
            self._stirred = self._stirred or one.first is not None
            if ripe is not None:
                bounds = [ripe.position, *(seq - 1 for seq in skip)]
                if one.first is not None:
                    bounds.append(one.first - 1)
                mark.place = max(mark.place, min(bounds))

    @property
    def wants_candidate(self) -> bool:
        """Whether marks could rise, and it is time to find out how far."""
        return self._candidate is None and self._stirred and self._tick() >= self._propose_at

    def propose(self, candidate: Candidate) -> None:
        """Wait for a snapshot that sees everything up to this candidate's position."""
        self.receded(candidate.position)
        self._candidate = candidate
        self._stirred = False
        self._propose_at = self._tick() + PROPOSE_EVERY

    def worth_keeping(self, lanes: Collection[Lane] | None = None) -> Sequence[tuple[Lane, Mark]]:
        """Return marks to be written down: of these lanes, or of all if it is time for that."""
        if lanes is None:
            if self._tick() < self._keep_at:
                return ()
            self._keep_at = self._tick() + KEEP_EVERY
        least = 1 if lanes is not None else _WORTH_KEEPING
        return [
            (lane, mark)
            for lane, mark in self._lanes.items()
            if (lanes is None or lane in lanes) and mark.place - mark.kept >= least
        ]

    def kept(self, written: Iterable[tuple[Lane, Mark]]) -> None:
        """Take in that these were written down."""
        for _, mark in written:
            mark.kept = mark.place

    def keep_only(self, lanes: Collection[Lane]) -> None:
        """Forget every lane that is not among these."""
        owned = set(lanes)
        for lane in [lane for lane in self._lanes if lane not in owned]:
            del self._lanes[lane]

    def receded(self, position: int) -> bool:
        """Forget everything, and return True, if the sequence has gone back to before a mark.

        It is that of another server, of a restored one, or of a table emptied with RESTART
        IDENTITY; what is put now would have its place below the marks.
        """
        if all(mark.place <= position for mark in self._lanes.values()):
            return False
        self.forget()
        return True

    def forget(self) -> None:
        """Forget everything: the next read begins at the marks in the lanes' rows."""
        self._lanes.clear()
        self._candidate = self._ripe = None


def known(lanes: Sequence[Lane], marks: Marks) -> dict[str, Any]:
    """Return what the queries that make rows ready are told of these lanes."""
    found = list(zip(lanes, marks.of(lanes), strict=True))
    return {
        "known_numbers": [lane.number for lane, _ in found],
        "known_marks": [mark.place for _, mark in found],
        "known_nudges": [mark.nudges for _, mark in found],
    }
