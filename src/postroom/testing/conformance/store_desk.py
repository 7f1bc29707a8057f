"""What people are promised: to find rows, and to change exactly those at rest that they mean."""

from datetime import datetime, timedelta
from typing import Protocol

import pytest

from postroom.message import State
from postroom.store import Query
from postroom.testing.conformance.stage import (
    ALL,
    SECOND,
    Stage,
    StoreHooks,
    dead,
    message,
    retry,
    sent,
)


class Act(Protocol):
    """One of the three changes below."""

    __name__: str

    async def __call__(
        self, stage: Stage, query: Query, *, limit: int = ALL, dry_run: bool = False
    ) -> int:
        """Do it as somebody; return how many rows."""
        ...


async def replay(stage: Stage, query: Query, *, limit: int = ALL, dry_run: bool = False) -> int:
    """Replay as somebody."""
    return await stage.store.replay(query, limit=limit, actor="ada", dry_run=dry_run)


async def discard(stage: Stage, query: Query, *, limit: int = ALL, dry_run: bool = False) -> int:
    """Discard as somebody."""
    return await stage.store.discard(query, limit=limit, actor="ada", dry_run=dry_run)


async def release(stage: Stage, query: Query, *, limit: int = ALL, dry_run: bool = False) -> int:
    """Release as somebody."""
    return await stage.store.release(query, limit=limit, actor="ada", dry_run=dry_run)


async def one_of_each(stage: Stage) -> None:
    """Bring about one row in every state, named after it, and a parked one."""
    lanes = await stage.lease()
    names = ("sent", "waiting", "dead", "parked")
    await stage.put(*(message(name, key=f"key of {name}") for name in names))
    await stage.put(message("held", key="key of parked"))
    entries = {entry.message.id: entry for entry in await stage.read(lanes)}
    await stage.settle(
        lanes,
        sent(entries["sent"]),
        retry(entries["waiting"], 60 * SECOND),
        dead(entries["dead"]),
        dead(entries["parked"], blocks=True),
    )
    assert await stage.hold_all_behind(lanes) == 1
    await stage.put(message("scheduled", deliver_at=stage.clock.now() + 60 * SECOND))
    await stage.put(message("ready"))


class FindingTests(StoreHooks):
    """`stats` and `find`."""

    async def test_stats_of_an_empty_store(self, stage: Stage) -> None:
        stats = await stage.store.stats()

        assert sum(sum(states.values()) for states in stats.counts.values()) == 0
        assert (dict(stats.oldest_unsent_at), stats.blocked_keys) == ({}, 0)
        assert (list(stats.relays), dict(stats.inbox)) == ([], {})

    async def test_rows_are_counted_by_route_and_state(self, stage: Stage) -> None:
        await one_of_each(stage)
        await stage.put(message("s1"), message("s2"), route="slow")

        counts = (await stage.store.stats()).counts

        given = {
            route: {state: count for state, count in states.items() if count}
            for route, states in counts.items()
        }
        assert given == {
            "default": {state: 2 if state is State.DEAD else 1 for state in State},
            "slow": {State.READY: 2},
        }

    async def test_blocked_keys_are_those_with_something_in_front(self, stage: Stage) -> None:
        await one_of_each(stage)

        assert (await stage.store.stats()).blocked_keys == 2

    async def test_held_rows_alone_block_nothing(self, stage: Stage) -> None:
        await one_of_each(stage)
        await discard(stage, Query(states=[State.WAITING, State.DEAD]))

        assert await stage.ids(State.HELD) == ["held"]
        assert (await stage.store.stats()).blocked_keys == 0

    async def test_the_age_of_a_backlog_is_seen_without_a_relay(self, stage: Stage) -> None:
        start = stage.clock.now()
        await stage.put(message("old", deliver_at=start + timedelta(days=1)))
        stage.clock.advance(10)
        await stage.put(message("first"))
        stage.clock.advance(10)
        await stage.put(message("second"))
        await stage.put(message("slow"), route="slow")

        oldest = (await stage.store.stats()).oldest_unsent_at

        assert oldest == {"default": start + 10 * SECOND, "slow": start + 20 * SECOND}

    @pytest.mark.parametrize("state", [State.WAITING, State.HELD])
    async def test_what_waits_is_backlog_too(self, stage: Stage, state: State) -> None:
        await one_of_each(stage)
        start = stage.clock.now()
        stage.clock.advance(10)
        await stage.put(message("new"))
        others = {State.WAITING, State.HELD, State.READY} - {state}
        await discard(stage, Query(states=[State.WAITING, State.HELD], ids=[*others]))
        lanes = await stage.lease()
        await stage.settle(lanes, *(sent(entry) for entry in await stage.read(lanes)))

        assert (await stage.store.stats()).oldest_unsent_at == {"default": start}

    async def test_a_backlog_that_was_sent_has_no_age(self, stage: Stage) -> None:
        lanes = await stage.lease()
        await stage.put(message("a"))
        await stage.send_all(lanes)

        assert dict((await stage.store.stats()).oldest_unsent_at) == {}

    @pytest.mark.parametrize("state", list(State))
    async def test_rows_are_found_by_state(self, stage: Stage, state: State) -> None:
        await one_of_each(stage)

        rows = await stage.rows(state)

        assert rows
        assert {row.state for row in rows} == {state}

    async def test_several_states_may_be_named(self, stage: Stage) -> None:
        await one_of_each(stage)

        assert await stage.ids(State.SENT, State.HELD, State.DEAD) == [
            "sent",
            "dead",
            "parked",
            "held",
        ]

    async def test_rows_are_found_by_every_field(self, stage: Stage) -> None:
        start = stage.clock.now()
        await stage.put(message("a", key="k"), message("b", kind="other", topic="elsewhere"))
        stage.clock.advance(1)
        await stage.put(message("c"), route="slow")
        queries = {
            "all": Query(),
            "ids": Query(ids=["a", "c", "none"]),
            "route": Query(route="slow"),
            "key": Query(key="k"),
            "type": Query(type="other"),
            "topic": Query(topic="elsewhere"),
            "from": Query(created_from=start + SECOND),
            "before": Query(created_before=start + SECOND),
            "both": Query(created_from=start, created_before=start),
            "together": Query(key="k", type="other"),
        }

        found = {
            name: "".join(row.message.id for row in await stage.store.find(query, limit=ALL))
            for name, query in queries.items()
        }

        assert found == {
            "all": "abc",
            "ids": "ac",
            "route": "c",
            "key": "a",
            "type": "b",
            "topic": "b",
            "from": "c",
            "before": "ab",
            "both": "",
            "together": "",
        }

    async def test_rows_are_found_page_by_page(self, stage: Stage) -> None:
        await stage.put(*(message(str(n)) for n in range(7)))
        pages, after = [], 0

        while page := await stage.store.find(Query(after_seq=after), limit=3):
            pages.append([row.message.id for row in page])
            after = page[-1].seq

        assert pages == [["0", "1", "2"], ["3", "4", "5"], ["6"]]


class ChangingTests(StoreHooks):
    """`replay`, `discard`, `release`, `prune` and `audit`."""

    async def test_a_dead_row_is_replayed_at_the_end_of_the_order(self, stage: Stage) -> None:
        await one_of_each(stage)
        last = max(row.seq for row in await stage.rows())

        assert await replay(stage, Query(ids=["dead"])) == 1

        row = await stage.row("dead")
        assert (row.state, row.attempts, row.blocks) == (State.READY, 0, False)
        assert (row.error, row.settled_at) == (None, None)
        assert row.seq > last

    async def test_a_parked_row_is_replayed_in_its_place(self, stage: Stage) -> None:
        await one_of_each(stage)
        place = (await stage.row("parked")).seq

        assert await replay(stage, Query(ids=["parked"])) == 1

        row = await stage.row("parked")
        assert (row.state, row.attempts, row.blocks) == (State.READY, 0, False)
        assert row.seq == place

    async def test_replay_means_dead_rows_unless_sent_ones_are_named(self, stage: Stage) -> None:
        await one_of_each(stage)
        last = max(row.seq for row in await stage.rows())

        assert await replay(stage, Query(), dry_run=True) == 2
        assert await replay(stage, Query(states=[State.HELD, State.READY])) == 0
        assert await replay(stage, Query(states=[State.SENT, State.DEAD]), dry_run=True) == 3
        assert await replay(stage, Query(states=[State.SENT])) == 1

        row = await stage.row("sent")
        assert row.state is State.READY
        assert row.seq > last

    async def test_replayed_rows_keep_their_order(self, stage: Stage) -> None:
        lanes = await stage.lease()
        await stage.put(*(message(str(n), key="k") for n in range(5)))
        await stage.settle(lanes, *(dead(entry) for entry in await stage.read(lanes)))

        assert await replay(stage, Query(), limit=3) == 3

        assert await stage.send_all(lanes) == ["0", "1", "2"]

    async def test_only_rows_at_rest_are_discarded(self, stage: Stage) -> None:
        await one_of_each(stage)

        assert await discard(stage, Query(states=[State.SENT, State.READY])) == 0
        assert await discard(stage, Query(states=[State.WAITING])) == 1
        assert await discard(stage, Query(), limit=2) == 2
        assert await discard(stage, Query()) == 2

        assert await stage.ids() == ["sent", "ready"]

    async def test_release_lets_a_key_go_on(self, stage: Stage) -> None:
        await one_of_each(stage)

        assert await release(stage, Query()) == 1

        row = await stage.row("parked")
        assert (row.state, row.blocks) == (State.DEAD, False)
        assert await release(stage, Query()) == 0

    async def test_release_means_what_the_query_says(self, stage: Stage) -> None:
        await one_of_each(stage)

        assert await release(stage, Query(key="key of dead")) == 0
        assert await release(stage, Query(states=[State.WAITING])) == 0
        assert await release(stage, Query(key="key of parked"), limit=0) == 0
        assert await release(stage, Query(key="key of parked")) == 1

    @pytest.mark.parametrize("act", [replay, discard, release], ids=lambda act: act.__name__)
    async def test_a_dry_run_counts_exactly_and_changes_nothing(
        self, stage: Stage, act: Act
    ) -> None:
        await one_of_each(stage)
        before = await stage.rows()
        query = Query(states=list(State))

        promised = await act(stage, query, dry_run=True)

        assert await stage.rows() == before
        assert await stage.store.audit(limit=9) == []
        assert await act(stage, query) == promised > 0

    @pytest.mark.parametrize("act", [replay, discard, release], ids=lambda act: act.__name__)
    async def test_who_did_what_is_kept(self, stage: Stage, act: Act) -> None:
        await one_of_each(stage)

        count = await act(stage, Query(states=list(State)))

        (record,) = await stage.store.audit(limit=9)
        assert (record.actor, record.action, record.count) == ("ada", act.__name__, count)
        assert (record.at, bool(record.detail)) == (stage.clock.now(), True)

    async def test_nothing_done_is_nothing_kept(self, stage: Stage) -> None:
        for act in (replay, discard, release):
            assert await act(stage, Query()) == 0

        assert await stage.store.audit(limit=9) == []

    async def test_the_newest_record_comes_first(self, stage: Stage) -> None:
        await one_of_each(stage)
        await release(stage, Query())
        stage.clock.advance(1)
        await replay(stage, Query(ids=["dead"]))
        await discard(stage, Query(ids=["waiting"]))

        records = await stage.store.audit(limit=2)

        assert [record.action for record in records] == ["discard", "replay"]

    async def test_prune_takes_what_is_older_and_was_sent(self, stage: Stage) -> None:
        await one_of_each(stage)
        at = stage.clock.now()
        await stage.mark("shipping", "1")
        stage.clock.advance(1)
        await stage.mark("shipping", "2")

        assert await prune(stage, at, at, dry_run=True) == (0, 0)
        assert await prune(stage, at, at) == (0, 0)
        assert await prune(stage, at + SECOND, None) == (1, 0)
        assert await prune(stage, None, at + SECOND) == (0, 1)

        assert "sent" not in await stage.ids()
        assert len(await stage.ids()) == 6
        assert await stage.mark("shipping", "2") == 0
        assert await stage.mark("shipping", "1") == 1

    async def test_prune_goes_on_until_nothing_older_is_left(self, stage: Stage) -> None:
        lanes = await stage.lease()
        await stage.put(*(message(str(n)) for n in range(25)))
        await stage.send_all(lanes)
        for number in range(7):
            await stage.mark("shipping", str(number))
        later = stage.clock.now() + SECOND

        dry = await prune(stage, later, later, dry_run=True)
        rows = len(await stage.ids())
        real = await prune(stage, later, later)

        assert dry == real == (25, 7)
        assert rows == 25
        assert await stage.ids() == []
        (record,) = await stage.store.audit(limit=9)
        assert (record.actor, record.action, record.count) == ("ada", "prune", 32)
        moment = later.isoformat()
        assert record.detail == f"sent before {moment}, inbox before {moment}"


async def prune(
    stage: Stage,
    sent_before: datetime | None,
    inbox_before: datetime | None,
    *,
    dry_run: bool = False,
) -> tuple[int, int]:
    """Prune ten rows at a time, as somebody."""
    return await stage.store.prune(
        sent_before=sent_before,
        inbox_before=inbox_before,
        limit=10,
        actor="ada",
        dry_run=dry_run,
    )
