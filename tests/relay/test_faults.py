"""Whose fault was it: outages spend nothing, refusals count, suspects go alone."""

import asyncio
from collections.abc import Sequence
from datetime import timedelta

from postroom import events
from postroom.errors import BrokerError
from postroom.message import Message, State
from postroom.relay import Relay
from postroom.testing.scripted import ScriptedBroker
from tests.relay.conftest import Stage, note, notes


async def drain(stage: Stage, *, seconds: int, until: int) -> None:
    """Step once a second until so many messages arrived."""
    relay = stage.relay()
    for _ in range(seconds):
        for _ in range(10):
            await relay.step()
        if len(set(stage.arrived())) >= until:
            return
        stage.clock.advance(1)
    raise AssertionError(f"only {len(set(stage.arrived()))} of {until} arrived")


async def test_an_outage_spends_no_attempt_and_pauses_the_route(stage: Stage) -> None:
    stage.commit(*notes(5, "a"))
    stage.broker.down()
    relay = stage.relay()
    for _ in range(100):
        await relay.step()
        stage.clock.advance(1)
    assert {entry.attempts for entry in await stage.rows()} == {0}
    assert {entry.state for entry in await stage.rows()} == {State.READY}
    assert len(stage.broker.calls) == 1, "a paused route probes, it does not publish"
    assert stage.broker.pings < 40, "the pause grows"
    stats = await stage.store.stats()
    assert [status.paused_routes for status in stats.relays] == [("default",)]

    stage.broker.up()
    stage.clock.advance(10)
    await stage.settle_down(relay)

    assert stage.arrived() == ["a1", "a2", "a3", "a4", "a5"]
    assert len(stage.seen(events.Resumed)) == 1


async def test_a_blocked_broker_is_an_outage(stage: Stage) -> None:
    stage.commit(*notes(2, "a"))
    stage.broker.block()
    relay = stage.relay()

    await _step_through(stage, relay)
    stage.broker.unblock()
    stage.clock.advance(10)
    await stage.settle_down(relay)

    assert stage.arrived() == ["a1", "a2"]
    assert {entry.attempts for entry in await stage.rows()} == {0}


async def test_unknown_outcomes_are_sent_again_with_the_same_id(stage: Stage) -> None:
    first, second = notes(2, "a")
    stage.commit(first, second)
    stage.broker.lose_connection_after(first.id, delivered=True)
    relay = stage.relay()

    await stage.settle_down(relay)

    assert stage.arrived() == ["a1", "a1", "a2"]
    assert len({message.id for message in stage.broker.arrived}) == 2
    assert (await stage.row(first)).attempts == 0


async def test_the_killer_is_convicted_and_the_nineteen_beside_it_leave(stage: Stage) -> None:
    messages = [note(f"m{number}", f"k{number}") for number in range(20)]
    killer = messages[7]
    stage.commit(*messages, note("after", killer.key))
    stage.broker.close_channel(killer.id, unanswered_before=True)

    await drain(stage, seconds=5, until=19)

    entry = await stage.row(killer)
    assert entry.state is State.WAITING
    assert entry.attempts == 1
    assert entry.error is not None
    assert "PRECONDITION_FAILED" in entry.error
    assert "after" not in stage.arrived(), "its key waits behind it"
    others = [entry for entry in await stage.rows(State.SENT) if entry.attempts]
    assert others == []


async def test_a_killer_that_never_passes_ends_dead(stage: Stage) -> None:
    messages = [note(f"m{number}", f"k{number}") for number in range(5)]
    stage.commit(*messages, note("after", "k2"))
    stage.broker.close_channel(messages[2].id)

    await drain(stage, seconds=120, until=5)

    entry = await stage.row(messages[2])
    assert (entry.state, entry.attempts) == (State.DEAD, 5)


async def test_lost_on_it_alone_twice_while_probes_hold_is_evidence(stage: Stage) -> None:
    killer = note("m0", "k0")
    stage.commit(killer, note("m1", "k1"))
    stage.broker.lose_connection_after(killer.id, delivered=False, times=None)

    await drain(stage, seconds=30, until=1)
    relay = stage.relay()
    for _ in range(60):
        await relay.step()
        stage.clock.advance(1)

    assert (await stage.row(killer)).attempts > 0


async def test_a_time_out_convicts_nobody(stage: Stage) -> None:
    message = note("m0", "k0")
    stage.commit(message)
    stage.broker.hang(message.id, times=6)
    relay = stage.relay()

    for _ in range(60):
        await _step_through(stage, relay)
        stage.clock.advance(1)

    assert stage.arrived() == ["m0"]
    assert (await stage.row(message)).attempts == 0


async def test_a_flapping_broker_is_an_outage(stage: Stage) -> None:
    stage.commit(*(note(f"m{number}", f"k{number}") for number in range(20)))
    stage.broker.flap(12)

    await drain(stage, seconds=200, until=20)

    assert {entry.attempts for entry in await stage.rows()} == {0}


async def test_a_suspect_does_not_stop_other_keys(stage: Stage) -> None:
    killer = note("m0", "k0")
    stage.commit(killer, *notes(30, "k0", start=2))
    stage.broker.hang(killer.id, times=None)
    relay = stage.relay()
    for _ in range(20):
        await _step_through(stage, relay)
        stage.clock.advance(1)

    stage.commit(*notes(10, "other"))
    for _ in range(20):
        await _step_through(stage, relay)
        stage.clock.advance(1)

    assert len(stage.arrived("other")) == 10
    assert stage.arrived("k0") == []


async def test_refused_for_now_ends_dead_with_the_last_error(stage: Stage) -> None:
    message = note("m0")
    stage.commit(message)
    stage.broker.unroutable(message.id)
    relay = stage.relay()

    for _ in range(40):
        await stage.settle_down(relay)
        stage.clock.advance(1)

    entry = await stage.row(message)
    assert (entry.state, entry.attempts) == (State.DEAD, 5)
    assert entry.error is not None
    assert "unroutable" in entry.error
    assert len(stage.seen(events.Retried)) == 4
    assert len(stage.seen(events.Dead)) == 1


async def test_an_error_of_any_characters_is_kept(stage: Stage) -> None:
    message = note("m0")
    stage.commit(message)
    stage.broker.refuse_for_good(message.id, reason="bad \0 and \ud800 and 🚚")

    await stage.settle_down(stage.relay())

    assert (await stage.row(message)).error == "bad \\x00 and \\ud800 and 🚚"


async def test_a_driver_that_raises_loses_nothing(stage: Stage) -> None:
    class Broken(ScriptedBroker):
        broken = True

        async def publish(
            self, messages: Sequence[Message], *, timeout: timedelta
        ) -> Sequence[BrokerError | None]:
            if self.broken:
                raise ZeroDivisionError
            return await super().publish(messages, timeout=timeout)

    broker = stage.broker = Broken(clock=stage.clock)
    stage.commit(*notes(3, "a"))
    relay = stage.relay()
    await relay.step()

    broker.broken = False
    for _ in range(10):
        stage.clock.advance(1)
        await relay.step()

    assert stage.arrived() == ["a1", "a2", "a3"]


async def test_a_row_that_expired_is_not_sent(stage: Stage) -> None:
    message = Message(
        type="t", payload=b"", key="a", expires_at=stage.clock.now() + timedelta(seconds=1)
    )
    stage.commit(message)
    stage.clock.advance(2)

    await stage.settle_down(stage.relay())

    assert (await stage.row(message)).state is State.DEAD
    assert (await stage.row(message)).attempts == 0
    assert stage.broker.calls == []


async def _step_through(stage: Stage, relay: Relay) -> None:
    """Step while moving the clock past whatever the broker sleeps on."""
    task = asyncio.ensure_future(relay.step())
    while not task.done():
        await asyncio.sleep(0)
        if stage.clock.sleepers:
            stage.clock.advance(0.5)
    await task
