"""What is known of one partition while it is ours: received, out, held back, done."""

import heapq
from collections import OrderedDict
from dataclasses import dataclass, field

from postroom.brokers.kafka.mapping import Headers
from postroom.message import Message

_PREFIX = "postroom:1:"


@dataclass(slots=True)
class Received:
    """A record that has arrived and is not done."""

    offset: int
    message: Message
    key: bytes | None
    value: bytes | None
    headers: Headers
    again: bool = False
    """Whether it was handed out before."""

    @property
    def size(self) -> int:
        """About how many bytes it takes."""
        return len(self.value or b"") + len(self.key or b"") + 200


@dataclass(slots=True)
class Partition:
    """Hands out in the order of offsets, and knows up to where everything is done.

    Kafka keeps one number for a group and partition: what is below it is done. It may only
    rise over what is done without a gap. Beside it Kafka keeps a text of ours: up to where
    records may have been handed out; it is written before they are.
    """

    topic: str
    number: int
    start: int | None
    """The committed offset from which reading began; None where none was committed."""
    seen: int
    """Records below this were handed out before, by whomever."""
    ahead: int
    """How many records may be handed out before the text is written again."""
    lost: bool = False
    leaving: bool = False
    """Whether it is about to go to another consumer: nothing more is handed out."""
    paused: bool = False
    size: int = 0
    pending: OrderedDict[int, Received] = field(default_factory=OrderedDict)
    """What is not done, by offset."""
    end: int | None = None
    """One more than the highest offset that arrived."""
    handed: int = 0
    """One more than the highest offset that was handed out."""
    reserved: int = 0
    """Below this Kafka knows that records may have been handed out."""
    committed: tuple[int, int] | None = None
    """What Kafka has confirmed: position and reserve."""
    out: set[int] = field(default_factory=set)
    """What is in somebody's hands, by offset."""
    _free: list[int] = field(default_factory=list)
    _delayed: list[tuple[float, int]] = field(default_factory=list)
    _blockers: dict[bytes, set[int]] = field(default_factory=dict)
    _held: dict[bytes, list[int]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Begin where the group was."""
        self.end = self.start
        self.reserved = self.seen
        if self.start is not None:
            self.committed = (self.start, self.seen)

    def receive(self, record: Received) -> None:
        """Take what has arrived."""
        if self.end is not None and record.offset < self.end:
            self._begin_again()
        record.again = record.offset < self.seen
        self.pending[record.offset] = record
        self.size += record.size
        self.end = record.offset + 1
        self._queue(record)

    def take(self) -> Received | None:
        """Return the next record that may be handed out."""
        if self.lost or self.leaving or not self._free or self._free[0] >= self.reserved:
            return None
        offset = heapq.heappop(self._free)
        self.out.add(offset)
        self.handed = max(self.handed, offset + 1)
        return self.pending[offset]

    def has(self, record: Received) -> bool:
        """Say whether the record is ours and not done."""
        return not self.lost and self.pending.get(record.offset) is record

    def done(self, record: Received) -> None:
        """Let the record go."""
        self.out.discard(record.offset)
        del self.pending[record.offset]
        self.size -= record.size

    def release(self, record: Received) -> None:
        """Hand it out again, before everything that came after it."""
        record.again = True
        self.out.discard(record.offset)
        self._queue(record)

    def retry(self, record: Received, due: float) -> None:
        """Hand it out again when it is due; what follows in its key waits behind it."""
        offset = record.offset
        self.out.discard(offset)
        record.again = True
        heapq.heappush(self._delayed, (due, offset))
        if record.key is None:
            return
        self._blockers.setdefault(record.key, set()).add(offset)
        mine = [one for one in self._free if self.pending[one].key == record.key]
        if mine:
            moved = set(mine)
            self._free = [one for one in self._free if one not in moved]
            heapq.heapify(self._free)
            held = self._held.setdefault(record.key, [])
            held.extend(mine)

    def wake(self, now: float) -> None:
        """Free what is due, and what waited behind it."""
        while self._delayed and self._delayed[0][0] <= now:
            _, offset = heapq.heappop(self._delayed)
            record = self.pending.get(offset)
            if record is None:
                continue
            if record.key is None:
                heapq.heappush(self._free, offset)
                continue
            held = self._held.setdefault(record.key, [])
            held.append(offset)
            blockers = self._blockers.get(record.key, set())
            blockers.discard(offset)
            if not blockers:
                self._blockers.pop(record.key, None)
                for one in self._held.pop(record.key):
                    heapq.heappush(self._free, one)

    @property
    def next_due(self) -> float | None:
        """When the next delay ends."""
        return self._delayed[0][0] if self._delayed else None

    @property
    def position(self) -> int | None:
        """The offset below which everything is done; None before anything arrived."""
        return next(iter(self.pending)) if self.pending else self.end

    @property
    def starving(self) -> bool:
        """Whether something waits to be handed out, and Kafka has to be told first."""
        return bool(self._free) and self._free[0] >= self.reserved

    def wanted(self, *, final: bool = False) -> tuple[int, int] | None:
        """Return position and reserve as Kafka should have them; None if it has them.

        At the end the reserve is exact.
        """
        position = self.position
        if position is None:
            return None
        if final:
            reserve = max(self.handed, position, self.seen)
        else:
            reserve = self.reserved
            head = max(self.handed, self._free[0] + 1 if self._free else 0)
            if self.starving or (self.handed and head + self.ahead // 2 > reserve):
                reserve = max(reserve, head + self.ahead)
        asked = (position, reserve)
        return None if asked == self.committed else asked

    def confirm(self, asked: tuple[int, int]) -> None:
        """Hear that Kafka has it."""
        self.committed = asked
        self.reserved = max(self.reserved, asked[1])

    def _begin_again(self) -> None:
        """Forget everything: the offsets have begun anew (a topic made again, an offset reset)."""
        for collection in (
            self.pending,
            self.out,
            self._free,
            self._delayed,
            self._blockers,
            self._held,
        ):
            collection.clear()
        self.size = self.handed = 0
        self.reserved = self.seen = 0

    def _queue(self, record: Received) -> None:
        key = record.key
        if key is not None and key in self._blockers:
            self._held.setdefault(key, []).append(record.offset)
        else:
            heapq.heappush(self._free, record.offset)


def note(reserve: int) -> str:
    """Return the text that goes with a committed offset."""
    return f"{_PREFIX}{reserve}"


def noted(text: str | None, committed: int, prefetch: int) -> int:
    """Return up to where records may have been handed out.

    Where somebody else has committed, what follows up to the prefetch counts as handed out.
    """
    reserve = told_reserve(text)
    return committed + prefetch if reserve is None else max(reserve, committed)


def told_reserve(text: str | None) -> int | None:
    """Return what such a text says; None for one that is not ours."""
    if text is None or not text.startswith(_PREFIX):
        return None
    try:
        return int(text.removeprefix(_PREFIX))
    except ValueError:
        return None
