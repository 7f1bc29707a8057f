"""The order of a key: rows are held behind their head, and follow it in order."""

from datetime import timedelta

from postroom.lane import Lane
from postroom.message import Entry, State
from postroom.testing.conformance.stage import SECOND, Stage, StoreHooks, dead, message, retry, sent


class OrderTests(StoreHooks):
    """The order of a key, through hold and release."""

    async def test_held_rows_follow_their_head_in_order(self, stage: Stage) -> None:
        lanes, head = await blocked(stage, 5)
        assert await stage.ids(State.HELD) == ["1", "2", "3", "4"]
        assert all(row.blocks for row in await stage.rows(State.HELD))

        await make_ready_again(stage)
        await stage.settle(lanes, sent(head))

        assert await stage.send_all(lanes) == ["1", "2", "3", "4"]

    async def test_held_rows_follow_a_head_that_was_given_up(self, stage: Stage) -> None:
        lanes, head = await blocked(stage, 3)
        await make_ready_again(stage)

        await stage.settle(lanes, dead(head, blocks=False))

        assert await stage.send_all(lanes) == ["1", "2"]

    async def test_held_rows_stay_behind_a_parked_head(self, stage: Stage) -> None:
        lanes, head = await blocked(stage, 3)
        await make_ready_again(stage)

        await stage.settle(lanes, dead(head, blocks=True))
        await stage.store.sweep(lanes, limit=10, orphans=True)

        assert await stage.ids(State.HELD) == ["1", "2"]
        assert await stage.read(lanes) == []

    async def test_held_rows_stay_behind_a_head_refused_again(self, stage: Stage) -> None:
        lanes, head = await blocked(stage, 3)
        await make_ready_again(stage)

        await stage.settle(lanes, retry(head))

        assert await stage.ids(State.HELD) == ["1", "2"]

    async def test_other_keys_are_not_released_with_it(self, stage: Stage) -> None:
        lanes, head = await blocked(stage, 2)
        await stage.put(message("m1", key="m"), message("m2", key="m"))
        first = next(e for e in await stage.read(lanes) if e.message.id == "m1")
        await stage.settle(lanes, retry(first, 60 * SECOND))
        await stage.hold_all_behind(lanes)
        await make_ready_again(stage)

        await stage.settle(lanes, sent(head))

        assert await stage.ids(State.HELD) == ["m2"]

    async def test_release_stops_at_the_next_row_that_blocks(self, stage: Stage) -> None:
        lanes = await stage.lease()
        await stage.put(*(message(str(n), key="k") for n in range(5)))
        entries = await stage.read(lanes)
        await stage.settle(lanes, retry(entries[0]), dead(entries[2], blocks=True))
        await stage.hold_all_behind(lanes)
        await make_ready_again(stage)

        (head,) = await stage.read(lanes)
        await stage.settle(lanes, sent(head))

        assert await stage.ids(State.READY) == ["1"]
        assert await stage.ids(State.HELD) == ["3", "4"]

    async def test_a_newcomer_queues_behind_the_held_rows(self, stage: Stage) -> None:
        lanes, head = await blocked(stage, 4)
        await stage.put(message("new", key="k"))
        await make_ready_again(stage)
        await stage.settle(lanes, sent(head))

        assert await stage.send_all(lanes) == ["1", "2", "3", "new"]

    async def test_a_long_queue_drains_without_a_sweep(self, stage: Stage) -> None:
        """Chunk after chunk, each released by what the one before it settled."""
        lanes, head = await blocked(stage, 1_300)
        await make_ready_again(stage)
        await stage.settle(lanes, sent(head))

        sent_ids = await stage.send_all(lanes)

        assert sent_ids == [str(n) for n in range(1, 1_300)]
        assert await stage.ids(State.HELD, State.READY) == []

    async def test_a_long_queue_drains_one_by_one(self, stage: Stage) -> None:
        lanes, head = await blocked(stage, 40)
        await make_ready_again(stage)
        await stage.settle(lanes, sent(head))
        ids = []

        while entries := await stage.read(lanes, limit=1):
            assert not entries[0].behind
            await stage.settle(lanes, sent(entries[0]))
            ids.append(entries[0].message.id)

        assert ids == [str(n) for n in range(1, 40)]

    async def test_order_survives_a_takeover(self, stage: Stage) -> None:
        await blocked(stage, 4)
        await stage.store.leave("relay-1")
        lanes = await stage.lease("relay-2")
        await stage.put(message("new", key="k"))

        before = [entry.behind for entry in await stage.read(lanes)]
        stage.clock.advance(2)
        await stage.store.sweep(lanes, limit=10, orphans=False)

        assert before == [True]
        assert await stage.send_all(lanes) == ["0", "1", "2", "3", "new"]

    async def test_only_ready_rows_are_held(self, stage: Stage) -> None:
        lanes, head = await blocked(stage, 2)
        (held,) = await stage.rows(State.HELD)

        assert await stage.store.hold(lanes, [head, held]) == 0
        assert await stage.state("0") is State.WAITING

    async def test_held_rows_are_not_read(self, stage: Stage) -> None:
        lanes, _ = await blocked(stage, 3)

        assert await stage.read(lanes) == []


async def blocked(stage: Stage, count: int) -> tuple[list[Lane], Entry]:
    """Put that many rows of one key, refuse the first and hold the rest."""
    lanes = list(await stage.lease())
    await stage.put(*(message(str(n), key="k") for n in range(count)))
    head = (await stage.read(lanes, limit=1))[0]
    await stage.settle(lanes, retry(head))
    assert await stage.hold_all_behind(lanes) == count - 1
    return lanes, head


async def make_ready_again(stage: Stage) -> None:
    """Let backoffs of a second end."""
    stage.clock.advance(timedelta(seconds=2))
    lanes = await stage.lease()
    await stage.store.sweep(lanes, limit=100, orphans=False)
