"""The claim query picks the wrong plan.

A long life of sent rows, few to send, statistics of a moment at which everything was to be sent.
A read must use its index and touch fewer than 500 pages: with a hundred rows ready, with none, and
with thousands that wait. Every query has such a test in `tests/stores/test_postgresql_plans.py`;
`make bench-postgresql` has two million rows, and the time.
"""

from collections.abc import Sequence

import pytest

from postroom.lane import Lane
from postroom.stores.postgresql import PostgresqlStore
from tests.field.conftest import SERVERS
from tests.postgresql import Ground, ground
from tests.servers import Server
from tests.stores.explaining import Seen, buffers, nodes, seen
from tests.stores.postgresql import Ground as Relays
from tests.stores.postgresql import lease, sent

__all__ = ["seen"]

FILL = """
insert into postroom_outbox (id, lane, key, type, topic, payload, state, settled_at, due_at, blocks)
select gen_random_uuid()::text, n %% 64, %s || n, 't', 't', '\\x00', %s, %s, %s, %s
from generate_series(1, %s) as n
"""
LATER = 4_000_000_000_000_000


def fill(place: Ground, state: str, count: int) -> None:
    """Add rows of a state."""
    settled = 1 if state == "sent" else None
    due = LATER if state == "waiting" else None
    place.query(FILL, state, state, settled, due, state == "waiting", count)


@pytest.mark.parametrize("server", SERVERS)
async def test_field_03_wrong_plan(server: Server, seen: Seen) -> None:
    with ground(server.url) as place:
        place.query("alter table postroom_outbox set (autovacuum_enabled = off)")
        fill(place, "ready", 2_000)
        place.query("analyze postroom_outbox")
        place.query("update postroom_outbox set state = 'sent', settled_at = 1")
        fill(place, "sent", 200_000)
        relays = Relays(server.url, place.schema)
        store = await relays.store(timed=False)
        lanes = await lease(store)
        for waiting in (50, 50_000):
            fill(place, "waiting", waiting)
            # Marks rise while a relay works; here everything happens in a moment.
            assert await relays.raised(store, lanes)
            seen.clear()
            fill(place, "ready", 100)
            assert await taken(store, lanes) == 100
            assert await taken(store, lanes) == 0
            assert len(seen["read"]) == 2
            for plan in seen["read"]:
                parts = list(nodes(plan))
                scanned = {one["Relation Name"] for one in parts if one["Node Type"] == "Seq Scan"}
                assert "postroom_outbox" not in scanned
                assert buffers(plan) < 500

        await store.close()


async def taken(store: PostgresqlStore, lanes: Sequence[Lane]) -> int:
    """Read once and settle it as sent; return how much it was."""
    entries = await store.read(lanes, limit=500, per_lane=500, max_bytes=8 << 20)
    await store.settle(lanes, sent(*entries), keep=True)
    return len(entries)
