"""The least that reading and settling can take: the store's SQL in a plain loop.

The same statements and transactions, fence and batch as the store has, none of them prepared by
name; on one connection; no pool, no entry, no lease, no mark but the last row of each lane.
"""

import time
from collections.abc import Sequence
from typing import Any

from bench import stage
from bench.postgresql.ground import Ground
from bench.postgresql.running import owning
from postroom.connections.paramstyle import translate
from postroom.lane import LANES
from postroom.stores.postgresql.names import Names

_BEGIN = {"statement": 5000, "lock": 2500, "idle": 5000}
_SEQ, _ID, _LANE = 0, 1, 3
PER_LANE = -(-stage.BATCH // LANES)
"""What a relay asks of each lane while all of them have something."""


async def drained(ground: Ground, count: int, *, keep: bool) -> float:
    """Return how many messages a second the loop settles; the outbox has exactly `count`."""
    async with owning(ground.store(), "bare") as (_, lanes), ground.unprepared() as connection:
        loop = _Loop(connection, ground.schema, [lane.epoch for lane in lanes], keep=keep)
        return await loop.rate(count)


class _Loop:
    def __init__(self, connection: Any, schema: str, epochs: Sequence[int], *, keep: bool) -> None:
        sql = Names(schema, "postroom_").queries()
        self._connection = connection
        self._begin_read = sql["begin-read"].format(**_BEGIN)
        self._begin_write = sql["begin-write"].format(**_BEGIN)
        self._read = translate(sql["read"], "numeric_dollar")
        self._settle = translate(sql["settle-sent" if keep else "settle-gone"], "numeric_dollar")
        self._epochs = epochs
        self._marks = [0] * LANES

    async def rate(self, count: int) -> float:
        began, done = time.perf_counter(), 0
        while done < count:
            rows = await self._batch()
            done += await self._settled(rows)
        return count / (time.perf_counter() - began)

    async def _batch(self) -> Sequence[Any]:
        await self._connection.execute(self._begin_read)
        rows = await self._fetch(
            self._read,
            served=[stage.ROUTE.name],
            routes=[stage.ROUTE.name] * LANES,
            numbers=list(range(LANES)),
            marks=self._marks,
            nudges=[0] * LANES,
            limit=stage.BATCH,
            per_lane=PER_LANE,
            max_bytes=8 << 20,
            skip=[],
        )
        await self._connection.execute("commit")
        found = [row for row in rows if row[_SEQ] is not None]
        for row in found:
            self._marks[row[_LANE]] = row[_SEQ]
        return found

    async def _settled(self, rows: Sequence[Any]) -> int:
        await self._connection.execute(self._begin_write)
        done = await self._fetch(
            self._settle,
            route=stage.ROUTE.name,
            numbers=list(range(LANES)),
            epochs=self._epochs,
            seqs=[row[_SEQ] for row in rows],
            ids=[row[_ID] for row in rows],
            now=None,
        )
        await self._connection.execute("commit")
        return len(done)

    async def _fetch(self, query: tuple[str, Sequence[str]], **values: object) -> Sequence[Any]:
        sql, names = query
        rows: Sequence[Any] = await self._connection.fetch(sql, *(values[name] for name in names))
        return rows
