"""The lease: who is alive, and who owns which lanes."""

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import timedelta

from postroom._clock import span_micros
from postroom.lane import LANES, Lane
from postroom.stores.liveness import Sighting, judged
from postroom.stores.postgresql.work import Work
from postroom.stores.sharing import Place, share


async def relays(work: Work) -> tuple[list[Sighting], int]:
    """Return all relays that the database knows, and its time."""
    rows = await work.rows("relays")
    found = [
        Sighting(
            name=name,
            seen_at=seen,
            lease=lease,
            suspected_at=suspected,
            routes=json.loads(text),
        )
        for name, seen, lease, suspected, text, _ in rows
    ]
    return found, rows[0][5] if rows else 0


async def lease(
    work: Work,
    relay: str,
    routes: Mapping[str, bool],
    times: tuple[timedelta, timedelta],
    busy: Collection[Lane],
) -> list[Lane]:
    """Renew, take and share; `times` are the lease and the renewal."""
    length, renewal = map(span_micros, times)
    # One at a time: two that look at once would both take the same free lanes.
    await work.value("lease-lock")
    await work.change("renew", name=relay, lease=length, routes=json.dumps(dict(routes)))
    known, now = await relays(work)
    others = [other for other in known if other.name != relay]
    gone, suspects = judged(others, now, renewal)
    for name in suspects:
        await work.change("suspect", name=name)
    live = {other.name: other.routes for other in others if other.name not in gone}
    live[relay] = dict(routes)
    lanes = await _lanes(work, routes)
    owners = {place: owner for place, (_, owner) in lanes.items()}
    shares = share(relay, live, owners, {(lane.route, lane.number) for lane in busy})
    await _pass(work, shares.give, None)
    await _pass(work, shares.take, relay)
    if shares.give or shares.take or gone:
        lanes = await _lanes(work, ())
    if forgotten := gone - {owner for _, owner in lanes.values() if owner is not None}:
        await work.change("forget", names=list(forgotten))
    return [
        Lane(route, number, epoch)
        for (route, number), (epoch, owner) in lanes.items()
        if owner == relay
    ]


async def give(work: Work, lanes: Iterable[Lane]) -> None:
    """Give back those of these lanes that are still ours."""
    given = sorted(lanes)
    await work.change(
        "give-lanes",
        routes=[lane.route for lane in given],
        numbers=[lane.number for lane in given],
        epochs=[lane.epoch for lane in given],
    )


async def leave(work: Work, relay: str) -> None:
    """Give back every lane of the relay and forget it."""
    await work.value("lease-lock")
    await work.change("leave-lanes", owner=relay)
    await work.change("forget", names=[relay])


async def _lanes(work: Work, routes: Iterable[str]) -> dict[Place, tuple[int, str | None]]:
    """Return epoch and owner of every lane; those of new routes are made first."""
    rows = await work.rows("lanes")
    found = {(route, number): (epoch, owner) for route, number, epoch, owner in rows}
    missing = [
        route for route in routes if any((route, number) not in found for number in range(LANES))
    ]
    if not missing:
        return found
    await work.change("new-lanes", routes=missing)
    return await _lanes(work, ())


async def _pass(work: Work, places: Sequence[Place], owner: str | None) -> None:
    if places:
        await work.change(
            "pass-lanes",
            routes=[route for route, _ in places],
            numbers=[number for _, number in places],
            owner=owner,
        )
