"""What happened when, for the picture."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(slots=True, kw_only=True)
class Mark:
    """Something that happened to a process or a file: a moment, or a stretch of time."""

    lane: str
    kind: str
    """`alive`, `frozen`, `killed`, `fault`."""
    start: float
    """Seconds since the scenario began."""
    end: float | None = None
    """None for a moment, and for what still lasts."""
    text: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Level:
    """How much there was still to do at a moment."""

    at: float
    unsent: int
    undone: int
    """Orders that some consumer has no effect of yet, unsent ones included."""


@dataclass(slots=True)
class Marks:
    """The notes of one scenario."""

    began: float = field(default_factory=time.monotonic)
    marks: list[Mark] = field(default_factory=list)
    levels: list[Level] = field(default_factory=list)
    _open: dict[tuple[str, str], Mark] = field(default_factory=dict)

    @property
    def now(self) -> float:
        """Seconds since the scenario began."""
        return time.monotonic() - self.began

    def begin(self, lane: str, kind: str, text: str = "") -> None:
        """Note that something began; the same on this lane ends with it."""
        self.end(lane, kind)
        mark = Mark(lane=lane, kind=kind, start=self.now, text=text)
        self.marks.append(mark)
        self._open[lane, kind] = mark

    def end(self, lane: str, kind: str) -> None:
        """Note that it ended, if it had begun."""
        mark = self._open.pop((lane, kind), None)
        if mark is not None:
            mark.end = self.now

    def point(self, lane: str, kind: str, text: str = "") -> None:
        """Note a moment."""
        self.marks.append(Mark(lane=lane, kind=kind, start=self.now, text=text))

    def level(self, unsent: int, undone: int) -> None:
        """Note how much there is still to do."""
        self.levels.append(Level(at=self.now, unsent=unsent, undone=undone))

    def close(self) -> None:
        """End what still lasts."""
        for lane, kind in list(self._open):
            self.end(lane, kind)

    def lanes(self) -> Sequence[str]:
        """Return the lanes, in the order of their first marks."""
        return list(dict.fromkeys(mark.lane for mark in self.marks))

    def summary(self) -> Mapping[str, int]:
        """Count the marks by kind."""
        kinds = [mark.kind for mark in self.marks]
        return {kind: kinds.count(kind) for kind in dict.fromkeys(kinds)}
