"""Who owns which lane of a memory store: liveness, take-over and fair shares."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from datetime import timedelta

from postroom._clock import span_micros
from postroom.lane import LANES, Lane
from postroom.stores.liveness import Sighting, judged
from postroom.stores.memory.tables import LaneRow, Tables
from postroom.stores.sharing import Place, share


def renew(
    tables: Tables, relay: str, routes: Mapping[str, bool], lease: timedelta, now: int
) -> None:
    """Write down that the relay is alive, and what it can reach."""
    tables.relays[relay] = Sighting(
        name=relay, seen_at=now, lease=span_micros(lease), suspected_at=None, routes=dict(routes)
    )
    for route in routes:
        for number in range(LANES):
            tables.lanes.setdefault((route, number), LaneRow())


def gone(tables: Tables, renewal: timedelta, now: int) -> frozenset[str]:
    """Return the relays whose lanes are free, and note those that are seen expired just now."""
    gone, suspects = judged(tables.relays.values(), now, span_micros(renewal))
    for name in suspects:
        tables.relays[name] = replace(tables.relays[name], suspected_at=now)
    return gone


def balance(tables: Tables, relay: str, gone: Collection[str], busy: Collection[Lane]) -> None:
    """Let the relay give back and take lanes until it has its fair share of each route."""
    live = {name: row.routes for name, row in tables.relays.items() if name not in gone}
    owners = {place: row.owner for place, row in tables.lanes.items()}
    shares = share(relay, live, owners, {(lane.route, lane.number) for lane in busy})
    change_owner(tables, shares.give, None)
    change_owner(tables, shares.take, relay)


def forget(tables: Tables, relays: Iterable[str]) -> None:
    """Drop relays that are gone and own nothing any more."""
    for relay in relays:
        if not owned_by(tables, relay):
            del tables.relays[relay]


def owned_by(tables: Tables, relay: str) -> list[Place]:
    """Return the lanes of a relay, in order."""
    return sorted(place for place, row in tables.lanes.items() if row.owner == relay)


def change_owner(tables: Tables, places: Iterable[Place], owner: str | None) -> None:
    """Give lanes to another owner or to nobody; either way what the old one knows is void."""
    for place in places:
        tables.lanes[place] = LaneRow(owner=owner, epoch=tables.lanes[place].epoch + 1)
