"""Which relays are alive: a pure decision, the same for every store."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from postroom._clock import nearest_moment
from postroom.store import RelayStatus


@dataclass(frozen=True, slots=True, kw_only=True)
class Sighting:
    """When a relay was last seen, for how long that counts, and what it can reach.

    Times and lengths are microseconds.
    """

    name: str
    seen_at: int
    lease: int
    suspected_at: int | None
    """When another relay first saw it expired; a renewal clears it."""
    routes: Mapping[str, bool]

    def expired(self, now: int) -> bool:
        """Whether its lease is over; a time in the future means that the clock was set back."""
        return not self.seen_at <= now <= self.seen_at + self.lease

    def gone(self, now: int, renewal: int) -> bool:
        """Whether it was seen expired a whole renewal ago and is so still."""
        seen = self.suspected_at
        return self.expired(now) and seen is not None and seen + renewal <= now

    def newly_expired(self, now: int) -> bool:
        """Whether it is to be written down that it was seen expired."""
        seen = self.suspected_at
        return self.expired(now) and (seen is None or seen > now)

    def status(self, now: int, lanes: int) -> RelayStatus:
        """Return the relay as people see it, with how many lanes it owns."""
        return RelayStatus(
            name=self.name,
            seen_at=nearest_moment(self.seen_at),
            alive=not self.expired(now),
            lanes=lanes,
            routes=tuple(self.routes),
            paused_routes=tuple(route for route, able in self.routes.items() if not able),
        )


def judged(
    sightings: Iterable[Sighting], now: int, renewal: int
) -> tuple[frozenset[str], frozenset[str]]:
    """Return the relays whose lanes are free, and those that are seen expired just now.

    One look is not enough: after a stall of the database all leases look expired at once, and
    every healthy owner needs one renewal to show that it is alive.
    """
    found = list(sightings)
    gone = frozenset(each.name for each in found if each.gone(now, renewal))
    return gone, frozenset(each.name for each in found if each.newly_expired(now)) - gone
