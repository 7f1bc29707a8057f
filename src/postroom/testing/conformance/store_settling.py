"""What `settle` and `hold` promise: outcomes, fences, and the order of a key."""

from dataclasses import replace

from postroom.message import State
from postroom.outcome import Dead, Settled
from postroom.testing.conformance.stage import (
    SECOND,
    Stage,
    StoreHooks,
    dead,
    message,
    retry,
    sent,
)


class SettlingTests(StoreHooks):
    """`settle` and `hold`, one entry at a time."""

    async def test_a_sent_row_is_kept_with_its_moment(self, stage: Stage) -> None:
        lanes = await stage.lease()
        await stage.put(message("a", key="k"))
        (entry,) = await stage.read(lanes)

        assert await stage.settle(lanes, sent(entry), keep=True) == {entry.seq}

        row = await stage.row("a")
        assert (row.state, row.settled_at) == (State.SENT, stage.clock.now())
        assert (row.attempts, row.blocks, row.seq) == (0, False, entry.seq)
        assert await stage.read(lanes) == []

    async def test_a_sent_row_is_deleted_where_none_are_kept(self, stage: Stage) -> None:
        lanes = await stage.lease()
        await stage.put(message("a"))
        (entry,) = await stage.read(lanes)

        assert await stage.settle(lanes, sent(entry), keep=False) == {entry.seq}

        assert await stage.ids() == []

    async def test_a_refused_row_waits_for_its_delay(self, stage: Stage) -> None:
        lanes = await stage.lease()
        await stage.put(message("a", key="k"))
        (entry,) = await stage.read(lanes)

        await stage.settle(lanes, retry(entry, 7 * SECOND, "unroutable"))

        row = await stage.row("a")
        assert (row.state, row.blocks, row.attempts) == (State.WAITING, True, 1)
        assert (row.due_at, row.error) == (stage.clock.now() + 7 * SECOND, "unroutable")
        assert await stage.read(lanes) == []

    async def test_a_refused_row_does_not_wait_longer_than_it_lives(self, stage: Stage) -> None:
        lanes = await stage.lease()
        end = stage.clock.now() + 3 * SECOND
        await stage.put(message("a", expires_at=end), message("b", expires_at=end))
        first, second = sorted(await stage.read(lanes), key=lambda entry: entry.seq)

        await stage.settle(lanes, retry(first, 7 * SECOND), retry(second, SECOND))

        assert (await stage.row("a")).due_at == end
        assert (await stage.row("b")).due_at == stage.clock.now() + SECOND

    async def test_a_dead_row_keeps_its_reason(self, stage: Stage) -> None:
        lanes = await stage.lease()
        await stage.put(message("a", key="k"))
        (entry,) = await stage.read(lanes)

        await stage.settle(lanes, dead(entry, error="too large"))

        row = await stage.row("a")
        assert (row.state, row.blocks, row.attempts) == (State.DEAD, False, 1)
        assert (row.error, row.settled_at) == ("too large", stage.clock.now())
        assert row.message == entry.message

    async def test_a_row_may_die_without_an_attempt(self, stage: Stage) -> None:
        lanes = await stage.lease()
        await stage.put(message("a", key="k"))
        (entry,) = await stage.read(lanes)

        outcome = Dead(error="expired", blocks=False, attempted=False)
        await stage.settle(lanes, Settled(entry, outcome))

        assert (await stage.row("a")).attempts == 0

    async def test_attempts_add_up(self, stage: Stage) -> None:
        lanes = await stage.lease()
        await stage.put(message("a", key="k"))
        for _ in range(3):
            (entry,) = await stage.read(lanes)
            await stage.settle(lanes, retry(entry))
            stage.clock.advance(2)
            await stage.store.sweep(lanes, limit=10, orphans=False)

        assert (await stage.row("a")).attempts == 3

    async def test_any_error_text_can_be_kept(self, stage: Stage) -> None:
        """Saving an error must not fail because of its content."""
        lanes = await stage.lease()
        text = "line\nwith 'quotes', \N{SNOWMAN} and \N{PILE OF POO}" * 1_000
        await stage.put(message("a"), message("b"))
        first, second = await stage.read(lanes)

        await stage.settle(lanes, retry(first, error=text), dead(second, error=text))

        assert {row.error for row in await stage.rows()} == {text}

    async def test_outcomes_of_one_batch_are_independent(self, stage: Stage) -> None:
        lanes = await stage.lease()
        await stage.put(message("a"), message("b"), message("c"), message("d"))
        entries = {entry.message.id: entry for entry in await stage.read(lanes)}

        done = await stage.settle(
            lanes,
            sent(entries["a"]),
            retry(entries["b"]),
            dead(entries["c"], blocks=True),
        )

        assert done == {entries[one].seq for one in "abc"}
        assert [row.state for row in await stage.rows()] == [
            State.SENT,
            State.WAITING,
            State.DEAD,
            State.READY,
        ]

    async def test_nothing_to_settle_is_no_error(self, stage: Stage) -> None:
        lanes = await stage.lease()

        assert await stage.settle(lanes) == frozenset()
        assert await stage.store.hold(lanes, []) == 0


class FenceTests(StoreHooks):
    """Whose rows they are."""

    async def test_a_late_owner_settles_nothing(self, stage: Stage) -> None:
        old = await stage.lease("a")
        await stage.put(message("1", key="k"), message("2", key="m"))
        entries = await stage.read(old)
        await stage.store.leave("a")
        new = await stage.lease("b")

        late = await stage.settle(old, sent(entries[0]), dead(entries[1]))

        assert late == frozenset()
        assert {row.state for row in await stage.rows()} == {State.READY}
        assert await stage.settle(new, sent(entries[0])) == {entries[0].seq}

    async def test_a_late_owner_cannot_undo_what_the_new_one_decided(self, stage: Stage) -> None:
        old = await stage.lease("a")
        await stage.put(message("1", key="k"))
        (entry,) = await stage.read(old)
        await stage.store.leave("a")
        new = await stage.lease("b")
        (again,) = await stage.read(new)
        await stage.settle(new, retry(again, 60 * SECOND))

        assert await stage.settle(old, sent(entry)) == frozenset()

        row = await stage.row("1")
        assert (row.state, row.attempts) == (State.WAITING, 1)

    async def test_a_lane_that_came_back_does_not_revive_old_claims(self, stage: Stage) -> None:
        """The same relay owns the lane again, but what it read before is not its any more."""
        old = await stage.lease("a")
        await stage.put(message("1", key="k"))
        (entry,) = await stage.read(old)
        await stage.store.give(old)
        await stage.lease("a")

        assert await stage.settle(old, sent(entry)) == frozenset()
        assert await stage.state("1") is State.READY

    async def test_a_late_owner_holds_nothing(self, stage: Stage) -> None:
        old = await stage.lease("a")
        await stage.put(message("1", key="k"), message("2", key="k"))
        first, second = await stage.read(old)
        await stage.settle(old, retry(first))
        await stage.store.leave("a")
        await stage.lease("b")

        assert await stage.store.hold(old, [second]) == 0
        assert await stage.state("2") is State.READY

    async def test_entries_of_lanes_that_are_not_given_are_left_alone(self, stage: Stage) -> None:
        lanes = await stage.lease()
        await stage.put(message("1", key="k"), message("2", key="m"))
        first, second = await stage.read(lanes)
        mine = [lane for lane in lanes if lane.number == first.lane]

        assert await stage.settle(mine, sent(first), sent(second)) == {first.seq}

        assert await stage.state(second.message.id) is State.READY

    async def test_one_lost_lane_spoils_no_other(self, stage: Stage) -> None:
        lanes = await stage.lease()
        await stage.put(message("1", key="k"), message("2", key="m"))
        first, second = await stage.read(lanes)
        await stage.store.give([lane for lane in lanes if lane.number == first.lane])

        assert await stage.settle(lanes, sent(first), sent(second)) == {second.seq}

    async def test_a_row_is_settled_once(self, stage: Stage) -> None:
        lanes = await stage.lease()
        await stage.put(message("1", key="k"))
        (entry,) = await stage.read(lanes)
        await stage.settle(lanes, sent(entry))

        assert await stage.settle(lanes, dead(entry)) == frozenset()
        assert await stage.state("1") is State.SENT

    async def test_only_the_very_message_is_settled(self, stage: Stage) -> None:
        """A number alone is not enough: the id must match too."""
        lanes = await stage.lease()
        await stage.put(message("1", key="k"))
        (entry,) = await stage.read(lanes)
        other = replace(entry, message=message("2", key="k"))

        assert await stage.settle(lanes, sent(other)) == frozenset()
        assert await stage.store.hold(lanes, [other]) == 0
        assert await stage.state("1") is State.READY
