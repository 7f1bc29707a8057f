"""A broker outage spends the attempts.

500 pending, the broker unreachable for half an hour (of the test's clock). When it returns none is
dead, all arrive in order per key, and recovery starts within 30 seconds; one true poison message
among them still ends dead.
"""

from postroom.message import State
from tests.relay.conftest import Stage, clock, note, stage

__all__ = ["clock", "stage"]


async def test_field_19_outage_spends_no_attempts(stage: Stage) -> None:
    messages = [note(f"{n:03}", f"k{n % 20}") for n in range(500)]
    poison = note("poison", "poison")
    stage.commit(*messages[:250], poison, *messages[250:])
    stage.broker.refuse_for_good(poison.id)
    stage.broker.down()
    relay = stage.relay()
    for _ in range(1800):
        await relay.step()
        stage.clock.advance(1)
    assert {entry.state for entry in await stage.rows()} == {State.READY}
    assert {entry.attempts for entry in await stage.rows()} == {0}

    stage.broker.up()
    waited = 0
    while not stage.arrived():
        await relay.step()
        stage.clock.advance(1)
        waited += 1
        assert waited <= 30, "recovery starts within 30 seconds"
    await stage.settle_down(relay)

    dead = await stage.rows(State.DEAD)
    assert [entry.message.id for entry in dead] == [poison.id]
    for key in {message.key for message in messages}:
        arrived = stage.arrived(key)
        assert arrived == sorted(arrived)
    assert len(stage.arrived()) == 500
