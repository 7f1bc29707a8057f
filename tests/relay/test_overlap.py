"""Several rounds beside each other: what they share, and what they never do."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from postroom import events
from postroom.errors import BrokerError, BrokerUnavailable, StoreUnavailable
from postroom.message import Message, State
from postroom.relay import Relay
from postroom.testing.scripted import ScriptedBroker
from tests.relay.conftest import Stage, notes


class Turnstile(ScriptedBroker):
    """Lets calls in, and none of them out before the test says so."""

    def __init__(self, stage: Stage) -> None:
        super().__init__(clock=stage.clock)
        self.inside: list[Sequence[Message]] = []
        self.most = 0
        self.opened = asyncio.Event()
        self.let_out = 0

    async def publish(
        self, messages: Sequence[Message], *, timeout: timedelta
    ) -> Sequence[BrokerError | None]:
        """Publish; the answer comes later."""
        self.inside.append(messages)
        self.most = max(self.most, len(self.inside))
        answers = await super().publish(messages, timeout=timeout)
        while not (self.opened.is_set() or self._may_leave(messages)):
            await asyncio.sleep(0.001)
        self.inside.remove(messages)
        return answers

    def _may_leave(self, messages: Sequence[Message]) -> bool:
        """Let out as many as the test said, the first one first."""
        if self.let_out and self.inside[0] is messages:
            self.let_out -= 1
            return True
        return False


async def until(condition: Callable[[], bool]) -> None:
    """Wait for it, but not for ever."""
    async with asyncio.timeout(10):
        while not condition():
            await asyncio.sleep(0.001)


async def warmed(stage: Stage, *, pipelined: bool = False, batch: int = 20) -> Relay:
    """Return a relay that knows which lanes are busy; its next calls stay at a turnstile."""
    stage.options = replace(stage.options, batch=batch)
    stage.route = replace(stage.route, pipelined_keys=pipelined)
    relay = stage.relay()
    await relay.step()
    stage.broker = turnstile = Turnstile(stage)
    relay._dispatches[0]._flight._broker = turnstile
    return relay


def turnstile_of(stage: Stage) -> Turnstile:
    assert isinstance(stage.broker, Turnstile)
    return stage.broker


def keys_of(messages: Sequence[Message]) -> set[str | None]:
    return {message.key for message in messages}


async def test_two_rounds_are_at_the_broker_and_share_no_key(stage: Stage) -> None:
    stage.commit(*(message for key in range(20) for message in notes(10, f"k{key}")))
    relay = await warmed(stage)
    broker = turnstile_of(stage)

    step = asyncio.ensure_future(relay.step())
    await until(lambda: len(broker.inside) == 2)
    first, second = map(keys_of, broker.inside)
    broker.opened.set()
    await step

    assert first
    assert second
    assert not first & second


async def test_a_key_is_in_one_round_until_it_is_settled(stage: Stage) -> None:
    stage.commit(*notes(60, "a"))
    relay = await warmed(stage, batch=5)
    broker = turnstile_of(stage)
    broker.opened.set()

    await stage.settle_down(relay)

    assert broker.most == 1
    assert {entry.state for entry in await stage.rows()} == {State.SENT}


async def test_a_refused_head_holds_what_another_round_would_have_read(stage: Stage) -> None:
    first, *rest = notes(30, "a")
    stage.commit(first, *rest, *notes(30, "b"))
    relay = await warmed(stage, batch=4)
    broker = turnstile_of(stage)
    broker.opened.set()
    head = (await stage.rows(State.READY))[0].message
    broker.refuse(head.id)

    await stage.settle_down(relay)

    assert len([one for one in broker.arrived if one.key == head.key]) == 0
    stage.clock.advance(1)
    await stage.settle_down(relay)
    for key in ("a", "b"):
        places = [int(one.headers["postroom-seq"]) for one in broker.arrived if one.key == key]
        assert places == sorted(places)


async def test_pipelined_keys_share_a_lane_but_no_row(stage: Stage) -> None:
    stage.commit(*notes(80, "a"))
    relay = await warmed(stage, pipelined=True, batch=10)
    broker = turnstile_of(stage)

    step = asyncio.ensure_future(relay.step())
    await until(lambda: len(broker.inside) == 2)
    broker.opened.set()
    await step
    await stage.settle_down(relay)

    places = [int(message.headers["postroom-seq"]) for message in broker.arrived]
    assert len(places) == len(set(places)) == 60, "the first twenty went before"
    assert places == sorted(places)
    assert {entry.state for entry in await stage.rows()} == {State.SENT}


async def test_what_a_round_put_behind_is_not_in_its_hands(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its own settle frees those rows: a read that leaves them out would go past them."""
    stage.options = replace(stage.options, batch=2)
    stage.route = replace(stage.route, pipelined_keys=True)
    relay = stage.relay()
    await relay.step()
    head, second, *late = notes(4, "a")
    stage.broker.refuse(head.id)
    for one in (head, second):
        stage.commit(one)
        await stage.settle_down(relay)
    assert (await stage.row(second)).state is State.HELD
    stage.commit(*late)
    stage.clock.advance(1)
    stage.events.clear()
    read = stage.store.read

    async def late_read(*args: Any, **options: Any) -> Any:
        if stage.seen(events.Publishing):
            await until(lambda: bool(stage.seen(events.Sent)))
        return await read(*args, **options)

    monkeypatch.setattr(stage.store, "read", late_read)

    await stage.settle_down(relay)

    assert stage.arrived("a") == ["a1", "a2", "a3", "a4"]


async def test_a_lane_is_kept_while_any_round_has_it(stage: Stage) -> None:
    """Two rounds of a pipelined route share it; the first one ends, and others want a share."""
    stage.commit(*notes(80, "a"))
    relay = await warmed(stage, pipelined=True, batch=10)
    broker = turnstile_of(stage)
    step = asyncio.ensure_future(relay.step())
    await until(lambda: len(broker.inside) == 2)

    broker.let_out = 1
    await until(lambda: len(broker.inside) == 1 and not broker.let_out)
    await until(lambda: bool(stage.seen(events.Sent)[29:]))
    other = stage.relay("other")
    for _ in range(4):
        await other._tenure.renew()
        stage.clock.advance(stage.options.share)
        await relay._tenure.renew()
    kept = {lane.number for lane in relay._tenure.lanes("default")}
    (flying,) = broker.inside
    (row,) = {entry.lane for entry in await stage.rows() if entry.message.id == flying[0].id}
    broker.opened.set()
    await step

    assert row in kept
    assert len(kept) == 32
    assert not stage.seen(events.SettleRefused)


async def test_what_the_store_did_not_take_stays_ours_until_it_does(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody sends it again: not another round, and not another relay that wants a share."""
    stage.commit(*(message for key in range(20) for message in notes(3, f"k{key}")))
    relay = stage.relay()
    await relay.step()
    stage.commit(*(message for key in range(20) for message in notes(3, f"k{key}", start=4)))
    away = True
    settle = stage.store.settle

    async def settling(*arguments: Any, **options: Any) -> frozenset[int]:
        if away:
            raise StoreUnavailable("away")
        return await settle(*arguments, **options)

    monkeypatch.setattr(stage.store, "settle", settling)
    for _ in range(3):
        with pytest.raises(StoreUnavailable):
            await relay.step()
    other = stage.relay("other")
    for _ in range(4):
        await other._tenure.renew()
        stage.clock.advance(stage.options.share)
        await relay._tenure.renew()
    away = False
    await stage.settle_down(relay)
    await stage.settle_down(other)

    assert sorted(stage.arrived()) == sorted(set(stage.arrived()))
    assert len(stage.arrived()) == 120
    assert {entry.state for entry in await stage.rows()} == {State.SENT}


async def test_two_rounds_that_meet_one_outage_pause_once(stage: Stage) -> None:
    class Cut(Turnstile):
        async def publish(
            self, messages: Sequence[Message], *, timeout: timedelta
        ) -> Sequence[BrokerError | None]:
            await super().publish((), timeout=timeout)
            return [BrokerUnavailable("cut")] * len(messages)

    stage.commit(*(message for key in range(20) for message in notes(10, f"k{key}")))
    relay = await warmed(stage)
    relay._dispatches[0]._flight._broker = broker = Cut(stage)

    step = asyncio.ensure_future(relay.step())
    await until(lambda: len(broker.inside) == 2)
    broker.opened.set()
    await step

    assert len(stage.seen(events.Paused)) == 1
    assert {entry.attempts for entry in await stage.rows()} == {0}


async def test_what_was_unknown_once_goes_in_a_round_by_itself(stage: Stage) -> None:
    """Whoever is in flight beside a killer would share its fate, or be taken for it."""
    stage.commit(*(message for key in range(20) for message in notes(10, f"k{key}")))
    relay = await warmed(stage)
    broker = turnstile_of(stage)
    broker.flap(2)
    step = asyncio.ensure_future(relay.step())
    await until(lambda: len(broker.inside) == 2)
    broker.opened.set()
    await step
    broker.opened.clear()
    broker.most = 0
    stage.clock.advance(1)

    step = asyncio.ensure_future(relay.step())
    await until(lambda: bool(broker.inside))
    for _ in range(100):  # time enough for another round to begin, if one could
        await asyncio.sleep(0.001)
    broker.opened.set()
    await step

    assert broker.most == 1


async def test_no_round_begins_after_the_word_to_stop(stage: Stage) -> None:
    stage.commit(*(message for key in range(20) for message in notes(30, f"k{key}")))
    await warmed(stage)
    stage.clock.advance(1)
    broker = turnstile_of(stage)
    relay = Relay(stage.store, broker, options=stage.options, name="one")
    stop = asyncio.Event()
    running = asyncio.ensure_future(relay.run(stop))
    broker.opened.set()
    await until(lambda: len(broker.arrived) > 50)
    broker.opened.clear()
    await until(lambda: len(broker.inside) == 2)

    stop.set()
    await until(lambda: relay._tenure._closing)
    calls = len(broker.calls)
    broker.opened.set()
    async with asyncio.timeout(10):
        await running

    keys = [keys_of(call.messages) for call in broker.calls]
    assert set().union(*keys[calls:]) <= keys[calls - 1] | keys[calls - 2], "later waves at most"
    assert {entry.state for entry in await stage.rows()} == {State.SENT, State.READY}
    assert not (await stage.store.stats()).relays
