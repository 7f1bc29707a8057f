"""The least that a relay on SQLite can do: its SQL and its broker calls, in a plain loop.

The same statements, batch, fence and synchronous setting as the store and the relay use; no
thread, no lease, no event, no entry, no decision.
"""

import json
import sqlite3
import time
from collections.abc import Sequence
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import Any

from bench import stage
from postroom.lane import LANES
from postroom.message import Message
from postroom.stores.queries import load_queries

_SQL = load_queries("postroom.stores.sqlite", "postroom_")
_ROWS = _SQL["ready-rows"].replace("{columns}", _SQL["columns"])
_TIMEOUT = timedelta(seconds=5)

Rows = Sequence[Sequence[Any]]


async def relayed(outbox: Path, count: int) -> float:
    """Return how many messages a second the loop sends; the outbox has exactly `count`."""
    broker = await stage.new_broker(outbox.with_name("broker.db"))
    sent = 0
    try:
        with closing(sqlite3.connect(outbox, isolation_level=None)) as connection:
            connection.execute("pragma synchronous = full")
            _take_lanes(connection)
            began = time.perf_counter()
            while rows := _read(connection):
                answers = await broker.publish([_message(row) for row in rows], timeout=_TIMEOUT)
                assert not any(answers)
                sent += _settle(connection, rows)
            spent = time.perf_counter() - began
    finally:
        await broker.close()
    assert sent == count
    return count / spent


def _take_lanes(connection: sqlite3.Connection) -> None:
    lanes = [{"route": stage.ROUTE.name, "number": number} for number in range(LANES)]
    connection.executemany(_SQL["new-lane"], lanes)
    connection.executemany(_SQL["pass-lane"], [{**lane, "owner": "bare"} for lane in lanes])


def _read(connection: sqlite3.Connection) -> Rows:
    connection.execute("begin")
    seqs: list[int] = []
    for number in range(LANES):
        share = -(-(stage.BATCH - len(seqs)) // (LANES - number))
        lane = connection.execute(_SQL["ready-seqs"], (stage.ROUTE.name, number, 0))
        seqs += [seq for (seq,) in lane.fetchmany(share)]
        lane.close()
    rows = connection.execute(_ROWS, {"seqs": json.dumps(sorted(seqs))}).fetchall()
    connection.rollback()
    return rows


def _message(row: Sequence[Any]) -> Message:
    return Message(
        id=row[1],
        version=row[7],
        key=row[13],
        type=row[14],
        topic=row[15],
        content_type=row[16],
        payload=row[19],
        headers={"postroom-seq": str(row[0]), "postroom-epoch": "1"},
    )


def _settle(connection: sqlite3.Connection, rows: Rows) -> int:
    connection.execute("begin immediate")
    for number in sorted({row[3] for row in rows}):
        assert connection.execute(_SQL["owned"], (stage.ROUTE.name, number, 1)).fetchone()
    seqs = {"seqs": json.dumps([row[0] for row in rows])}
    ready = connection.execute(_SQL["still-ready"], seqs).fetchall()
    now = time.time_ns() // 1000
    connection.executemany(_SQL["sent"], [(now, row[0]) for row in ready])
    connection.execute(_SQL["some-blocker"], (stage.ROUTE.name,)).fetchone()
    connection.commit()
    return len(ready)
