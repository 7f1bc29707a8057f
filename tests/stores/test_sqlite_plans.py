"""How SQLite looks things up in 50,000 rows: an index that is lost is a test that fails."""

import re
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from shutil import copyfile

import pytest

from postroom.lane import lane_of
from postroom.message import Message, State
from postroom.outcome import Retry, Sent, Settled
from postroom.store import Query
from postroom.stores.queries import load_queries
from postroom.stores.sqlite import SqliteStore

Put = Callable[..., None]

ROWS = 50_000
SECOND = timedelta(seconds=1)
SQL = load_queries("postroom.stores.sqlite", "postroom_")

BY_SEQ = "entry USING INTEGER PRIMARY KEY (rowid=?)"
THE_ROW = "postroom_outbox USING INTEGER PRIMARY KEY (rowid=?)"
PLANS = {
    "owned": ["postroom_lane USING PRIMARY KEY (route=? AND number=?)"],
    "ready-seqs": ["COVERING INDEX postroom_outbox_ready (route=? AND lane=? AND seq>?)"],
    "ready-rows": [BY_SEQ, "COVERING INDEX postroom_outbox_blockers (route=? AND key=? AND seq<?)"],
    "still-ready": [BY_SEQ],
    "delete": [THE_ROW],
    "sent": [THE_ROW],
    "retry": [THE_ROW],
    "dead": [THE_ROW],
    "hold": [THE_ROW],
    "ready": [THE_ROW],
    "renumber": [THE_ROW],
    "unblock": [THE_ROW],
    "some-blocker": ["COVERING INDEX postroom_outbox_blockers (route=? AND key>?)"],
    "blocked-among": ["COVERING INDEX postroom_outbox_blockers (route=? AND key=?)"],
    "first-blocker": ["INDEX postroom_outbox_blockers (route=? AND key=?)"],
    "blockers": [
        "COVERING INDEX postroom_outbox_blockers (route=? AND key=?)",
        THE_ROW,
    ],
    "ready-among": [
        "INDEX postroom_outbox_ready (route=? AND lane=? AND seq>? AND seq<?)",
        THE_ROW,
    ],
    "stands": [THE_ROW],
    "earliest-due": ["COVERING INDEX postroom_outbox_due (route=? AND lane=?"],
    "due-rows": ["COVERING INDEX postroom_outbox_due (route=? AND lane=? AND due_at>?"],
    "expired-parked": ["INDEX postroom_outbox_parked (route=? AND lane=? AND expires_at>?"],
    "blocked-keys": [
        *["COVERING INDEX postroom_outbox_blockers (route=? AND key>?)"] * 2,
        "COVERING INDEX postroom_outbox_blockers (route=? AND key=?)",
    ],
    "count-rows": [
        "COVERING INDEX postroom_outbox_ready",
        "COVERING INDEX postroom_outbox_blockers",
        "COVERING INDEX postroom_outbox_due",
        "COVERING INDEX postroom_outbox_sent",
        "COVERING INDEX postroom_outbox_dead",
    ],
    "count-blocked": ["COVERING INDEX postroom_outbox_blockers"],
    "replay-in-place": [THE_ROW],
    "replay-at-end": [THE_ROW],
    "count-sent-before": ["COVERING INDEX postroom_outbox_sent (settled_at<?)"],
    "prune-sent": [THE_ROW, "COVERING INDEX postroom_outbox_sent (settled_at<?)"],
    "count-inbox-before": ["COVERING INDEX postroom_inbox_handled (handled_at<?)"],
    "prune-inbox": [
        "PRIMARY KEY (consumer=? AND message_key=?)",
        "COVERING INDEX postroom_inbox_handled (handled_at<?)",
    ],
}
FOUND = {
    State.SCHEDULED: "INDEX postroom_outbox_due",
    State.WAITING: "INDEX postroom_outbox_due",
    State.HELD: "INDEX postroom_outbox_blockers",
    State.DEAD: "INDEX postroom_outbox_dead",
}


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a file with rows of every state."""
    path = tmp_path_factory.mktemp("plans") / "store.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(SqliteStore(path).schema())
        connection.executemany(
            """insert into postroom_outbox
               (id, route, lane, state, created_at, key, type, topic, content_type, payload)
               values (?, 'default', ?, 'ready', 1, ?, 't', 't', 'x', x'00')""",
            [(f"{n}", lane_of(f"key-{n % 5_000}", ""), f"key-{n % 5_000}") for n in range(ROWS)],
        )
        connection.executescript(
            """
            update postroom_outbox set state = 'sent', settled_at = seq where seq <= 20000;
            update postroom_outbox set state = 'held', blocks = 1 where seq between 20001 and 25000;
            update postroom_outbox set state = 'waiting', blocks = 1, due_at = 9
                where seq between 25001 and 25500;
            update postroom_outbox set state = 'scheduled', due_at = 9
                where seq between 25501 and 26000;
            update postroom_outbox set state = 'dead', blocks = seq % 2, expires_at = seq
                where seq between 26001 and 27000;
            insert into postroom_inbox
                select 'c', cast(id as blob), id, seq from postroom_outbox where seq < 10000;
            """
        )
        connection.commit()
    return path


@pytest.fixture(params=["without statistics", "with statistics"])
def connection(
    filled: Path, tmp_path: Path, request: pytest.FixtureRequest
) -> Iterator[sqlite3.Connection]:
    """Statistics must not lead SQLite astray, nor may it depend on them."""
    path = copyfile(filled, tmp_path / "copy.db")
    with closing(sqlite3.connect(path)) as connection:
        if request.param == "with statistics":
            connection.execute("analyze")
        yield connection


def plan(connection: sqlite3.Connection, sql: str) -> list[str]:
    """Return the steps that touch our tables."""
    named = dict.fromkeys(re.findall(r":(\w+)", sql), "1")
    values = named or ("1",) * sql.count("?")
    steps = [row[3] for row in connection.execute(f"explain query plan {sql}", values)]
    return [step for step in steps if re.match(r"(SCAN|SEARCH) (postroom_|entry|earl|later)", step)]


@pytest.mark.parametrize("name", PLANS)
def test_the_relays_queries_use_their_indexes(connection: sqlite3.Connection, name: str) -> None:
    steps = plan(connection, SQL[name].replace("{columns}", SQL["columns"]))

    assert len(steps) == len(PLANS[name])
    for step, expected in zip(steps, PLANS[name], strict=True):
        assert expected in step
        assert name.startswith("count-") or step.startswith("SEARCH")


def test_no_query_of_the_relay_is_left_out() -> None:
    """What is not in the table of plans reads small tables, or is a person's."""
    others = {
        *("insert", "mark", "tables", "version", "migrated", "renew", "relays", "suspect"),
        *("forget", "lanes", "new-lane", "pass-lane", "give-lane", "leave-lanes", "places"),
        *("last-place", "count-inbox", "count-lanes", "find", "match", "columns"),
        *("record", "record-more", "records"),
    }
    fragments = {name for name in SQL if name.startswith(("where-", "index-"))}

    assert SQL.keys() - fragments - others == PLANS.keys()


@pytest.mark.parametrize("state", FOUND)
@pytest.mark.parametrize("name", ["find", "match"])
def test_rows_of_rare_states_are_found_by_their_index(
    connection: sqlite3.Connection, name: str, state: State
) -> None:
    conditions = f"{SQL['where-seq']} and {SQL[f'where-{state}']} and {SQL['where-route']}"
    sql = SQL[name].replace("{columns}", SQL["columns"]).replace("{conditions}", conditions)

    (step,) = plan(connection, sql.replace("{index}", SQL.get(f"index-{state}", "")))

    assert FOUND[state] in step


async def test_a_long_queue_behind_one_key_costs_the_others_nothing(
    sqlite_store: SqliteStore, put: Put
) -> None:
    """Counted in instructions of SQLite, so that the machine's speed does not matter."""
    store = sqlite_store
    lanes = await store.lease(
        "relay", routes={"default": True}, lease=15 * SECOND, renewal=5 * SECOND
    )

    async def cost() -> int:
        put(store, *(Message(type="t", payload=b"", key=f"key-{n}") for n in range(50)))
        counted = 0

        def count() -> int:
            nonlocal counted
            counted += 1
            return 0

        await store._file.run(lambda work: work.connection.set_progress_handler(count, 10))
        entries = await store.read(lanes, limit=50, per_lane=50, max_bytes=1_000_000)
        settled = [Settled(entry, Sent()) for entry in entries]
        assert len(await store.settle(lanes, settled, keep=False)) == 50
        await store.sweep(lanes, limit=50, orphans=True)
        await store._file.run(lambda work: work.connection.set_progress_handler(None, 0))
        return counted

    alone = await cost()
    put(store, *(Message(type="t", payload=b"", key="hot") for _ in range(10_000)))
    head, *rest = await store.read(lanes, limit=10_000, per_lane=10_000, max_bytes=1_000_000)
    await store.settle(lanes, [Settled(head, Retry(delay=60 * SECOND, error=""))], keep=False)
    assert await store.hold(lanes, rest) == 9_999

    beside = await cost()

    assert beside < alone * 1.5
    assert len(await store.find(Query(states=[State.HELD]), limit=20_000)) == 9_999
