"""Dead tuples plus one long transaction slow every poll.

Somebody's REPEATABLE READ transaction stays open while fifteen thousand messages are put, sent and
deleted, so that vacuum can remove none of them. A read at the end must touch at most three times
the pages of one at the start. `make bench-postgresql` does the same with half a million.
"""

from collections.abc import Sequence

import psycopg
import pytest

from postroom.lane import Lane
from postroom.stores.postgresql import PostgresqlStore
from tests.field.conftest import SERVERS
from tests.postgresql import ground
from tests.servers import Server
from tests.stores.explaining import Seen, buffers, seen
from tests.stores.postgresql import lease, sent

__all__ = ["seen"]

BATCH, ROUNDS = 500, 30
PUT = """
insert into postroom_outbox (id, lane, key, type, topic, payload)
select gen_random_uuid()::text, n %% 64, 'key-' || n, 't', 't', '\\x00'
from generate_series(1, %s) as n
"""


@pytest.mark.parametrize("keep", [False, True], ids=["deleted", "kept"])
@pytest.mark.parametrize("server", SERVERS)
async def test_field_02_dead_tuples(server: Server, seen: Seen, *, keep: bool) -> None:
    with ground(server.url) as place, psycopg.connect(server.url) as analyst:
        analyst.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        analyst.execute("select count(*) from pg_class")
        store = PostgresqlStore(server.url, schema=place.schema)
        await store.open()
        lanes = await lease(store)

        for _ in range(ROUNDS):
            place.query(PUT, BATCH)
            assert await drained(store, lanes, keep=keep) == BATCH

        touched = [buffers(plan) for plan in seen["read"]]
        await store.close()
    start, end = max(touched[:3]), max(touched[-3:])
    assert end <= 3 * start, touched


async def drained(store: PostgresqlStore, lanes: Sequence[Lane], *, keep: bool) -> int:
    """Settle everything as sent; return how much it was."""
    count = 0
    while entries := await store.read(lanes, limit=BATCH, per_lane=BATCH, max_bytes=8 << 20):
        count += len(await store.settle(lanes, sent(*entries), keep=keep))
    return count
