"""Read ready rows of the owned lanes, so that every lane that has rows gets its share."""

import json
import sqlite3
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

from postroom.lane import Lane
from postroom.message import Entry
from postroom.stores.rows import entry_of
from postroom.stores.sqlite.errors import code_of
from postroom.stores.sqlite.work import Work

_PAYLOAD = 19


def read(
    work: Work,
    lanes: Sequence[Lane],
    *,
    limit: int,
    per_lane: int,
    max_bytes: int,
    skip: Collection[int],
) -> list[Entry]:
    """Return entries, the oldest first; one state of the database, no lock."""
    with work.reading():
        seqs = choose(work, lanes, limit=limit, per_lane=per_lane, skip=skip)
        if not seqs:
            return []
        return [entry_of(row) for row in _within(max_bytes, _ready_rows(work, seqs))]


def choose(
    work: Work, lanes: Sequence[Lane], *, limit: int, per_lane: int, skip: Collection[int]
) -> list[int]:
    """Return which rows to read, sorted: equal shares, and what one lane leaves the others take."""
    chosen: list[int] = []
    last = dict.fromkeys(lanes, 0)
    taken = dict.fromkeys(lanes, 0)
    hungry = list(lanes)
    while hungry and len(chosen) < limit:
        quota = max(1, (limit - len(chosen)) // len(hungry))
        for lane in list(hungry):
            wanted = min(quota, per_lane - taken[lane], limit - len(chosen))
            seqs = _ready_seqs(work, lane, after=last[lane], count=wanted, skip=skip)
            chosen += seqs
            taken[lane] += len(seqs)
            if len(seqs) < wanted or taken[lane] >= per_lane:
                hungry.remove(lane)
            if seqs:
                last[lane] = seqs[-1]
            if len(chosen) >= limit:
                break
    return sorted(chosen)


def fetch(work: Work, sql: str, values: Mapping[str, object]) -> Iterator[Sequence[Any]]:
    """Yield rows; text that is not UTF-8 comes as bytes instead of ending the whole query."""
    done = 0
    try:
        for row in work.connection.execute(sql, values):
            yield row
            done += 1
    except sqlite3.OperationalError as error:
        # Python could not decode a text; SQLite itself would have left its code.
        if code_of(error) is not None:
            raise
    else:
        return
    work.connection.text_factory = _text_or_bytes
    try:
        rows = work.connection.execute(sql, values).fetchall()
    finally:
        work.connection.text_factory = str
    yield from rows[done:]


def _ready_seqs(
    work: Work, lane: Lane, *, after: int, count: int, skip: Collection[int]
) -> list[int]:
    rows = work.connection.execute(work.sql["ready-seqs"], (lane.route, lane.number, after))
    fresh = (seq for (seq,) in rows if seq not in skip)
    try:
        return list(islice(fresh, count))
    finally:
        rows.close()


def _ready_rows(work: Work, seqs: Iterable[int]) -> Iterator[Sequence[Any]]:
    sql = work.sql["ready-rows"].replace("{columns}", work.sql["columns"])
    return fetch(work, sql, {"seqs": json.dumps(seqs)})


def _within(max_bytes: int, rows: Iterator[Sequence[Any]]) -> Iterator[Sequence[Any]]:
    """Yield rows until their payloads are too large together, but at least one."""
    room, first = max_bytes, True
    for row in rows:
        payload = row[_PAYLOAD]
        room -= len(payload) if isinstance(payload, bytes | str) else 0
        if room < 0 and not first:
            return
        first = False
        yield row


def _text_or_bytes(data: bytes) -> str | bytes:
    try:
        return data.decode()
    except UnicodeDecodeError:
        return data
