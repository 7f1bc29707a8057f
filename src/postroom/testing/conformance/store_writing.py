"""What `insert` and `mark` promise in the caller's transaction."""

from contextlib import suppress
from datetime import timedelta

import pytest

from postroom.lane import lane_of
from postroom.message import Message, State
from postroom.testing.conformance.stage import SECOND, Stage, StoreHooks, message, retry, sent

_PAIRS = [
    ("Order-1", "order-1"),
    ("1", "1 "),
    ("caf\N{LATIN SMALL LETTER E WITH ACUTE}", "cafe\N{COMBINING ACUTE ACCENT}"),
    ("stra\N{LATIN SMALL LETTER SHARP S}e", "strasse"),
    ("x" * 10_000 + "1", "x" * 10_000 + "2"),
    ("1", "01"),
]


class Rollback(Exception):
    """Raised by a test to leave its transaction."""


class WritingTests(StoreHooks):
    """`insert` and `mark`."""

    async def test_a_row_is_seen_after_the_commit_and_not_before(self, stage: Stage) -> None:
        lanes = await stage.lease()

        async with stage.hooks.transaction(stage.store) as run:
            await run(stage.insert(message("a")))
            assert await stage.ids() == []
            assert await stage.read(lanes) == []

        assert await stage.ids() == ["a"]
        assert [entry.message.id for entry in await stage.read(lanes)] == ["a"]

    async def test_a_rollback_leaves_nothing(self, stage: Stage) -> None:
        with suppress(Rollback):
            async with stage.hooks.transaction(stage.store) as run:
                await run(stage.insert(message("a")))
                await run(stage.store.mark("shipping", "a"))
                raise Rollback

        assert await stage.ids() == []
        assert (await stage.store.stats()).inbox.get("shipping", 0) == 0

    async def test_every_field_makes_the_round_trip(self, stage: Stage) -> None:
        now = stage.clock.now()
        full = Message(
            id="0198c0de-0000-7000-8000-000000000001",
            type="shop.order-placed",
            payload=bytes(range(256)),
            content_type="application/octet-stream",
            key="order \N{SNOWMAN} 1",
            version=2**53 + 1,
            headers={"traceparent": "00-1", "name": "J\N{LATIN SMALL LETTER O WITH DIAERESIS}rg"},
            topic="orders",
            deliver_at=now + timedelta(days=400, microseconds=1),
            expires_at=now + timedelta(days=800, microseconds=999_999),
        )
        bare = Message(id="bare", type="t", payload=b"")

        await stage.put(full, bare)

        first, second = await stage.rows()
        assert (first.message, second.message) == (full, bare)
        assert dict(first.message.headers) == dict(full.headers)
        assert first.created_at == second.created_at == now

    async def test_a_new_row_has_no_history(self, stage: Stage) -> None:
        await stage.put(message("a", key="k"))

        row = await stage.row("a")
        assert (row.attempts, row.blocks, row.behind) == (0, False, False)
        assert (row.due_at, row.settled_at, row.error) == (None, None, None)
        assert (row.route, row.state) == ("default", State.READY)

    async def test_one_call_keeps_the_order_of_its_messages(self, stage: Stage) -> None:
        ids = [f"{number:04}" for number in reversed(range(1_000))]

        await stage.put(*(message(one) for one in ids))

        assert await stage.ids() == ids

    async def test_later_transactions_come_later(self, stage: Stage) -> None:
        for one in ("c", "a", "b"):
            await stage.put(message(one))

        rows = await stage.rows()
        assert [row.message.id for row in rows] == ["c", "a", "b"]
        assert [row.seq for row in rows] == sorted({row.seq for row in rows})

    async def test_the_number_of_a_deleted_row_is_never_given_again(self, stage: Stage) -> None:
        lanes = await stage.lease()
        await stage.put(message("a"))
        (entry,) = await stage.read(lanes)
        await stage.settle(lanes, sent(entry), keep=False)

        await stage.put(message("b"))

        assert (await stage.row("b")).seq > entry.seq

    async def test_a_row_stands_in_the_lane_of_its_key_or_of_its_id(self, stage: Stage) -> None:
        await stage.put(*(message(str(n), key=f"key-{n}") for n in range(20)), message("no key"))

        for row in await stage.rows():
            assert row.lane == lane_of(row.message.key, row.message.id)

    async def test_only_a_future_moment_makes_a_row_scheduled(self, stage: Stage) -> None:
        now = stage.clock.now()

        await stage.put(
            message("future", deliver_at=now + SECOND),
            message("now", deliver_at=now),
            message("past", deliver_at=now - SECOND),
        )

        states = {row.message.id: (row.state, row.due_at) for row in await stage.rows()}
        assert states == {
            "future": (State.SCHEDULED, now + SECOND),
            "now": (State.READY, None),
            "past": (State.READY, None),
        }

    async def test_a_mark_affects_one_row_at_the_first_sight_only(self, stage: Stage) -> None:
        assert await stage.mark("shipping", "1") == 1
        assert await stage.mark("shipping", "1") == 0
        assert await stage.mark("shipping", "2") == 1

    async def test_each_consumer_sees_a_message_for_itself(self, stage: Stage) -> None:
        assert await stage.mark("shipping", "1") == 1
        assert await stage.mark("billing", "1") == 1

        assert (await stage.store.stats()).inbox == {"shipping": 1, "billing": 1}

    async def test_a_second_mark_in_one_transaction_affects_nothing(self, stage: Stage) -> None:
        async with stage.hooks.transaction(stage.store) as run:
            assert await run(stage.store.mark("shipping", "1")) == 1
            assert await run(stage.store.mark("shipping", "1")) == 0

    async def test_a_mark_that_was_rolled_back_was_never_there(self, stage: Stage) -> None:
        with suppress(Rollback):
            async with stage.hooks.transaction(stage.store) as run:
                assert await run(stage.store.mark("shipping", "1")) == 1
                raise Rollback

        assert await stage.mark("shipping", "1") == 1

    @pytest.mark.parametrize("pair", _PAIRS, ids=range(len(_PAIRS)))
    async def test_ids_are_compared_as_bytes(self, stage: Stage, pair: tuple[str, str]) -> None:
        first, second = pair

        assert await stage.mark("shipping", first) == 1
        assert await stage.mark("shipping", second) == 1
        assert await stage.mark("shipping", first) == 0
        assert await stage.mark("shipping", second) == 0

    @pytest.mark.parametrize("pair", _PAIRS[:4], ids=range(4))
    async def test_names_of_consumers_are_compared_as_bytes(
        self, stage: Stage, pair: tuple[str, str]
    ) -> None:
        first, second = pair

        assert await stage.mark(first, "1") == 1
        assert await stage.mark(second, "1") == 1

    @pytest.mark.parametrize("pair", _PAIRS[:4], ids=range(4))
    async def test_keys_are_compared_as_bytes(self, stage: Stage, pair: tuple[str, str]) -> None:
        """A blocked key does not hold back another that only looks alike."""
        first, second = pair
        lanes = await stage.lease()
        await stage.put(message("head", key=first))
        (head,) = await stage.read(lanes)
        await stage.settle(lanes, retry(head))

        await stage.put(message("same", key=first), message("other", key=second))

        behind = {entry.message.id: entry.behind for entry in await stage.read(lanes)}
        assert behind == {"same": True, "other": False}
