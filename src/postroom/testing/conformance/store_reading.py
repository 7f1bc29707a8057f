"""What `read` promises: order, limits, and which rows must wait."""

from postroom.lane import LANES, Lane, lane_of
from postroom.store import Query
from postroom.testing.conformance.stage import (
    ALL,
    Stage,
    StoreHooks,
    dead,
    message,
    retry,
    sent,
)


class ReadingTests(StoreHooks):
    """`read`."""

    async def test_ready_rows_come_in_order_within_each_lane(self, stage: Stage) -> None:
        lanes = await stage.lease()
        await stage.put(*(message(str(n), key=f"key-{n % 7}") for n in range(100)))

        entries = await stage.read(lanes)

        assert len(entries) == 100
        for number in range(LANES):
            seqs = [entry.seq for entry in entries if entry.lane == number]
            assert seqs == sorted(seqs)

    async def test_reading_changes_nothing(self, stage: Stage) -> None:
        lanes = await stage.lease()
        await stage.put(message("a"), message("b"))

        assert await stage.read(lanes) == await stage.read(lanes)

    async def test_only_rows_of_the_given_lanes_are_read(self, stage: Stage) -> None:
        lanes = await stage.lease(routes={"default": True, "slow": True})
        await stage.put(*(message(str(n)) for n in range(100)))
        await stage.put(message("other route"), route="slow")
        some = [lane for lane in lanes if lane.route == "default" and lane.number < 10]

        entries = await stage.read(some)

        expected = [str(n) for n in range(100) if lane_of(None, str(n)) < 10]
        assert sorted(entry.message.id for entry in entries) == sorted(expected)

    async def test_no_lanes_give_no_rows(self, stage: Stage) -> None:
        await stage.put(message("a"))

        assert await stage.read([]) == []

    async def test_at_most_so_many_rows_are_read(self, stage: Stage) -> None:
        lanes = await stage.lease()
        await stage.put(*(message(str(n), key="k") for n in range(20)))

        entries = await stage.store.read(lanes, limit=7, per_lane=ALL, max_bytes=ALL)

        assert [entry.message.id for entry in entries] == [str(n) for n in range(7)]

    async def test_at_most_so_many_rows_of_one_lane_are_read(self, stage: Stage) -> None:
        lanes = await stage.lease()
        await stage.put(*(message(str(n), key="k") for n in range(20)))
        await stage.put(*(message(f"other {n}", key="m") for n in range(2)))
        assert lane_of("k", "") != lane_of("m", "")

        entries = await stage.store.read(lanes, limit=20, per_lane=3, max_bytes=ALL)

        ids = {entry.message.id for entry in entries}
        assert ids == {"0", "1", "2", "other 0", "other 1"}

    async def test_the_payloads_of_a_batch_have_a_limit(self, stage: Stage) -> None:
        lanes = await stage.lease()
        await stage.put(*(message(str(n), key="k", payload=b"x" * 100) for n in range(5)))

        entries = await stage.store.read(lanes, limit=9, per_lane=9, max_bytes=250)

        assert [entry.message.id for entry in entries] == ["0", "1"]

    async def test_one_row_is_read_however_large_it_is(self, stage: Stage) -> None:
        lanes = await stage.lease()
        await stage.put(message("large", payload=b"x" * 100_000), message("small"))

        entries = await stage.store.read(lanes, limit=9, per_lane=9, max_bytes=10)

        assert len(entries) == 1

    async def test_rows_in_flight_are_left_out(self, stage: Stage) -> None:
        lanes = await stage.lease()
        await stage.put(*(message(str(n), key="k") for n in range(6)))
        flying = [entry.seq for entry in await stage.read(lanes)][:3]

        entries = await stage.store.read(
            lanes, limit=2, per_lane=2, max_bytes=ALL, skip=frozenset(flying)
        )

        assert [entry.message.id for entry in entries] == ["3", "4"]

    async def test_a_waiting_head_has_the_rest_of_its_key_behind(self, stage: Stage) -> None:
        lanes = await stage.lease()
        await stage.put(message("head", key="k"))
        (head,) = await stage.read(lanes)
        await stage.settle(lanes, retry(head))

        await stage.put(message("next", key="k"), message("other", key="m"), message("no key"))

        behind = {entry.message.id: entry.behind for entry in await stage.read(lanes)}
        assert behind == {"next": True, "other": False, "no key": False}

    async def test_a_held_row_has_later_ones_behind(self, stage: Stage) -> None:
        """Also after a takeover: the table alone decides."""
        lanes = await stage.lease()
        await stage.put(message("1", key="k"), message("2", key="k"))
        first, second = await stage.read(lanes)
        await stage.settle(lanes, retry(first))
        await stage.store.hold(lanes, [second])
        await stage.store.discard(Query(ids=["1"]), limit=1, actor="test", dry_run=False)

        await stage.put(message("3", key="k"))

        assert [entry.behind for entry in await stage.read(lanes)] == [True]

    async def test_a_parked_head_has_the_rest_of_its_key_behind(self, stage: Stage) -> None:
        lanes = await stage.lease()
        await stage.put(message("1", key="k"), message("2", key="k"))
        first, _ = await stage.read(lanes)
        await stage.settle(lanes, dead(first, blocks=True))

        assert [entry.behind for entry in await stage.read(lanes)] == [True]

    async def test_what_went_on_or_was_sent_keeps_nothing_back(self, stage: Stage) -> None:
        lanes = await stage.lease()
        await stage.put(*(message(str(n), key="k") for n in range(3)))
        first, second, _ = await stage.read(lanes)
        await stage.settle(lanes, sent(first), dead(second))

        assert [entry.behind for entry in await stage.read(lanes)] == [False]

    async def test_a_later_row_keeps_nothing_back(self, stage: Stage) -> None:
        lanes = await stage.lease()
        await stage.put(message("1", key="k"), message("2", key="k"))
        _, second = await stage.read(lanes)
        await stage.settle(lanes, dead(second, blocks=True))

        assert [entry.behind for entry in await stage.read(lanes)] == [False]

    async def test_the_same_key_on_another_route_is_another_key(self, stage: Stage) -> None:
        lanes = await stage.lease(routes={"default": True, "slow": True})
        await stage.put(message("head", key="k"), route="slow")
        (head,) = await stage.read(lanes)
        await stage.settle(lanes, retry(head))

        await stage.put(message("next", key="k"))

        assert [entry.behind for entry in await stage.read(lanes)] == [False]

    async def test_rows_without_a_key_never_wait_for_each_other(self, stage: Stage) -> None:
        lanes = await stage.lease()
        await stage.put(message("1"), message("2"))
        first, _ = await stage.read(lanes)
        await stage.settle(lanes, retry(first))

        assert [entry.behind for entry in await stage.read(lanes)] == [False]

    async def test_reading_waits_for_no_writer(self, stage: Stage) -> None:
        lanes = await stage.lease()
        await stage.put(message("a"))

        async with stage.hooks.transaction(stage.store) as run:
            await run(stage.insert(message("b")))
            entries = await stage.read(lanes)
            stats = await stage.store.stats()

        assert [entry.message.id for entry in entries] == ["a"]
        assert sum(stats.counts["default"].values()) == 1

    async def test_lanes_of_a_route_that_nobody_knows_give_no_rows(self, stage: Stage) -> None:
        assert await stage.read([Lane("unknown", 0, 1)]) == []
