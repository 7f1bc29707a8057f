"""What the rounds under way have in their hands, so that no other round touches it."""

import asyncio
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from postroom.lane import Lane
from postroom.message import Entry


@dataclass(frozen=True, slots=True)
class Batch:
    """What one round has read, until it is settled."""

    entries: tuple[Entry, ...]
    lanes: Mapping[int, Lane]
    """The lanes of the entries by number, as they were owned when the batch was read."""


class Hands:
    """Keeps the rounds of one route apart.

    A lane is in the hands of one round from before it is read until after it is settled. So
    whatever holds for the messages of a key within a round holds between rounds too. It is known
    by its number alone: one that was lost and is ours again may still be in a round.

    With `by_row` (keys are pipelined, and order is given up where one is refused) rounds share
    lanes, and a row is in the hands of one of them.
    """

    def __init__(self, *, most: int, by_row: bool) -> None:
        """Let at most that many rounds be under way."""
        self._most = most
        self._by_row = by_row
        self._lanes: Counter[int] = Counter()
        self._rows: set[int] = set()
        self._under_way = 0
        self._empty = asyncio.Event()
        self._empty.set()
        self._busy: dict[int, int] = {}
        """Lanes that had rows when they were read last, and when that was."""
        self._turn = 0

    def rows(self) -> Collection[int]:
        """Return which rows the next read must leave out, whatever ends meanwhile."""
        return frozenset(self._rows) if self._by_row else ()

    def free(self, lanes: Sequence[Lane]) -> Sequence[Lane]:
        """Return those of the lanes that may be read."""
        if self._by_row:
            return lanes
        return [lane for lane in lanes if lane.number not in self._lanes]

    def share(self, free: Sequence[Lane], owned: Sequence[Lane]) -> Sequence[Lane]:
        """Return what one round reads of the free lanes, so that another finds work beside it.

        All that had no rows, and its part of the busy ones: those that waited longest.
        """
        if self._by_row or self._most == 1:
            return free
        part = -(-sum(lane.number in self._busy for lane in owned) // self._most)
        busy = sorted((self._busy[lane.number], lane) for lane in free if lane.number in self._busy)
        left = {lane for _, lane in busy[part:]}
        return [lane for lane in free if lane not in left] if left else free

    def leaves(self, share: Sequence[Lane], free: Sequence[Lane], *, full: bool) -> bool:
        """Whether a read has left work for one more round; `full` if it brought all it may."""
        return full if self._by_row else len(share) < len(free)

    def busy(self, lanes: Sequence[Lane]) -> int:
        """Return how many of these had rows when they were read last."""
        return sum(lane.number in self._busy for lane in lanes)

    def saw(self, lanes: Sequence[Lane], entries: Sequence[Entry]) -> None:
        """Take in a read of these lanes."""
        self._turn += 1
        found = {entry.lane for entry in entries}
        for lane in lanes:
            if lane.number in found:
                self._busy[lane.number] = self._turn
            else:
                self._busy.pop(lane.number, None)

    def take(self, batch: Batch) -> None:
        """Take a batch."""
        self._lanes.update(batch.lanes.keys())
        self._rows.update(entry.seq for entry in batch.entries)

    def without(self, batch: Batch, held: Collection[Entry]) -> Batch:
        """Let go of rows that were put behind others, and return the batch that is left.

        The settle of this very batch may make them ready: a read that left them out for being in
        a hand would bring what comes after them first.
        """
        gone = {entry.seq for entry in held}
        self._rows -= gone
        return Batch(tuple(one for one in batch.entries if one.seq not in gone), batch.lanes)

    def put(self, batch: Batch) -> None:
        """Let go of a batch of which nothing more is to be written down."""
        self._lanes -= Counter(batch.lanes.keys())
        self._rows.difference_update(entry.seq for entry in batch.entries)

    @contextmanager
    def under_way(self) -> Iterator[None]:
        """Count a round."""
        self._under_way += 1
        self._empty.clear()
        try:
            yield
        finally:
            self._under_way -= 1
            if not self._under_way:
                self._empty.set()

    async def empty(self) -> None:
        """Wait until no round is under way."""
        await self._empty.wait()

    @property
    def idle(self) -> bool:
        """Whether no round is under way."""
        return not self._under_way
