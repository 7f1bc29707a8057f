"""Write down what became of a batch, and let held rows follow their head."""

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from postroom._clock import span_micros
from postroom.lane import Lane
from postroom.message import Entry
from postroom.outcome import Dead, Retry, Sent, Settled
from postroom.stores.postgresql.marks import Marks, known
from postroom.stores.postgresql.work import Work

CHUNK = 500
"""Held rows of one key that become ready together."""
ROOM = 2_000
"""Held rows of all keys that become ready together."""

Blocked = tuple[str, int, int]
"""A key, its lane, and the seq behind which its held rows stand."""


async def settle(
    work: Work, marks: Marks, lanes: Sequence[Lane], settled: Sequence[Settled], *, keep: bool
) -> frozenset[int]:
    """Settle what is still ours; the first statement of each route locks its lanes."""
    done: set[int] = set()
    for route, owned in by_route(lanes).items():
        mine = [one for one in settled if one.entry.route == route]
        if not mine:
            continue
        ours, keys = await _settle(work, owned, mine, keep=keep)
        done |= ours
        if keys:
            passed = [one.entry for one in mine if one.entry.seq in ours]
            await release(work, marks, owned, _behind(passed, keys), room=ROOM)
    return frozenset(done)


async def hold(work: Work, lanes: Sequence[Lane], entries: Sequence[Entry]) -> int:
    """Hold those of these rows that are still ours."""
    held = 0
    for route, owned in by_route(lanes).items():
        mine = [entry for entry in entries if entry.route == route]
        if mine:
            held += await work.change("hold", **_fence(owned), **_which(mine))
    return held


async def release(
    work: Work, marks: Marks, lanes: Sequence[Lane], blocked: Sequence[Blocked], *, room: int
) -> int:
    """Make the first held rows of these keys ready if only such stand first; return how many.

    The lanes are of one route, and locked.
    """
    return int(
        await work.value(
            "release",
            route=lanes[0].route,
            keys=[key for key, _, _ in blocked],
            lanes=[lane for _, lane, _ in blocked],
            afters=[after for _, _, after in blocked],
            chunk=CHUNK,
            room=room,
            **known(lanes, marks),
        )
    )


def by_route(lanes: Iterable[Lane]) -> Mapping[str, list[Lane]]:
    """Return the lanes of each route, all in the order in which they are locked."""
    routes: dict[str, list[Lane]] = defaultdict(list)
    for lane in sorted(lanes):
        routes[lane.route].append(lane)
    return routes


async def fence(work: Work, lanes: Sequence[Lane]) -> set[int]:
    """Lock these lanes of one route; return the numbers of those that are still ours."""
    return {row[0] for row in await work.rows("fence", **_fence(lanes))}


def _fence(lanes: Sequence[Lane]) -> dict[str, object]:
    return {
        "route": lanes[0].route,
        "numbers": [lane.number for lane in lanes],
        "epochs": [lane.epoch for lane in lanes],
    }


def _which(entries: Sequence[Entry]) -> dict[str, object]:
    return {
        "seqs": [entry.seq for entry in entries],
        "ids": [entry.message.id for entry in entries],
    }


async def _settle(
    work: Work, lanes: Sequence[Lane], settled: Sequence[Settled], *, keep: bool
) -> tuple[set[int], set[str]]:
    """Return the rows that were ours, and the keys that go on and have somebody waiting."""
    sent = [one.entry for one in settled if isinstance(one.outcome, Sent)]
    other = [one for one in settled if not isinstance(one.outcome, Sent)]
    rows: list[Any] = []
    if other:
        values = _which([one.entry for one in other]) | _changes(other)
        rows += await work.rows("settle-other", **_fence(lanes), **values)
    if sent:
        query = "settle-sent" if keep else "settle-gone"
        rows += await work.rows(query, **_fence(lanes), **_which(sent))
    return (
        {seq for seq, _ in rows if seq is not None},
        {key for _, key in rows if key is not None},
    )


def _changes(settled: Sequence[Settled]) -> dict[str, object]:
    """Return the columns of rows that were not sent."""
    changes: list[tuple[str, bool, int, str, int | None]] = []
    for one in settled:
        match one.outcome:
            case Retry(delay=delay, error=error):
                changes.append(("waiting", True, 1, _storable(error), span_micros(delay)))
            case Dead(error=error, blocks=blocks, attempted=attempted):
                changes.append(("dead", blocks, int(attempted), _storable(error), None))
    names = ("states", "blocks", "attempts", "errors", "delays")
    return {name: [change[place] for change in changes] for place, name in enumerate(names)}


def _behind(passed: Iterable[Entry], keys: Collection[str]) -> list[Blocked]:
    """Return these keys with the last row of each that was settled."""
    last: dict[str, Entry] = {}
    for entry in passed:
        key = entry.message.key
        if key is None or key not in keys:
            continue
        if key not in last or last[key].seq < entry.seq:
            last[key] = entry
    return [(key, entry.lane, entry.seq) for key, entry in last.items()]


def _storable(text: str) -> str:
    """Return the text as PostgreSQL can keep it: without NUL, and as UTF-8."""
    return text.replace("\0", "\\x00").encode("utf-8", "backslashreplace").decode()
