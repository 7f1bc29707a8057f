"""Make ready what is due, and free what nothing blocks any more."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

from postroom._clock import nearest_moment
from postroom.lane import Lane
from postroom.message import State
from postroom.store import Swept
from postroom.stores.postgresql.marks import Marks, known
from postroom.stores.postgresql.settling import Blocked, by_route, fence, release
from postroom.stores.postgresql.work import Work

KEYS = 1_000
"""Blocked keys looked at by one sweep; the next one goes on behind them."""
SHARE = 0.01
"""Of the time may be spent on searches that walk over dead rows while vacuum is held back."""
SMALL_SHARE = 0.002
"""The same for a search that finds nothing unless somebody broke a rule."""
_FIRST = -(2**63)
_CHEAP = 0.002
"""Seconds that such a search may always take: it walked over few dead rows."""


class Budget:
    """Lets a search run at most that share of the time."""

    def __init__(self, tick: Callable[[], float] = time.monotonic, *, share: float = SHARE) -> None:
        """Measure by that clock."""
        self._tick = tick
        self._share = share
        self._began = 0.0
        self._free_at = 0.0

    @property
    def left(self) -> bool:
        """Whether it may run now."""
        return self._tick() >= self._free_at

    def __enter__(self) -> None:
        """Begin to measure."""
        self._began = self._tick()

    def __exit__(self, *_error: object) -> None:
        """End to measure."""
        now = self._tick()
        if now - self._began > _CHEAP:
            self._free_at = now + (now - self._began) / self._share


@dataclass(slots=True)
class Progress:
    """How far the searches have come, each a little at a time."""

    after: dict[str, int] = field(default_factory=dict)
    """Up to which key (its hash) each route was searched for held rows that nothing blocks."""
    keys: Budget = field(default_factory=Budget)
    lane: int = 0
    """Which lane is searched next for rows below its mark."""
    below: Budget = field(default_factory=lambda: Budget(share=SMALL_SHARE))


@dataclass(slots=True)
class Todo:
    """What there is to do in the lanes of one route."""

    earliest: list[int] = field(default_factory=list)
    """When something is due, in each lane that has such rows."""
    due: list[int] = field(default_factory=list)
    """Lanes in which something is due now."""
    parked: list[Blocked] = field(default_factory=list)
    orphans: list[Blocked] = field(default_factory=list)

    @property
    def anything(self) -> bool:
        """Whether anything is to be written."""
        return bool(self.due or self.parked or self.orphans)


@dataclass(slots=True)
class Found:
    """What there is to do."""

    routes: dict[str, Todo] = field(default_factory=dict)
    below: tuple[Lane, int] | None = None
    """A ready row below the mark of its lane."""
    receded: int | None = None
    """Where the sequence is, if it has gone back to before a mark."""

    @property
    def anything(self) -> bool:
        """Whether anything is to be written."""
        return (
            self.below is not None
            or self.receded is not None
            or any(todo.anything for todo in self.routes.values())
        )

    @property
    def next_due(self) -> datetime | None:
        """When something is due next."""
        moments = [moment for todo in self.routes.values() for moment in todo.earliest]
        return nearest_moment(min(moments)) if moments else None


async def look(
    work: Work,
    marks: Marks,
    lanes: Sequence[Lane],
    progress: Progress,
    *,
    limit: int,
    orphans: bool,
) -> Found:
    """Look with plain reads what there is to do."""
    found = Found()
    for route, owned in by_route(lanes).items():
        numbers = [lane.number for lane in owned]
        todo = found.routes[route] = Todo()
        for number, due_at, now in await work.rows("look", route=route, numbers=numbers):
            if due_at is not None:
                todo.earliest.append(due_at)
                if due_at <= now:
                    todo.due.append(number)
        rows = await work.rows("expired-parked", route=route, numbers=numbers, limit=limit)
        todo.parked = [tuple(row) for row in rows]
    if orphans and marks.receded(position := await work.value("position")):
        found.receded = position
    if orphans and progress.keys.left:
        with progress.keys:
            for route, owned in by_route(lanes).items():
                found.routes[route].orphans = await _orphans(work, owned, progress)
    if orphans and progress.below.left:
        with progress.below:
            found.below = await _below(work, marks, lanes, progress)
    return found


async def sweep(
    work: Work, marks: Marks, lanes: Sequence[Lane], found: Found, *, limit: int
) -> Swept:
    """Do what was found, in lanes that are still ours; at most `limit` rows of each kind."""
    swept = Swept()
    for route, owned in by_route(lanes).items():
        todo = found.routes[route]
        if not todo.anything:
            continue
        numbers = await fence(work, owned)
        ours = [lane for lane in owned if lane.number in numbers]
        if ours:
            swept = await _sweep(work, marks, ours, todo, swept, limit)
    if found.receded is not None:
        await work.change("lower-marks", position=found.receded)
    if found.below is not None:
        lane, seq = found.below
        await work.change("nudge-lane", route=lane.route, number=lane.number, seq=seq)
    return swept


async def next_due(work: Work, lanes: Sequence[Lane], swept: Swept) -> Swept:
    """Return what was swept, with the moment when something of these lanes is due next."""
    moments = [
        due_at
        for route, owned in by_route(lanes).items()
        for _, due_at, _ in await work.rows(
            "look", route=route, numbers=[lane.number for lane in owned]
        )
        if due_at is not None
    ]
    return replace(swept, next_due=nearest_moment(min(moments)) if moments else None)


async def _below(
    work: Work, marks: Marks, lanes: Sequence[Lane], progress: Progress
) -> tuple[Lane, int] | None:
    """Look for a ready row below the mark of one lane, another one each time.

    There is none unless somebody wrote to the table past every rule (gave a place by hand, or
    set a state); a message would else never be sent.
    """
    progress.lane = (progress.lane + 1) % len(lanes)
    lane = lanes[progress.lane]
    (mark,) = marks.of([lane])
    if mark.place <= 0:
        return None
    seq = await work.value("ready-below", route=lane.route, number=lane.number, mark=mark.place)
    return None if seq is None else (lane, seq)


async def _orphans(work: Work, lanes: Sequence[Lane], progress: Progress) -> list[Blocked]:
    """Return keys of these lanes whose first blocking row is itself a held one."""
    route, numbers = lanes[0].route, {lane.number for lane in lanes}
    after = progress.after.pop(route, _FIRST)
    rows: Sequence[Any] = await work.rows("blocked-keys", route=route, after=after, limit=KEYS)
    if len(rows) == KEYS:
        progress.after[route] = rows[-1][0]
    return [
        (key, lane, 0) for _, key, lane, state in rows if state == State.HELD and lane in numbers
    ]


async def _sweep(
    work: Work, marks: Marks, lanes: Sequence[Lane], todo: Todo, swept: Swept, limit: int
) -> Swept:
    route, numbers = lanes[0].route, {lane.number for lane in lanes}
    due = [number for number in todo.due if number in numbers]
    values = {"route": route, "numbers": due}
    waiting = scheduled = freed = 0
    if due and (room := limit - swept.due):
        waiting = await work.value(
            "promote-waiting", state="waiting", limit=room, **values, **known(lanes, marks)
        )
    if due and (room := limit - swept.scheduled):
        scheduled = await work.value("promote-scheduled", state="scheduled", limit=room, **values)
    parked = [one for one in todo.parked if one[1] in numbers]
    if parked:
        await work.change("unblock", seqs=[seq for _, _, seq in parked])
    blocked = [one for one in (*parked, *todo.orphans) if one[0] is not None and one[1] in numbers]
    if blocked and (room := limit - swept.freed):
        freed = await release(work, marks, lanes, blocked, room=room)
    return replace(
        swept,
        due=swept.due + waiting,
        scheduled=swept.scheduled + scheduled,
        freed=swept.freed + freed,
    )
