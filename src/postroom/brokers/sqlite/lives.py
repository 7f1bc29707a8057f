"""Which consumers are alive: showing one's own life, and judging that of others."""

from collections.abc import Sequence
from dataclasses import dataclass
from sqlite3 import Connection

from postroom.brokers.sqlite.delivering import Consumer, remove, show_life


@dataclass(frozen=True, slots=True)
class _Sighting:
    seen_at: int
    first: float


class Lives:
    """Renews our consumers and removes dead ones, whose deliveries then go to others.

    A consumer is dead when its lease is over by the clock *and* it showed no life between two
    of our own renewals. It is also dead when we watched it for a whole lease without a sign,
    whatever the clock says: that one can be set back. Where our own renewal came late (the file
    was locked, the machine slept) we forget what we saw: the others may have been held up too.
    """

    def __init__(self, *, late: float) -> None:
        """Start without having seen anybody; renewals more than `late` seconds apart are late."""
        self._late = late
        self._last = 0.0
        self._sightings: dict[str, _Sighting] = {}

    def beat(
        self, connection: Connection, ours: Sequence[Consumer], *, now: int, elapsed: float
    ) -> None:
        """Renew ours, judge the others. `elapsed` are seconds that never step back."""
        if elapsed - self._last > self._late:
            self._sightings = {}
        self._last = elapsed
        for consumer in ours:
            show_life(connection, consumer, now)
        rows = connection.execute("SELECT name, seen_at, lease FROM consumer").fetchall()
        before, self._sightings = self._sightings, {}
        own = {consumer.name for consumer in ours}
        dead: list[str] = []
        for name, seen_at, lease in rows:
            if name in own:
                continue
            sighting = before.get(name)
            if sighting is None or sighting.seen_at != seen_at:
                sighting = _Sighting(seen_at, elapsed)
            elif seen_at + lease < now or elapsed - sighting.first > lease / 1_000_000:
                dead.append(name)
            self._sightings[name] = sighting
        remove(connection, dead)
