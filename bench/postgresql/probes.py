"""What is looked at from the inside: the time of each call, and the buffers of reads."""

import json
import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from postroom.lane import Lane
from postroom.message import Entry
from postroom.outcome import Settled
from postroom.store import Swept
from postroom.stores.postgresql import PostgresqlStore, database
from postroom.stores.postgresql.work import Work


class TimedStore(PostgresqlStore):
    """Notes how long reads, sweeps and settlements took, in seconds."""

    def __init__(self, dsn: str, *, schema: str) -> None:
        """Begin with none."""
        super().__init__(dsn, schema=schema)
        self.reads: list[tuple[int, float]] = []
        """How many entries came, and how long it took."""
        self.vain_sweeps: list[float] = []
        """Of those that made nothing ready."""
        self.settlements: list[float] = []

    async def read(
        self,
        lanes: Sequence[Lane],
        *,
        limit: int,
        per_lane: int,
        max_bytes: int,
        skip: Collection[int] = (),
    ) -> Sequence[Entry]:
        """Read."""
        began = time.perf_counter()
        entries = await super().read(
            lanes, limit=limit, per_lane=per_lane, max_bytes=max_bytes, skip=skip
        )
        self.reads.append((len(entries), time.perf_counter() - began))
        return entries

    async def sweep(self, lanes: Sequence[Lane], *, limit: int, orphans: bool) -> Swept:
        """Sweep."""
        began = time.perf_counter()
        swept = await super().sweep(lanes, limit=limit, orphans=orphans)
        if not (swept.due or swept.scheduled or swept.freed):
            self.vain_sweeps.append(time.perf_counter() - began)
        return swept

    async def settle(
        self, lanes: Sequence[Lane], settled: Sequence[Settled], *, keep: bool
    ) -> frozenset[int]:
        """Settle."""
        began = time.perf_counter()
        done = await super().settle(lanes, settled, keep=keep)
        self.settlements.append(time.perf_counter() - began)
        return done


@contextmanager
def buffers() -> Iterator[list[int]]:
    """Give the buffers that each read touched while the block runs."""
    seen: list[int] = []

    class Explaining(Work):
        async def rows(self, query: str, **values: object) -> Sequence[Any]:
            if query == "read":
                sql = f"explain (analyze, buffers, format json) {self.sql[query]}"
                ((text,),) = await self.fetch(sql, values)
                plan = json.loads(text)[0]["Plan"]
                seen.append(plan["Shared Hit Blocks"] + plan["Shared Read Blocks"])
            return await super().rows(query, **values)

    with patch.object(database, "Work", Explaining):
        yield seen
