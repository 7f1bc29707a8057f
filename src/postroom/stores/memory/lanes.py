"""Who owns which lane of a memory store: liveness, take-over and fair shares."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from datetime import datetime, timedelta

from postroom.lane import LANES, Lane
from postroom.stores.memory.tables import LaneRow, RelayRow, Tables
from postroom.stores.sharing import Place, share


def renew(
    tables: Tables, relay: str, routes: Mapping[str, bool], lease: timedelta, now: datetime
) -> None:
    """Write down that the relay is alive, and what it can reach."""
    tables.relays[relay] = RelayRow(seen_at=now, lease=lease, routes=dict(routes))
    for route in routes:
        for number in range(LANES):
            tables.lanes.setdefault((route, number), LaneRow())


def gone(tables: Tables, renewal: timedelta, now: datetime) -> frozenset[str]:
    """Return the relays whose lanes are free, and note those that are seen expired just now.

    One look is not enough: after a stall of the database all leases look expired at once, and
    every healthy owner needs one renewal to show that it is alive.
    """
    expired = {name: row for name, row in tables.relays.items() if not row.alive(now)}
    for name, row in expired.items():
        if row.suspected_at is None or row.suspected_at > now:
            tables.relays[name] = replace(row, suspected_at=now)
    return frozenset(
        name
        for name, row in expired.items()
        if row.suspected_at is not None and row.suspected_at + renewal <= now
    )


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
