"""The queries of relay, person and pruning use their indexes, whatever the statistics say."""

import asyncio
import json
from collections.abc import AsyncIterator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import asyncpg
import pytest

from postroom.connections.paramstyle import translate
from postroom.lane import Lane
from postroom.message import Entry, State
from postroom.outcome import Dead, Retry, Settled
from postroom.store import Query
from postroom.stores.postgresql import PostgresqlStore
from postroom.stores.postgresql.names import identifier
from tests.servers import Server, needed, postgresql_servers
from tests.stores.explaining import Seen, buffers, nodes, seen
from tests.stores.postgresql import SECOND, Ground, drop, lease, sent

__all__ = ["seen"]

FILL = """
insert into postroom_outbox
    (id, lane, key, type, topic, payload, state, settled_at, due_at, blocks, expires_at)
select gen_random_uuid()::text, {lane}, {key}, 't', 't', '\\x00', '{state}', {settled}, {due},
    {blocks}, {expires}
from generate_series(1, {count}) as n
"""
FULL = 60_000
"""Rows that were sent."""
LATER = 4_000_000_000_000_000
READ = 500
"""Buffers that one read of a hundred rows may take."""
WRITTEN = 40
"""Buffers that changing one row may take, with all its indexes."""


def rows(count: int, **given: object) -> str:
    """Return the statement that adds that many rows."""
    defaults: dict[str, object] = {
        "lane": "n % 64",
        "key": "'key-' || n",
        "state": "sent",
        "settled": "null",
        "due": "null",
        "blocks": "false",
        "expires": "null",
    }
    return FILL.format(**(defaults | given), count=count)


async def fill(url: str, schema: str, statistics: str) -> None:
    """Make a table of a long life, with statistics of an unlucky moment."""
    store = PostgresqlStore(url, schema=schema)
    await store.open()
    await store.migrate()
    await store.close()
    connection = await asyncpg.connect(url)
    await connection.execute(f"set search_path = {identifier(schema)}")
    await connection.execute("alter table postroom_outbox set (autovacuum_enabled = off)")
    if statistics == "of one busy key":
        await connection.execute(
            rows(2_000, lane="5", key="'hot'", state="held", blocks="true", expires="n")
        )
        await connection.execute("analyze postroom_outbox")
        await connection.execute(
            "update postroom_outbox set state = 'ready', blocks = false, expires_at = null"
        )
    elif statistics == "of a backlog":
        await connection.execute(rows(2_000, state="ready", lane="5", key="'hot'"))
        await connection.execute("analyze postroom_outbox")
    await connection.execute("update postroom_outbox set state = 'sent', settled_at = $1", LATER)
    await connection.execute(rows(FULL, settled="n"))
    await connection.execute(rows(5_000, state="waiting", blocks="true", due=LATER))
    await connection.execute(rows(5_000, state="held", blocks="true", key="'hot'", lane="2"))
    await connection.execute(rows(1_000, state="dead", settled="n", key="'gone-' || n"))
    await connection.execute(
        "insert into postroom_inbox select n, 'shipping', sha256(n::text::bytea), n::text "
        "from generate_series(1, $1) as n",
        FULL,
    )
    if statistics == "of today":
        await connection.execute("analyze postroom_outbox; analyze postroom_inbox")
    await connection.close()


STATISTICS = ["none", "of one busy key", "of a backlog", "of today"]


@pytest.fixture(scope="module", params=needed(postgresql_servers(), "PostgreSQL"))
def server(request: pytest.FixtureRequest) -> Server:
    """A server."""
    server: Server = request.param
    return server


@pytest.fixture(scope="module", params=STATISTICS)
def ground(server: Server, request: pytest.FixtureRequest) -> Iterator[Ground]:
    """A full table, left as it was by every test."""
    schema = f"plans {uuid4().hex[:8]}"
    # In a thread, because the tests' own event loop lives in this one.
    with ThreadPoolExecutor(max_workers=1) as thread:
        thread.submit(asyncio.run, fill(server.url, schema, request.param)).result()
        yield Ground(server.url, schema)
        thread.submit(asyncio.run, drop(server.url, schema)).result()


@pytest.fixture
async def store(ground: Ground) -> AsyncIterator[PostgresqlStore]:
    """A store on the full table, with a hundred rows to send."""
    await ground.sql(rows(100, state="ready", key="'new-' || n"))
    store = await ground.store(timed=False)
    yield store
    await store.close()
    await ground.sql("delete from postroom_outbox where state = 'ready' or key like 'new-%'")


def check(seen: Seen, name: str, most: int, *indexes: str) -> None:
    """Ask for these indexes of the big tables and no others, and for no more buffers."""
    assert seen[name]
    for plan in seen[name]:
        parts = list(nodes(plan))
        used = {one["Index Name"] for one in parts if "Index Name" in one}
        scanned = {one["Relation Name"] for one in parts if one["Node Type"] == "Seq Scan"}
        big = {index for index in used if index.startswith(("postroom_outbox", "postroom_inbox"))}
        assert not scanned & {"postroom_outbox", "postroom_inbox"}, (name, plan)
        assert big == {f"postroom_{index}" for index in indexes}, (name, plan)
        assert buffers(plan) <= most, (name, plan)


async def read(store: PostgresqlStore, lanes: list[Lane]) -> list[Entry]:
    """Read as a relay does."""
    return list(await store.read(lanes, limit=500, per_lane=500, max_bytes=8 << 20))


async def test_read(store: PostgresqlStore, ground: Ground, seen: Seen) -> None:
    lanes = await lease(store)
    await ground.raised(store, lanes)
    seen.clear()

    assert len(await read(store, lanes)) == 100

    check(seen, "read", READ, "outbox_ready", "outbox_blockers")


async def test_a_read_that_was_planned_for_no_values(
    store: PostgresqlStore, ground: Ground
) -> None:
    """As the connection does on which it is prepared, from the first read on."""
    lanes = await lease(store)
    await ground.raised(store, lanes)
    for _ in range(3):
        await store.wait(timedelta(0))
    assert store._reader is not None
    assert store._reader.ready
    assert len(await read(store, lanes)) == 100

    plan = await generic(store, lanes)

    check({"read": [plan]}, "read", READ, "outbox_ready", "outbox_blockers")
    assert plan["Actual Rows"] >= 100


async def generic(store: PostgresqlStore, lanes: Sequence[Lane]) -> dict[str, Any]:
    """Return the plan of the statement that is prepared, as it runs for these lanes."""
    assert store._reader is not None
    marks = store._marks.of(lanes)
    values = {
        "served": [lanes[0].route],
        "routes": [lane.route for lane in lanes],
        "numbers": [lane.number for lane in lanes],
        "marks": [mark.place for mark in marks],
        "nudges": [mark.nudges for mark in marks],
        "skip": [],
        "per_lane": 500,
        "limit": 500,
        "max_bytes": 8 << 20,
    }
    _, names = translate(store._sql["read"], "numeric_dollar")
    given = ", ".join(
        f"'{{{', '.join(map(str, value))}}}'" if isinstance(value, list) else str(value)
        for value in (values[name] for name in names)
    )
    statement = store._reader._statements["read"].get_name()
    text = await store._reader._connection.fetchval(
        f"explain (analyze, buffers, format json) execute {statement}({given})"
    )
    plan: dict[str, Any] = json.loads(text)[0]["Plan"]
    return plan


async def test_read_with_nothing_ready(store: PostgresqlStore, ground: Ground, seen: Seen) -> None:
    lanes = await lease(store)
    await store.settle(lanes, sent(*await read(store, lanes)), keep=False)
    await ground.raised(store, lanes)
    seen.clear()

    assert await read(store, lanes) == []

    check(seen, "read", READ, "outbox_ready", "outbox_blockers")


@pytest.mark.parametrize("keep", [True, False])
async def test_settle(store: PostgresqlStore, seen: Seen, keep: bool) -> None:
    lanes = await lease(store)
    entries = await read(store, lanes)
    refused = [Settled(one, Retry(delay=SECOND, error="no")) for one in entries[:10]]
    dead = [Settled(one, Dead(error="no", blocks=False)) for one in entries[10:20]]

    done = await store.settle(lanes, [*refused, *dead, *sent(*entries[20:])], keep=keep)

    assert len(done) == 100
    name = "settle-sent" if keep else "settle-gone"
    check(seen, name, 80 * WRITTEN, "outbox_pkey", "outbox_blockers")
    check(seen, "settle-other", 20 * WRITTEN, "outbox_pkey", "outbox_blockers")
    assert "release" not in seen


async def test_hold(store: PostgresqlStore, seen: Seen) -> None:
    lanes = await lease(store)

    assert await store.hold(lanes, await read(store, lanes)) == 100

    check(seen, "hold", 100 * WRITTEN, "outbox_pkey")


async def test_release(store: PostgresqlStore, ground: Ground, seen: Seen) -> None:
    """The head of a key with thousands of held rows goes, and the first chunk follows."""
    await ground.sql("update postroom_outbox set key = 'hot', lane = 2 where state = 'ready'")
    lanes = await lease(store)
    head, *_ = await read(store, lanes)

    await store.settle(lanes, sent(head), keep=False)

    check(seen, "release", 500 * WRITTEN, "outbox_pkey", "outbox_blockers", "outbox_ready")
    await ground.sql("delete from postroom_outbox where state = 'ready'")
    await ground.sql(rows(500, state="held", blocks="true", key="'hot'", lane="2"))


async def test_sweep(store: PostgresqlStore, ground: Ground, seen: Seen) -> None:
    await ground.sql(rows(50, state="waiting", blocks="true", due=1, key="'due-' || n"))
    await ground.sql(rows(50, state="scheduled", due=1, key="'later-' || n"))
    lanes = await lease(store)

    swept = await store.sweep(lanes, limit=500, orphans=True)

    assert (swept.due, swept.scheduled) == (50, 50)
    check(seen, "look", 500, "outbox_due")
    check(seen, "expired-parked", 500, "outbox_parked")
    check(seen, "blocked-keys", 20_000, "outbox_blockers")
    check(seen, "promote-waiting", 50 * WRITTEN + 500, "outbox_due", "outbox_pkey")
    check(seen, "promote-scheduled", 50 * WRITTEN + 500, "outbox_due", "outbox_pkey")


async def test_search_below_the_mark(store: PostgresqlStore, seen: Seen) -> None:
    lanes = await lease(store)
    await read(store, lanes)
    place = await store._database.read(lambda work: work.value("position"))
    for known in store._marks.of(lanes):
        known.place = place

    await store.sweep(lanes, limit=500, orphans=True)

    check(seen, "ready-below", 50, "outbox_ready")


async def test_prune(store: PostgresqlStore, ground: Ground, seen: Seen) -> None:
    before = datetime.fromtimestamp(0.0005, UTC)

    assert await store.prune(
        sent_before=before, inbox_before=before, limit=200, actor="ada", dry_run=False
    ) == (499, 499)

    check(seen, "prune-sent", 200 * WRITTEN, "outbox_sent", "outbox_pkey")
    check(seen, "prune-inbox", 200 * WRITTEN, "inbox_handled")
    await ground.sql(rows(499, settled="n"))
    await ground.sql(
        "insert into postroom_inbox select n, 'shipping', sha256(n::text::bytea), n::text "
        "from generate_series(1, 499) as n"
    )


@pytest.mark.parametrize("state", [State.WAITING, State.HELD, State.DEAD])
async def test_discard_by_key(store: PostgresqlStore, state: State) -> None:
    """A person waits, but not for a look at every row."""
    query = Query(states=[state], key="key-7")

    assert await store.discard(query, limit=10, actor="ada", dry_run=True) <= 1


async def test_a_key_with_many_held_rows_costs_the_others_nothing(
    store: PostgresqlStore, ground: Ground, seen: Seen
) -> None:
    """Five thousand rows of one key are held in this table."""
    lanes = await lease(store)
    await ground.raised(store, lanes)
    seen.clear()
    entries = await read(store, lanes)
    await store.settle(lanes, sent(*entries), keep=False)

    check(seen, "read", READ, "outbox_ready", "outbox_blockers")
    check(seen, "settle-gone", 100 * WRITTEN, "outbox_pkey", "outbox_blockers")
