"""Which relays are alive: a pure decision, the same for every store with SQL."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Relay:
    """A relay as its row has it; times and lengths are microseconds."""

    name: str
    seen_at: int
    lease: int
    suspected_at: int | None
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
