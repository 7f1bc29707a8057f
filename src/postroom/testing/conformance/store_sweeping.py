"""What `sweep` promises: what is due becomes ready, and nothing stays held for nothing."""

from datetime import timedelta

from postroom.message import State
from postroom.store import Query, Swept
from postroom.testing.conformance.stage import (
    SECOND,
    Stage,
    StoreHooks,
    dead,
    message,
    retry,
    sent,
)


class SweepingTests(StoreHooks):
    """`sweep`."""

    async def test_nothing_due_changes_nothing(self, stage: Stage) -> None:
        lanes = await stage.lease()
        await stage.put(message("a"))
        before = await stage.rows()

        swept = await stage.store.sweep(lanes, limit=10, orphans=True)

        assert swept == Swept(due=0, scheduled=0, freed=0, next_due=None)
        assert await stage.rows() == before

    async def test_a_retry_that_is_due_keeps_its_place(self, stage: Stage) -> None:
        lanes = await stage.lease()
        await stage.put(message("a", key="k"), message("b", key="m"))
        first = next(e for e in await stage.read(lanes) if e.message.id == "a")
        await stage.settle(lanes, retry(first, 3 * SECOND))

        early = await stage.store.sweep(lanes, limit=10, orphans=False)
        stage.clock.advance(3)
        then = await stage.store.sweep(lanes, limit=10, orphans=False)

        assert early == Swept(next_due=stage.clock.now())
        assert then == Swept(due=1)
        row = await stage.row("a")
        assert (row.state, row.seq, row.attempts) == (State.READY, first.seq, 1)
        assert (row.blocks, row.due_at, row.error) == (False, None, "refused")

    async def test_a_scheduled_message_takes_a_place_at_the_end(self, stage: Stage) -> None:
        lanes = await stage.lease()
        now = stage.clock.now()
        await stage.put(message("later", key="k", deliver_at=now + 5 * SECOND))
        await stage.put(message("at once", key="k"))

        early = await stage.store.sweep(lanes, limit=10, orphans=False)
        stage.clock.advance(5)
        then = await stage.store.sweep(lanes, limit=10, orphans=False)

        assert early == Swept(next_due=now + 5 * SECOND)
        assert then == Swept(scheduled=1)
        assert await stage.send_all(lanes) == ["at once", "later"]

    async def test_a_scheduled_message_blocks_nothing_before_it_is_due(self, stage: Stage) -> None:
        lanes = await stage.lease()
        await stage.put(message("later", key="k", deliver_at=stage.clock.now() + SECOND))
        await stage.put(message("at once", key="k"))

        assert [entry.behind for entry in await stage.read(lanes)] == [False]

    async def test_scheduled_messages_come_in_the_order_of_their_time(self, stage: Stage) -> None:
        lanes = await stage.lease()
        now = stage.clock.now()
        await stage.put(*(message(str(n), key="k", deliver_at=now + n * SECOND) for n in (3, 1, 2)))
        stage.clock.advance(10)

        await stage.store.sweep(lanes, limit=10, orphans=False)

        assert await stage.send_all(lanes) == ["1", "2", "3"]

    async def test_a_new_place_is_never_given_twice(self, stage: Stage) -> None:
        lanes = await stage.lease()
        now = stage.clock.now()
        await stage.put(message("later", deliver_at=now + SECOND))
        stage.clock.advance(1)
        await stage.store.sweep(lanes, limit=10, orphans=False)
        place = (await stage.row("later")).seq
        await stage.send_all(lanes)
        await stage.store.prune(
            sent_before=now + 9 * SECOND, inbox_before=None, limit=9, actor="", dry_run=False
        )

        await stage.put(message("new"))

        assert (await stage.row("new")).seq > place

    async def test_each_kind_has_the_limit_for_itself(self, stage: Stage) -> None:
        lanes = await stage.lease()
        now = stage.clock.now()
        await stage.put(*(message(f"a{n}") for n in range(5)))
        await stage.settle(lanes, *(retry(entry) for entry in await stage.read(lanes)))
        await stage.put(*(message(f"s{n}", deliver_at=now + SECOND) for n in range(5)))
        stage.clock.advance(1)

        first = await stage.store.sweep(lanes, limit=3, orphans=False)
        second = await stage.store.sweep(lanes, limit=3, orphans=False)

        assert (first.due, first.scheduled) == (3, 3)
        assert first.next_due is not None
        assert first.next_due <= stage.clock.now()
        assert (second.due, second.scheduled, second.next_due) == (2, 2, None)

    async def test_other_lanes_are_left_alone(self, stage: Stage) -> None:
        lanes = await stage.lease()
        now = stage.clock.now()
        await stage.put(*(message(str(n), deliver_at=now + SECOND) for n in range(50)))
        some = lanes[:20]
        numbers = {lane.number for lane in some}
        stage.clock.advance(1)

        await stage.store.sweep(some, limit=100, orphans=True)

        for row in await stage.rows():
            assert (row.state is State.READY) == (row.lane in numbers)

    async def test_the_next_due_is_that_of_the_given_lanes(self, stage: Stage) -> None:
        lanes = await stage.lease()
        await stage.put(message("a", deliver_at=stage.clock.now() + SECOND))
        lane = (await stage.row("a")).lane
        others = [one for one in lanes if one.number != lane]

        assert (await stage.store.sweep(others, limit=9, orphans=True)).next_due is None

    async def test_a_parked_row_stops_blocking_when_it_expires(self, stage: Stage) -> None:
        lanes = await stage.lease()
        await stage.put(
            message("head", key="k", expires_at=stage.clock.now() + 60 * SECOND),
            message("next", key="k"),
        )
        head, _ = await stage.read(lanes)
        await stage.settle(lanes, dead(head, blocks=True))
        await stage.hold_all_behind(lanes)

        await sweep_fully(stage)
        before = await stage.ids(State.HELD)
        stage.clock.advance(60)
        await sweep_fully(stage)

        assert before == ["next"]
        assert await stage.ids(State.READY) == ["next"]
        assert (await stage.row("head")).blocks is False

    async def test_held_rows_whose_head_was_discarded_are_freed(self, stage: Stage) -> None:
        lanes = await stage.lease()
        await stage.put(*(message(str(n), key="k") for n in range(4)))
        entries = await stage.read(lanes)
        await stage.settle(lanes, retry(entries[0], 600 * SECOND))
        await stage.hold_all_behind(lanes)
        await stage.store.discard(Query(ids=["0"]), limit=1, actor="", dry_run=False)

        ordinary = await stage.store.sweep(lanes, limit=10, orphans=False)
        thorough = await stage.store.sweep(lanes, limit=10, orphans=True)

        assert (ordinary.freed, thorough.freed) == (0, 3)
        assert await stage.send_all(lanes) == ["1", "2", "3"]

    async def test_held_rows_whose_head_was_released_are_freed(self, stage: Stage) -> None:
        lanes = await stage.lease()
        await stage.put(*(message(str(n), key="k") for n in range(4)))
        entries = await stage.read(lanes)
        await stage.settle(lanes, dead(entries[0], blocks=True))
        await stage.hold_all_behind(lanes)
        await stage.store.release(Query(key="k"), limit=1, actor="", dry_run=False)

        await sweep_fully(stage)

        assert await stage.send_all(lanes) == ["1", "2", "3"]

    async def test_freed_rows_stop_at_the_next_one_that_blocks(self, stage: Stage) -> None:
        lanes = await stage.lease()
        await stage.put(*(message(str(n), key="k") for n in range(5)))
        entries = await stage.read(lanes)
        await stage.settle(lanes, retry(entries[0], 600 * SECOND), dead(entries[3], blocks=True))
        await stage.hold_all_behind(lanes)
        await stage.store.discard(Query(ids=["0"]), limit=1, actor="", dry_run=False)

        await sweep_fully(stage)

        assert await stage.ids(State.READY) == ["1", "2"]
        assert await stage.ids(State.HELD) == ["4"]

    async def test_rows_behind_a_head_that_blocks_are_not_freed(self, stage: Stage) -> None:
        lanes = await stage.lease()
        await stage.put(message("0", key="k"), message("1", key="k"))
        head, _ = await stage.read(lanes)
        await stage.settle(lanes, retry(head, timedelta(hours=1)))
        await stage.hold_all_behind(lanes)

        await sweep_fully(stage)

        assert await stage.ids(State.HELD) == ["1"]

    async def test_a_long_queue_is_freed_to_its_end(self, stage: Stage) -> None:
        lanes = await stage.lease()
        ids = [str(n) for n in range(1_200)]
        await stage.put(*(message(one, key="k") for one in ids))
        entries = await stage.read(lanes)
        await stage.settle(lanes, retry(entries[0], 600 * SECOND))
        await stage.hold_all_behind(lanes)
        await stage.store.discard(Query(ids=["0"]), limit=1, actor="", dry_run=False)

        await sweep_fully(stage)

        assert await stage.send_all(lanes) == ids[1:]

    async def test_many_keys_are_freed_within_the_limit(self, stage: Stage) -> None:
        lanes = await stage.lease()
        keys = [f"key-{n}" for n in range(6)]
        await stage.put(*(message(f"{key}/{n}", key=key) for key in keys for n in range(3)))
        heads = [e for e in await stage.read(lanes) if e.message.id.endswith("/0")]
        await stage.settle(lanes, *(retry(head, 600 * SECOND) for head in heads))
        assert await stage.hold_all_behind(lanes) == 12
        await stage.store.discard(Query(states=[State.WAITING]), limit=6, actor="", dry_run=False)

        freed = (await stage.store.sweep(lanes, limit=5, orphans=True)).freed
        await sweep_fully(stage)

        assert 1 <= freed <= 5
        assert len(await stage.ids(State.READY)) + len(await stage.ids(State.HELD)) == 12
        done = await stage.send_all(lanes)
        for key in keys:
            assert [one for one in done if one.startswith(f"{key}/")] == [f"{key}/1", f"{key}/2"]

    async def test_a_replayed_parked_head_goes_before_what_it_held(self, stage: Stage) -> None:
        lanes = await stage.lease()
        await stage.put(*(message(str(n), key="k") for n in range(3)))
        entries = await stage.read(lanes)
        await stage.settle(lanes, dead(entries[0], blocks=True))
        await stage.hold_all_behind(lanes)

        await stage.store.replay(Query(ids=["0"]), limit=1, actor="", dry_run=False)
        await sweep_fully(stage)

        assert await stage.send_all(lanes) == ["0", "1", "2"]

    async def test_a_sent_head_leaves_nothing_for_the_sweep(self, stage: Stage) -> None:
        lanes = await stage.lease()
        await stage.put(message("0", key="k"), message("1", key="k"))
        head, _ = await stage.read(lanes)
        await stage.settle(lanes, retry(head))
        await stage.hold_all_behind(lanes)
        stage.clock.advance(1)
        await stage.store.sweep(lanes, limit=10, orphans=False)
        await stage.settle(lanes, sent(head))

        assert await stage.store.sweep(lanes, limit=10, orphans=True) == Swept()


async def sweep_fully(stage: Stage) -> None:
    """Sweep until a sweep finds nothing, as a relay does."""
    lanes = await stage.lease()
    for _ in range(100):
        swept = await stage.store.sweep(lanes, limit=1_000, orphans=True)
        if swept.due + swept.scheduled + swept.freed == 0:
            return
    raise AssertionError("the sweeps never end")
