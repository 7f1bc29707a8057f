"""The store's clock decides what is due and what has expired, not that of the relay's machine."""

from dataclasses import replace
from datetime import timedelta

import pytest

from postroom.message import State
from postroom.relay import Relay
from postroom.testing.clock import ManualClock
from tests.relay.conftest import Stage, note

HOUR = timedelta(hours=1)


def astray(stage: Stage, by: timedelta) -> tuple[Relay, ManualClock]:
    """Return a relay on a machine whose clock is wrong by so much, and that clock."""
    clock = ManualClock(stage.clock.now() + by)
    stage.clock, clock = clock, stage.clock
    relay = stage.relay()
    stage.clock, clock = clock, stage.clock
    return relay, clock


@pytest.mark.parametrize("ahead", [HOUR, -HOUR])
async def test_what_has_not_expired_is_sent(stage: Stage, ahead: timedelta) -> None:
    relay, _ = astray(stage, ahead)
    now = stage.clock.now()
    valid = replace(note("valid", "a"), expires_at=now + HOUR / 2)
    expired = replace(note("expired", "b"), expires_at=now - HOUR / 2)
    stage.commit(valid, expired)

    await relay.step()
    await relay.step()

    assert stage.arrived() == ["valid"]
    assert (await stage.row(expired)).state is State.DEAD


@pytest.mark.parametrize("ahead", [HOUR, -HOUR])
async def test_a_relay_rests_until_something_is_due(stage: Stage, ahead: timedelta) -> None:
    relay, clock = astray(stage, ahead)
    later = replace(note("later"), deliver_at=stage.clock.now() + timedelta(seconds=0.5))
    stage.commit(later)

    await relay.step()
    (dispatch,) = relay._dispatches
    rest = dispatch.next_in
    assert 0 < rest <= 0.5
    for each in (stage.clock, clock):
        each.advance(rest)
    await relay.step()

    assert stage.arrived() == ["later"]
