"""Read ready rows of the owned lanes, each from its mark on."""

from collections.abc import Collection, Sequence
from typing import Any

from postroom.lane import Lane
from postroom.message import Entry
from postroom.stores.postgresql.marks import Candidate, Mark, Marks, Seen
from postroom.stores.postgresql.work import Work
from postroom.stores.rows import entry_of

_SEQ, _ROUTE, _NUMBER, _MARK, _NUDGES, _OLDEST = 0, 21, 22, 23, 24, 25
"""Where the columns stand that are about the lane and not about the row."""


async def read(
    work: Work,
    marks: Marks,
    lanes: Sequence[Lane],
    *,
    limit: int,
    per_lane: int,
    max_bytes: int,
    skip: Collection[int],
) -> list[Entry]:
    """Return entries, the oldest first; one statement, no lock."""
    known = marks.of(lanes)
    rows = await work.rows(
        "read",
        served=list({lane.route for lane in lanes}),
        routes=[lane.route for lane in lanes],
        numbers=[lane.number for lane in lanes],
        marks=[mark.place for mark in known],
        nudges=[mark.nudges for mark in known],
        limit=limit,
        per_lane=min(per_lane, limit),
        max_bytes=max_bytes,
        skip=list(skip),
    )
    if rows:
        marks.learn(_seen(lanes, rows), rows[0][_OLDEST], skip)
    return [entry_of(row, typed=True) for row in rows if row[_SEQ] is not None]


async def position(work: Work) -> Candidate:
    """Return how far marks may rise, and when; the order of the two is what matters."""
    place = await work.value("position")
    return Candidate(place, await work.value("own-transaction"))


def _seen(lanes: Sequence[Lane], rows: Sequence[Any]) -> dict[Lane, Seen]:
    """Return what was seen of each lane; the first row of a lane is its lowest."""
    first: dict[tuple[str, int], Any] = {}
    for row in rows:
        place = (row[_ROUTE], row[_NUMBER])
        if place not in first:
            first[place] = row
    places = {(lane.route, lane.number): lane for lane in lanes}
    return {
        places[place]: Seen(row[_MARK], row[_NUDGES], row[_SEQ]) for place, row in first.items()
    }


async def keep(work: Work, marks: Sequence[tuple[Lane, Mark]]) -> None:
    """Write these marks into the rows of their lanes, where nobody has nudged them."""
    await work.change(
        "keep-marks",
        routes=[lane.route for lane, _ in marks],
        numbers=[lane.number for lane, _ in marks],
        epochs=[lane.epoch for lane, _ in marks],
        marks=[mark.place for _, mark in marks],
        nudges=[mark.nudges for _, mark in marks],
    )
