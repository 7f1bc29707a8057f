"""Tenure: the lanes that a relay owns, and until when it may act on them."""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence

from postroom._clock import Clock
from postroom.events import LanesGiven, LanesLost, LanesTaken, Observers
from postroom.lane import Lane
from postroom.relay.options import RelayOptions
from postroom.store import Store


class Tenure:
    """Keeps the lease alive and knows which lanes are ours.

    The database decides who may take a lane. The owner judges itself by its own clock, counted
    from before the renewal was sent, so it stops before anybody else can begin.
    """

    def __init__(
        self,
        store: Store,
        relay: str,
        *,
        options: RelayOptions,
        clock: Clock,
        observers: Observers,
        able: Callable[[], Mapping[str, bool]],
    ) -> None:
        """Lease in the name of `relay`; `able` tells which routes' brokers it can reach."""
        self._store = store
        self._relay = relay
        self._options = options
        self._clock = clock
        self._observers = observers
        self._able = able
        self._lanes: dict[tuple[str, int], Lane] = {}
        self._valid_until = 0.0
        self._look_at: float | None = None
        self._told: Mapping[str, bool] = {}
        self._lock = asyncio.Lock()
        self._closing = False
        self._busy: Counter[Lane] = Counter()
        """Lanes with something in flight, and of how many rounds; not given away meanwhile."""

    @property
    def due(self) -> bool:
        """Whether it is time to renew, or something changed that the others should know."""
        if self._closing:
            return False
        late = self._look_at is None or self._clock.elapsed() >= self._look_at
        return late or self._told != self._able()

    @property
    def due_in(self) -> float:
        """Seconds until it is time to renew."""
        return 0.0 if self._look_at is None else self._look_at - self._clock.elapsed()

    @property
    def remaining(self) -> float:
        """Seconds for which the lanes are surely ours; 0 or less when the lease ran out."""
        return self._valid_until - self._clock.elapsed()

    def lanes(self, route: str) -> Sequence[Lane]:
        """Return our lanes of a route; none once the lease ran out by our own clock, or we stop."""
        if self.remaining <= 0 or self._closing:
            return ()
        return [lane for lane in self._lanes.values() if lane.route == route]

    def owns(self, lane: Lane) -> bool:
        """Say whether this very ownership still holds."""
        return self.remaining > 0 and self._lanes.get((lane.route, lane.number)) == lane

    async def occupy(self, lanes: Iterable[Lane]) -> set[Lane]:
        """Keep these lanes from being given away; return those that are still ours.

        Waits for a renewal that is under way: it gives away what was idle when it began.
        """
        async with self._lock:
            kept = {lane for lane in lanes if self.owns(lane)}
            self._busy.update(kept)
            return kept

    def vacate(self, lanes: Iterable[Lane]) -> None:
        """Let lanes that were occupied be given away, unless another round has them too."""
        self._busy -= Counter(lanes)

    async def renew(self) -> bool:
        """Renew, share and take lanes; return whether any were taken."""
        async with self._lock:
            able = dict(self._able())
            sent_at = self._clock.elapsed()
            lapsed = self._valid_until <= sent_at
            lanes = await self._store.lease(
                self._relay,
                routes=able,
                lease=self._options.lease,
                renewal=self._options.renewal,
                busy=tuple(self._busy),
            )
            self._valid_until = sent_at + self._options.lease.total_seconds()
            pause = min(self._options.renewal, self._options.share).total_seconds()
            self._look_at = sent_at + pause
            self._told = able
            return self._replace(lanes, lapsed=lapsed)

    async def leave(self) -> None:
        """Give everything back."""
        async with self._lock:
            given = tuple(self._lanes.values())
            self._lanes.clear()
            self._valid_until = 0.0
            self._look_at = None
            self._closing = False
            await self._store.leave(self._relay)
        if given:
            self._observers.emit(LanesGiven(relay=self._relay, lanes=given))

    async def give_idle(self) -> None:
        """Give back every lane with nothing in flight, and take no more."""
        async with self._lock:
            idle = tuple(lane for lane in self._lanes.values() if lane not in self._busy)
            for lane in idle:
                del self._lanes[lane.route, lane.number]
            self._closing = True
            if idle:
                await self._store.give(idle)
        if idle:
            self._observers.emit(LanesGiven(relay=self._relay, lanes=idle))

    def doubt(self) -> None:
        """Act on no lane until the database has said again which are ours."""
        self._valid_until = 0.0
        self._look_at = None

    def _replace(self, lanes: Sequence[Lane], *, lapsed: bool) -> bool:
        before = set(self._lanes.values())
        self._lanes = {(lane.route, lane.number): lane for lane in lanes}
        after = set(lanes)
        gone = tuple(sorted(before - after))
        if gone:
            kind = LanesLost if lapsed else LanesGiven
            self._observers.emit(kind(relay=self._relay, lanes=gone))
        if after - before:
            taken = tuple(sorted(after - before))
            self._observers.emit(LanesTaken(relay=self._relay, lanes=taken))
        return bool(after - before)
