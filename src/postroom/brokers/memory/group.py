"""The queue of one group: what is ready, out, delayed, behind another of its key, or dead."""

import heapq
from collections import Counter, deque
from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime
from enum import Enum, auto

from postroom.broker import DeadLetter, QueueStatus
from postroom.message import Message


class Place(Enum):
    """Where a pending message is; only the first of a key is anywhere but behind."""

    BEHIND = auto()
    READY = auto()
    OUT = auto()
    DELAYED = auto()


@dataclass(slots=True, eq=False)
class Pending:
    """A message that the group has not finished."""

    position: int
    message: Message
    published_at: datetime
    place: Place = Place.BEHIND
    failed: int = 0
    handed_out: int = 0


class Group:
    """One group's queue. Knows no clock: the caller says what time it is, in microseconds."""

    def __init__(self, name: str) -> None:
        """Start with no topics."""
        self.name = name
        self.topics: set[str] = set()
        self.dead: list[DeadLetter] = []
        self._pending: dict[int, Pending] = {}
        self._keys: dict[str, deque[Pending]] = {}
        self._ready: dict[str, list[int]] = {}
        self._delayed: list[tuple[int, int]] = []

    def add(self, pending: Pending) -> None:
        """Put it at the end of the queue."""
        self._pending[pending.position] = pending
        key = pending.message.key
        if key is None:
            self._make_ready(pending)
            return
        line = self._keys.setdefault(key, deque())
        line.append(pending)
        if len(line) == 1:
            self._make_ready(pending)

    def take(self, topics: Collection[str], *, now: datetime, elapsed: int) -> Pending | None:
        """Hand out the first that may go; what has expired becomes a dead letter instead."""
        self._end_delays(elapsed)
        while (pending := self._first(topics)) is not None:
            expires_at = pending.message.expires_at
            if expires_at is None or expires_at > now:
                pending.place = Place.OUT
                pending.handed_out += 1
                return pending
            self.bury(pending, "expired", now)
        return None

    def next_delay(self) -> int | None:
        """Return the moment of `elapsed` at which the next delayed one is due."""
        return self._delayed[0][0] if self._delayed else None

    def has(self, pending: Pending) -> bool:
        """Whether it is still to be done."""
        return self._pending.get(pending.position) is pending

    def finish(self, pending: Pending) -> None:
        """Forget it, and let the next of its key go."""
        del self._pending[pending.position]
        key = pending.message.key
        if key is None:
            return
        line = self._keys[key]
        line.remove(pending)
        if not line:
            del self._keys[key]
        elif line[0].place is Place.BEHIND:
            self._make_ready(line[0])

    def give_back(self, pending: Pending) -> None:
        """Make it ready again, at its old place."""
        if self.has(pending):
            self._make_ready(pending)

    def delay(self, pending: Pending, due: int) -> None:
        """Keep it, and its key, until `elapsed` reaches `due`."""
        pending.failed += 1
        pending.place = Place.DELAYED
        heapq.heappush(self._delayed, (due, pending.position))

    def bury(self, pending: Pending, reason: str, now: datetime) -> None:
        """Make it a dead letter."""
        letter = DeadLetter(
            group=self.name,
            position=pending.position,
            message=pending.message,
            reason=reason,
            attempts=pending.failed,
            died_at=now,
        )
        self.dead.append(letter)
        self.finish(pending)

    def drop(self, topics: Collection[str]) -> int:
        """Forget these topics with everything of them; return how many messages that was."""
        self.topics.difference_update(topics)
        doomed = [one for one in self._pending.values() if one.message.topic in topics]
        for pending in doomed:
            self.finish(pending)
        kept = [letter for letter in self.dead if letter.message.topic not in topics]
        dropped = len(doomed) + len(self.dead) - len(kept)
        self.dead = kept
        return dropped

    def status(self, topic: str) -> QueueStatus:
        """Count what there is of one topic."""
        mine = [one for one in self._pending.values() if one.message.topic == topic]
        places = Counter(one.place for one in mine)
        return QueueStatus(
            group=self.name,
            topic=topic,
            ready=places[Place.READY] + places[Place.BEHIND],
            out=places[Place.OUT],
            delayed=places[Place.DELAYED],
            dead=sum(letter.message.topic == topic for letter in self.dead),
            oldest_at=min((one.published_at for one in mine), default=None),
        )

    def _make_ready(self, pending: Pending) -> None:
        pending.place = Place.READY
        heapq.heappush(self._ready.setdefault(pending.message.topic, []), pending.position)

    def _first(self, topics: Collection[str]) -> Pending | None:
        heads = [heap for topic in topics if (heap := self._ready.get(topic))]
        while heads:
            heap = min(heads)
            pending = self._pending.get(heapq.heappop(heap))
            if pending is not None and pending.place is Place.READY:
                return pending
            heads = [heap for heap in heads if heap]
        return None

    def _end_delays(self, elapsed: int) -> None:
        while self._delayed and self._delayed[0][0] <= elapsed:
            pending = self._pending.get(heapq.heappop(self._delayed)[1])
            if pending is not None and pending.place is Place.DELAYED:
                self._make_ready(pending)
