"""Order per key, through refusals, retries, parking and takeovers."""

from dataclasses import replace
from datetime import timedelta

import pytest

from postroom import events
from postroom.message import State
from postroom.store import Query
from tests.relay.conftest import Stage, note, notes


async def test_messages_leave_in_order(stage: Stage) -> None:
    stage.commit(*notes(5, "a"), *notes(5, "b"))

    await stage.settle_down(stage.relay())

    assert stage.arrived("a") == ["a1", "a2", "a3", "a4", "a5"]
    assert stage.arrived("b") == ["b1", "b2", "b3", "b4", "b5"]
    assert {entry.state for entry in await stage.rows()} == {State.SENT}


async def test_one_message_of_a_key_is_in_flight(stage: Stage) -> None:
    """A pipelined run would reorder: the first refused, the second taken."""
    stage.commit(*notes(3, "a"), *notes(3, "b"))

    await stage.relay().step()

    for call in stage.broker.calls:
        keys = [message.key for message in call.messages]
        assert len(set(keys)) == len(keys)


async def test_a_broker_that_stops_a_key_itself_gets_the_whole_batch(stage: Stage) -> None:
    stage.broker = type(stage.broker)(clock=stage.clock, refusal_stops_key=True)
    stage.commit(*notes(3, "a"), *notes(3, "b"))

    await stage.relay().step()

    assert [len(call.messages) for call in stage.broker.calls] == [6]


async def test_a_retry_keeps_the_order_and_delays_nobody_else(stage: Stage) -> None:
    first, *rest = notes(4, "a")
    stage.commit(first, *rest, *notes(4, "b"))
    stage.broker.refuse(first.id, times=3)
    relay = stage.relay()

    await stage.settle_down(relay)
    assert stage.arrived() == ["b1", "b2", "b3", "b4"]
    assert [entry.state for entry in await stage.rows()][:4] == [
        State.WAITING,
        State.HELD,
        State.HELD,
        State.HELD,
    ]
    for _ in range(8):
        stage.clock.advance(1)
        await stage.settle_down(relay)

    assert stage.arrived("a") == ["a1", "a2", "a3", "a4"]
    assert (await stage.row(first)).attempts == 3


async def test_a_newcomer_waits_behind_the_head(stage: Stage) -> None:
    head, newcomer = notes(2, "a")
    stage.commit(head)
    stage.broker.refuse(head.id)
    relay = stage.relay()
    await stage.settle_down(relay)

    stage.commit(newcomer)
    await stage.settle_down(relay)
    assert stage.arrived() == []
    stage.clock.advance(1)
    await stage.settle_down(relay)

    assert stage.arrived() == ["a1", "a2"]


async def test_dead_under_continue_lets_the_key_go_on(stage: Stage) -> None:
    head, *rest = notes(3, "a")
    stage.commit(head, *rest)
    stage.broker.refuse_for_good(head.id)

    await stage.settle_down(stage.relay())

    assert stage.arrived() == ["a2", "a3"]
    dead = await stage.row(head)
    assert (dead.state, dead.blocks, dead.error) == (State.DEAD, False, "never acceptable")


async def test_dead_under_park_blocks_until_a_person_decides(stage: Stage) -> None:
    stage.route = replace(stage.route, on_dead="park")
    head, *rest = notes(3, "a")
    stage.commit(head, *rest, note("b1", "b"))
    stage.broker.refuse_for_good(head.id, times=1)
    relay = stage.relay()
    await stage.settle_down(relay)
    stage.clock.advance(60)
    await stage.settle_down(relay)
    assert stage.arrived() == ["b1"]

    await stage.store.replay(Query(states=(State.DEAD,)), limit=10, actor="somebody", dry_run=False)
    stage.clock.advance(1)
    await stage.settle_down(relay)

    assert stage.arrived("a") == ["a1", "a2", "a3"]


async def test_a_released_key_goes_on_without_its_dead_head(stage: Stage) -> None:
    stage.route = replace(stage.route, on_dead="park")
    head, *rest = notes(3, "a")
    stage.commit(head, *rest)
    stage.broker.refuse_for_good(head.id)
    relay = stage.relay()
    await stage.settle_down(relay)

    await stage.store.release(Query(key="a"), limit=10, actor="somebody", dry_run=False)
    stage.clock.advance(1)
    await stage.settle_down(relay)

    assert stage.arrived() == ["a2", "a3"]


async def test_many_held_rows_leave_in_order_and_in_chunks(stage: Stage) -> None:
    head, *rest = notes(1201, "a")
    stage.commit(head, *rest)
    stage.broker.refuse(head.id)
    relay = stage.relay()
    await stage.settle_down(relay, rounds=100)
    assert len(await stage.rows(State.HELD)) == 1200

    stage.clock.advance(1)
    await stage.settle_down(relay, rounds=200)

    assert stage.arrived() == [f"a{number}" for number in range(1, 1202)]


async def test_a_takeover_keeps_the_order_of_a_held_key(stage: Stage) -> None:
    """The rule is decided from the table, so a new owner needs no memory."""
    head, *rest = notes(4, "a")
    stage.commit(head, *rest)
    stage.broker.refuse(head.id)
    await stage.settle_down(stage.relay("first"))
    heir = stage.relay("second")
    await heir.step()
    stage.clock.advance(stage.options.lease + timedelta(seconds=1))
    await heir.step()
    stage.clock.advance(stage.options.renewal)
    stage.commit(note("a5", "a"))

    await stage.settle_down(heir)

    assert stage.arrived() == ["a1", "a2", "a3", "a4", "a5"]


async def test_an_expired_head_never_blocks(stage: Stage) -> None:
    head = replace(note("a1", "a"), expires_at=stage.clock.now() + timedelta(seconds=3))
    stage.commit(head, note("a2", "a"))
    stage.broker.refuse(head.id, times=None)
    relay = stage.relay()

    for _ in range(5):
        await stage.settle_down(relay)
        stage.clock.advance(1)
    await stage.settle_down(relay)

    assert stage.arrived() == ["a2"]
    dead = await stage.row(head)
    assert (dead.state, dead.blocks) == (State.DEAD, False)
    assert dead.error is not None
    assert "expired" in dead.error


async def test_scheduled_messages_take_their_place_when_due(stage: Stage) -> None:
    later = replace(note("a1", "a"), deliver_at=stage.clock.now() + timedelta(seconds=10))
    stage.commit(later)
    relay = stage.relay()
    await stage.settle_down(relay)
    stage.commit(note("a2", "a"))
    await stage.settle_down(relay)

    stage.clock.advance(10)
    await stage.settle_down(relay)

    assert stage.arrived() == ["a2", "a1"]


@pytest.mark.parametrize("keys", [1, 40])
async def test_lanes_share_a_batch(stage: Stage, keys: int) -> None:
    """A lone hot lane may fill it; a hot lane beside others may not starve them."""
    stage.options = replace(stage.options, overlap=1)
    stage.commit(*(message for key in range(keys) for message in notes(200, f"k{key}")))
    relay = stage.relay()
    await relay.step()

    step = await relay.step()

    assert step.read >= stage.options.batch * 0.6
    read = [event for event in stage.events if isinstance(event, events.Read)][-1]
    shares = [entry.message.key for entry in read.entries]
    assert len(set(shares)) >= keys // 2
