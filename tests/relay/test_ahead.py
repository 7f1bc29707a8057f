"""The batch that is read while the broker has the one before it."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta

import pytest

from postroom.errors import StoreUnavailable
from postroom.lane import Lane
from postroom.message import Entry, State
from postroom.relay import Relay
from postroom.relay.ahead import Ahead
from tests.relay.conftest import OPTIONS, Stage, notes

LANES = [Lane("default", 1, 1)]


@pytest.fixture
def small(stage: Stage) -> Stage:
    """A stage whose relays read two messages at once."""
    stage.options = replace(OPTIONS, batch=2)
    return stage


async def rounds(relay: Relay, count: int) -> None:
    """Do so many rounds as a running relay does them."""
    if relay._tenure.due:
        await relay._tenure.renew()
    for _ in range(count):
        await relay._dispatches[0].step(ahead=True)


async def test_every_message_goes_out_once_and_in_order(small: Stage) -> None:
    small.commit(*notes(7, "a"))

    await rounds(small.relay(), 4)

    assert small.arrived() == ["a1", "a2", "a3", "a4", "a5", "a6", "a7"]
    assert {entry.state for entry in await small.rows()} == {State.SENT}


async def test_a_refusal_stops_what_was_read_ahead(small: Stage) -> None:
    first, second, *rest = notes(6, "a")
    small.commit(first, second, *rest)
    small.broker.refuse(second.id, times=1)
    relay = small.relay()

    await rounds(relay, 10)
    assert small.arrived() == ["a1"]
    small.clock.advance(1)
    await rounds(relay, 10)

    assert small.arrived() == ["a1", "a2", "a3", "a4", "a5", "a6"]


async def test_a_refusal_stops_no_other_key_that_was_read_ahead(small: Stage) -> None:
    first, second = notes(2, "a")
    small.commit(first, *notes(1, "b"), second, *notes(1, "c"))
    small.broker.refuse(first.id, times=1)
    relay = small.relay()

    await rounds(relay, 4)
    assert sorted(small.arrived()) == ["b1", "c1"]
    small.clock.advance(1)
    await rounds(relay, 4)

    assert small.arrived("a") == ["a1", "a2"]


async def test_an_outage_stops_what_was_read_ahead(small: Stage) -> None:
    small.commit(*notes(6, "a"))
    relay = small.relay()

    await rounds(relay, 1)
    small.broker.down(times=1)
    await rounds(relay, 3)
    small.clock.advance(timedelta(seconds=1))
    await rounds(relay, 3)

    assert small.arrived() == ["a1", "a2", "a3", "a4", "a5", "a6"]


async def test_another_owner_sends_what_was_read_ahead(small: Stage) -> None:
    """The first relay stands still past its lease, with a batch in its hands."""
    small.commit(*notes(6, "a"))
    first, second = small.relay("one"), small.relay("two")

    await rounds(first, 1)
    small.clock.advance(16)
    await second.step()
    small.clock.advance(6)
    await small.settle_down(second)
    await rounds(first, 3)

    assert small.arrived() == ["a1", "a2", "a3", "a4", "a5", "a6"]


async def test_what_was_read_of_other_lanes_is_forgotten() -> None:
    ahead = Ahead()

    ahead.begin(LANES, _found())

    assert await ahead.take([Lane("default", 1, 2)]) == ()
    assert await ahead.take(LANES) == ()


async def test_a_read_that_failed_is_made_again() -> None:
    ahead = Ahead()

    ahead.begin(LANES, _failed())

    assert await ahead.take(LANES) == ()


async def test_a_failure_that_nobody_asks_for_is_not_complained_about() -> None:
    ahead = Ahead()

    ahead.begin(LANES, _failed())
    await asyncio.sleep(0)
    ahead.drop()

    assert await ahead.take(LANES) == ()


async def _found() -> Sequence[Entry]:
    return []


async def _failed() -> Sequence[Entry]:
    raise StoreUnavailable("gone")
