"""The lease: who is alive, who owns which lanes, and whether we still do."""

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import timedelta

from postroom._clock import span_micros
from postroom.lane import LANES, Lane
from postroom.stores.liveness import Sighting, judged
from postroom.stores.sharing import Place, share
from postroom.stores.sqlite.work import Work


def relays(work: Work) -> list[Sighting]:
    """Return all relays that the database knows."""
    return [
        Sighting(
            name=name,
            seen_at=seen,
            lease=lease,
            suspected_at=suspected,
            routes=json.loads(text),
        )
        for name, seen, lease, suspected, text in work.rows("relays")
    ]


def lease(
    work: Work,
    relay: str,
    routes: Mapping[str, bool],
    times: tuple[timedelta, timedelta],
    busy: Collection[Lane],
) -> list[Lane]:
    """Renew, take and share; `times` are the lease and the renewal. Needs the write lock."""
    now = work.now()
    length, renewal = map(span_micros, times)
    work.change("renew", name=relay, seen_at=now, lease=length, routes=json.dumps(dict(routes)))
    others = [other for other in relays(work) if other.name != relay]
    gone, suspects = judged(others, now, renewal)
    for name in suspects:
        work.change("suspect", name=name, suspected_at=now)
    live = {other.name: other.routes for other in others if other.name not in gone}
    live[relay] = dict(routes)
    lanes = _lanes(work, routes)
    owners = {place: owner for place, (_, owner) in lanes.items()}
    shares = share(relay, live, owners, {(lane.route, lane.number) for lane in busy})
    _pass(work, shares.give, None)
    _pass(work, shares.take, relay)
    if gone:
        _forget(work, gone)
    if shares.give or shares.take:
        lanes = _lanes(work, ())
    return [
        Lane(route, number, epoch)
        for (route, number), (epoch, owner) in lanes.items()
        if owner == relay
    ]


def give(work: Work, lanes: Iterable[Lane]) -> None:
    """Give back those of these lanes that are still ours."""
    work.change_each(
        "give-lane",
        [{"route": lane.route, "number": lane.number, "epoch": lane.epoch} for lane in lanes],
    )


def leave(work: Work, relay: str) -> None:
    """Give back every lane of the relay and forget it."""
    work.change("leave-lanes", owner=relay)
    work.change("forget", name=relay)


def owned(work: Work, lanes: Iterable[Lane]) -> set[Place]:
    """Return which of these lanes are still ours, by their epoch."""
    execute, query = work.connection.execute, work.sql["owned"]
    return {
        (lane.route, lane.number)
        for lane in lanes
        if execute(query, (lane.route, lane.number, lane.epoch)).fetchone()
    }


def _lanes(work: Work, routes: Iterable[str]) -> dict[Place, tuple[int, str | None]]:
    """Return epoch and owner of every lane; those of new routes are made first."""
    found = {(route, number): (epoch, owner) for route, number, epoch, owner in work.rows("lanes")}
    missing = [
        (route, number)
        for route in routes
        for number in range(LANES)
        if (route, number) not in found
    ]
    if not missing:
        return found
    work.change_each("new-lane", [{"route": route, "number": number} for route, number in missing])
    return _lanes(work, ())


def _pass(work: Work, places: Sequence[Place], owner: str | None) -> None:
    if places:
        work.change_each(
            "pass-lane",
            [{"route": route, "number": number, "owner": owner} for route, number in places],
        )


def _forget(work: Work, gone: frozenset[str]) -> None:
    """Delete the rows of relays that are gone and own nothing any more."""
    owning = {owner for _, owner in _lanes(work, ()).values()}
    for name in gone - owning:
        work.change("forget", name=name)
