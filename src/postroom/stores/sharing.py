"""Who should own which lanes: a pure decision, the same for every store."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from postroom.lane import LANES

Place = tuple[str, int]
"""A route and the number of a lane."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shares:
    """What a relay gives back and takes now."""

    give: tuple[Place, ...]
    take: tuple[Place, ...]


def share(
    relay: str,
    live: Mapping[str, Mapping[str, bool]],
    owners: Mapping[Place, str | None],
    busy: Collection[Place] = (),
) -> Shares:
    """Return what `relay` gives back and takes, so that all end up with fair shares.

    `live` names the live relays, this one included, with the routes they serve and whether they
    reach their broker; `owners` has every lane. A lane is free when no live relay owns it.
    Lanes stay where they are as long as that is fair.
    """
    give: list[Place] = []
    take: list[Place] = []
    served = live[relay]
    for route in sorted({route for route, _ in owners}):
        lanes = {place: owner for place, owner in owners.items() if place[0] == route}
        mine = [place for place in sorted(lanes) if lanes[place] == relay]
        limit = _limit(relay, route, live) if route in served else 0
        idle = [place for place in mine if place not in busy]
        over = max(len(mine) - limit, 0)
        give += idle[len(idle) - min(over, len(idle)) :]
        free = [place for place in sorted(lanes) if lanes[place] not in live]
        take += free[: max(limit - len(mine), 0)]
    return Shares(give=tuple(give), take=tuple(take))


def _limit(relay: str, route: str, live: Mapping[str, Mapping[str, bool]]) -> int:
    """Return how many lanes of the route this relay may keep."""
    able = [name for name, routes in live.items() if routes.get(route)]
    serving: Sequence[str] = able or [name for name, routes in live.items() if route in routes]
    return -(-LANES // len(serving)) if relay in serving else 0
