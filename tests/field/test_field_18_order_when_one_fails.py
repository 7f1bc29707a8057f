"""Order per key when one fails.

A then B on key K, C on key L, several relays; A fails three times. C goes at once, B never before
A. When A is given up, B follows the stated policy, which a person can see and change.
"""

from dataclasses import replace
from datetime import timedelta

import pytest

from postroom.desk import Desk
from postroom.message import State
from postroom.retry import Backoff, RetryPolicy
from postroom.store import Query
from tests.relay.conftest import Stage, clock, note, stage

__all__ = ["clock", "stage"]


async def together(stage: Stage, *, seconds: int) -> None:
    """Let three relays work beside each other."""
    relays = [stage.relay(name) for name in ("one", "two", "three")]
    for _ in range(seconds):
        for relay in relays * 3:
            await relay.step()
        stage.clock.advance(1)


async def test_field_18_order_kept_while_one_fails(stage: Stage) -> None:
    a, b, c = note("A", "K"), note("B", "K"), note("C", "L")
    stage.broker.refuse(a.id, times=3)
    stage.commit(a, b, c)

    await together(stage, seconds=2)
    assert stage.arrived() == ["C"]
    await together(stage, seconds=20)

    assert stage.arrived() == ["C", "A", "B"]


@pytest.mark.parametrize(("policy", "follows"), [("continue", True), ("park", False)])
async def test_field_18_after_the_last_failure_the_policy_decides(
    stage: Stage, policy: str, follows: bool
) -> None:
    stage.route = replace(
        stage.route,
        on_dead="park" if policy == "park" else "continue",
        retry=RetryPolicy(max_attempts=3, backoff=Backoff(initial=timedelta(seconds=1), jitter=0)),
    )
    a, b, c = note("A", "K"), note("B", "K"), note("C", "L")
    stage.broker.refuse(a.id, times=None)
    stage.commit(a, b, c)

    await together(stage, seconds=30)

    assert stage.arrived() == (["C", "B"] if follows else ["C"])
    assert (await stage.row(a)).state is State.DEAD
    assert (await stage.row(a)).blocks is not follows
    stats = await Desk(stage.store).stats()
    assert stats.blocked_keys == (0 if follows else 1), "an operator sees that a key waits"


async def test_field_18_a_person_changes_their_mind(stage: Stage) -> None:
    stage.route = replace(stage.route, on_dead="park")
    a, b = note("A", "K"), note("B", "K")
    stage.broker.refuse_for_good(a.id)
    stage.commit(a, b)
    await together(stage, seconds=10)
    desk = Desk(stage.store, actor="night shift")

    previewed = await desk.release(Query(key="K"), dry_run=True)
    assert stage.arrived() == []
    released = await desk.release(Query(key="K"))
    await together(stage, seconds=30)

    assert previewed == released == 1
    assert stage.arrived() == ["B"]
    (record,) = await desk.audit()
    assert (record.actor, record.action, record.count) == ("night shift", "release", 1)
