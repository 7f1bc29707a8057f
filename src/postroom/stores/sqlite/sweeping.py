"""Make ready what is due, and free what nothing blocks any more."""

import json
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from postroom._clock import nearest_moment
from postroom.lane import Lane
from postroom.message import State
from postroom.store import Swept
from postroom.stores.sharing import Place
from postroom.stores.sqlite.reading import fetch
from postroom.stores.sqlite.settling import CHUNK, release
from postroom.stores.sqlite.work import Work

KEYS = 2_000
"""Blocked keys looked at by one sweep; the next one goes on behind them."""

Blocked = tuple[Place, int, int]
"""Where a blocked key has its rows, one of these, and the seq behind which the held ones stand."""

Fence = Callable[[], set[Place]]
"""Looks up which lanes are still ours; asked again under the write lock."""


@dataclass(slots=True)
class Progress:
    """Up to which key each route was searched for held rows that nothing blocks."""

    after: dict[str, str | bytes] = field(default_factory=dict)


def sweep(
    work: Work,
    lanes: Sequence[Lane],
    fence: Fence,
    progress: Progress,
    *,
    limit: int,
    orphans: bool,
) -> Swept:
    """Look with plain reads first, and take the write lock only if there is something to do."""
    by_route: dict[str, list[int]] = defaultdict(list)
    for lane in lanes:
        by_route[lane.route].append(lane.number)
    earliest = _earliest(work, by_route)
    now = work.now()
    due = [place for place, moment in earliest.items() if moment <= now]
    parked = _expired(work, by_route, now, limit)
    found = list(_orphans(work, by_route, progress)) if orphans else []
    swept = Swept()
    if due or parked or found:
        with work.writing(durable=False):
            places = fence()
            swept = _promote(work, [place for place in due if place in places], now, limit)
            work.change_each("unblock", [(seq,) for _, seq, _ in parked])
            swept = replace(swept, freed=_free(work, [*parked, *found], places, limit))
        earliest = _earliest(work, by_route)
    next_due = min(earliest.values(), default=None)
    return replace(swept, next_due=None if next_due is None else nearest_moment(next_due))


def new_places(work: Work, count: int) -> Iterator[int]:
    """Return that many new numbers at the end of the order; needs the write lock."""
    work.change("places", count=count)
    last = int(work.value("last-place"))
    return iter(range(last - count + 1, last + 1))


def _earliest(work: Work, by_route: Mapping[str, Collection[int]]) -> dict[Place, float]:
    return {
        (route, lane): moment
        for route, numbers in by_route.items()
        for lane, moment in fetch(
            work, work.sql["earliest-due"], {"route": route, "lanes": json.dumps(numbers)}
        )
        if isinstance(moment, int | float)  # what is no number comes after all numbers
    }


def _expired(
    work: Work, by_route: Mapping[str, Collection[int]], now: int, limit: int
) -> list[Blocked]:
    return [
        ((route, lane), seq, seq)
        for route, numbers in by_route.items()
        for seq, lane in work.rows(
            "expired-parked", route=route, lanes=json.dumps(numbers), now=now, limit=limit
        )
    ]


def _orphans(
    work: Work, by_route: Mapping[str, Collection[int]], progress: Progress
) -> Iterator[Blocked]:
    """Yield keys of these lanes whose first blocking row is itself a held one."""
    execute, query = work.connection.execute, work.sql["stands"]
    for route, numbers in by_route.items():
        after = progress.after.pop(route, "")
        values = {"route": route, "after": after, "limit": KEYS}
        keys = list(fetch(work, work.sql["blocked-keys"], values))
        if len(keys) == KEYS:
            progress.after[route] = keys[-1][0]
        for _, first in keys:
            row = execute(query, (first,)).fetchone()
            if row and row[0] == State.HELD and row[1] in numbers:
                yield (route, row[1]), first, 0


def _promote(work: Work, places: Iterable[Place], now: int, limit: int) -> Swept:
    waiting = _due(work, places, now, State.WAITING, limit)
    scheduled = _due(work, places, now, State.SCHEDULED, limit)
    work.change_each("ready", [(seq,) for seq in waiting])
    if scheduled:
        work.change_each(
            "renumber",
            [
                {"seq": seq, "place": place}
                for seq, place in zip(scheduled, new_places(work, len(scheduled)), strict=True)
            ],
        )
    return Swept(due=len(waiting), scheduled=len(scheduled))


def _due(work: Work, places: Iterable[Place], now: int, state: State, limit: int) -> list[int]:
    found: list[tuple[int, int]] = []
    for route, lane in places:
        found += work.connection.execute(
            work.sql["due-rows"], (route, lane, now, state, limit)
        ).fetchall()
    return [seq for _, seq in sorted(found)[:limit]]


def _free(work: Work, found: Iterable[Blocked], places: Collection[Place], limit: int) -> int:
    freed = 0
    for place, one, after in found:
        room = limit - freed
        if room <= 0:
            break
        if place in places:
            freed += release(work, place, one, after=after, limit=min(CHUNK, room))
    return freed
