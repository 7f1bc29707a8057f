"""Many relays: shares, takeovers, fences, and the end of a relay."""

import asyncio
import math
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from postroom import events
from postroom.errors import BrokerError, StoreUnavailable
from postroom.lane import Lane
from postroom.message import Entry, Message, State
from postroom.relay import Relay, RelayOptions
from postroom.retry import Backoff
from postroom.store import Store
from postroom.stores.memory import MemoryStore
from postroom.stores.sqlite import SqliteStore
from postroom.testing.clock import ManualClock
from postroom.testing.scripted import ScriptedBroker
from tests.relay.conftest import Stage, note, notes


class Gate(ScriptedBroker):
    """Holds every publish at the gate until the test opens it."""

    def __init__(self, stage: Stage) -> None:
        super().__init__(clock=stage.clock)
        self.entered = asyncio.Event()
        self.opened = asyncio.Event()

    async def publish(
        self, messages: Sequence[Message], *, timeout: timedelta
    ) -> Sequence[BrokerError | None]:
        """Publish, after the gate opened."""
        self.entered.set()
        await self.opened.wait()
        return await super().publish(messages, timeout=timeout)


async def share(stage: Stage, *relays: Relay, rounds: int = 6) -> None:
    """Let the relays renew until everybody has a share."""
    for _ in range(rounds):
        for relay in relays:
            await relay.step()
        stage.clock.advance(stage.options.share)


async def test_two_relays_share_and_nothing_is_sent_twice(stage: Stage) -> None:
    one, two = stage.relay("one"), stage.relay("two")
    await share(stage, one, two)
    stage.commit(*(note(f"m{number}", f"k{number}") for number in range(200)))

    first = await one.step()
    second = await two.step()
    await stage.settle_down(one)
    await stage.settle_down(two)

    assert first.sent > 0
    assert second.sent > 0
    assert sorted(stage.arrived()) == sorted(f"m{number}" for number in range(200))
    assert sorted(status.lanes for status in (await stage.store.stats()).relays) == [32, 32]


async def test_what_is_read_during_a_renewal_is_not_sent_by_two(
    clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The renewal gives away what was idle when it began, and that may be busy by now."""
    store = MemoryStore(clock=clock)
    stage = Stage(store, clock, store.begin)
    stage.broker = gate = Gate(stage)
    one, two = stage.relay("one"), stage.relay("two")
    await one.step()
    await two.step()
    stage.commit(*(note(f"m{number}", f"k{number}") for number in range(100)))
    rounds: list[asyncio.Task[object]] = []
    lease, read, was_read = stage.store.lease, stage.store.read, asyncio.Event()

    async def slow_lease(*arguments: Any, **options: Any) -> Sequence[Lane]:
        rounds.append(asyncio.ensure_future(one._dispatches[0].step()))
        await was_read.wait()
        for _ in range(10):
            await asyncio.sleep(0)
        return await lease(*arguments, **options)

    async def watched_read(*arguments: Any, **options: Any) -> Sequence[Entry]:
        entries = await read(*arguments, **options)
        was_read.set()
        return entries

    with monkeypatch.context() as patch:
        patch.setattr(stage.store, "lease", slow_lease)
        patch.setattr(stage.store, "read", watched_read)
        await one._tenure.renew()
    clock.advance(stage.options.share)
    rounds.append(asyncio.ensure_future(two.step()))
    gate.opened.set()
    await asyncio.gather(*rounds)
    await stage.settle_down(one)
    await stage.settle_down(two)

    assert sorted(stage.arrived()) == sorted(f"m{number}" for number in range(100))
    assert not stage.seen(events.SettleRefused)


async def test_ten_relays_share_all_lanes(stage: Stage) -> None:
    relays = [stage.relay(f"relay-{number}") for number in range(10)]

    await share(stage, *relays, rounds=12)

    lanes = [status.lanes for status in (await stage.store.stats()).relays]
    assert sum(lanes) == 64
    assert max(lanes) <= 7


async def test_a_frozen_owner_is_refused_after_the_takeover(stage: Stage) -> None:
    """It published before it froze; its late settlement must not touch the heir's rows."""
    stage.commit(*notes(3, "a"))
    ordinary, stage.broker = stage.broker, Gate(stage)
    frozen = asyncio.ensure_future(stage.relay("frozen").step())
    await stage.broker.entered.wait()
    gate, stage.broker = stage.broker, ordinary
    heir = stage.relay("heir")
    await heir.step()
    stage.clock.advance(stage.options.lease + timedelta(seconds=1))
    await heir.step()
    stage.clock.advance(stage.options.renewal)
    ordinary.refuse(lambda message: message.payload == b"a1", times=1)
    await stage.settle_down(heir)
    assert (await stage.rows())[0].state is State.WAITING

    gate.opened.set()
    step = await frozen

    assert step.read == 3
    assert (await stage.rows())[0].state is State.WAITING, "the heir's decision stands"
    assert (await stage.rows())[0].attempts == 1
    assert len(stage.seen(events.SettleRefused)) == 1
    assert [len(call.messages) for call in gate.calls] == [1], "the rest was not published"


async def test_an_owner_whose_lease_ran_out_by_its_own_clock_sends_nothing(stage: Stage) -> None:
    relay = stage.relay()
    await relay.step()
    stage.commit(*notes(3, "a"))

    stage.clock.advance(stage.options.lease)
    ours = relay._tenure.lanes("default")

    assert ours == ()


async def test_a_stalled_database_robs_nobody(stage: Stage) -> None:
    """After the stall everybody's lease looks over; seen once, it is not taken."""
    one, two = stage.relay("one"), stage.relay("two")
    await share(stage, one, two)
    before = (await stage.store.stats()).relays
    stage.clock.advance(60)

    await two.step()
    await one.step()
    await two.step()

    after = (await stage.store.stats()).relays
    assert [status.lanes for status in after] == [status.lanes for status in before]
    assert not [
        event
        for event in stage.seen(events.LanesTaken)[2:]
        if isinstance(event, events.LanesTaken) and len(event.lanes) > 32
    ]


@pytest.mark.parametrize("silent", [False, True])
async def test_a_relay_without_a_broker_gives_its_lanes_to_one_that_has_it(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, *, silent: bool
) -> None:
    """One that says nothing of it keeps its share, and what is in it."""
    if silent:
        monkeypatch.setattr(Relay, "_able", lambda _self: {"default": True})
    cut_off = stage.relay("cut-off")
    await cut_off.step()
    stage.commit(*notes(3, "a"))
    stage.broker.down()
    await cut_off.step()
    stage.broker = type(stage.broker)(clock=stage.clock)
    able = stage.relay("able")

    for _ in range(4):
        await able.step()
        await cut_off.step()
        stage.clock.advance(stage.options.share)
    await stage.settle_down(able)

    lanes = {status.name: status.lanes for status in (await stage.store.stats()).relays}
    assert (lanes == {"able": 64, "cut-off": 0}) is not silent
    assert (stage.arrived() == ["a1", "a2", "a3"]) is not silent


async def test_leaving_hands_over_at_once(stage: Stage) -> None:
    first, second = stage.relay("first"), stage.relay("second")
    await first.step()
    stage.commit(*notes(3, "a"))

    await first.leave()
    await stage.settle_down(second)

    assert stage.arrived() == ["a1", "a2", "a3"]


async def test_what_was_confirmed_is_settled_when_the_store_is_back(stage: Stage) -> None:
    """A short outage of the database between publish and settle causes no copy."""
    stage.commit(*notes(3, "a"))
    store = Flaky(stage.store)
    relay = Relay(store, stage.broker, clock=stage.clock, options=stage.options, name="one")
    store.away = True

    with pytest.raises(StoreUnavailable):
        await relay.step()
    store.away = False
    await stage.settle_down(relay)

    assert stage.arrived() == ["a1", "a2", "a3"]
    assert {entry.state for entry in await stage.rows()} == {State.SENT}


async def test_cancelling_does_not_stop_a_settlement(stage: Stage) -> None:
    """Else what the broker confirmed would be sent a second time."""
    stage.commit(*notes(3, "a"))
    store = Flaky(stage.store)
    store.pausing = asyncio.Event()
    relay = Relay(store, stage.broker, clock=stage.clock, options=stage.options, name="one")
    step = asyncio.ensure_future(relay.step())
    await store.settling.wait()

    step.cancel()
    await asyncio.sleep(0)
    store.pausing.set()
    with pytest.raises(asyncio.CancelledError):
        await step

    assert {entry.state for entry in await stage.rows()} == {State.SENT}


async def test_run_sends_stops_and_gives_back(stage: Stage) -> None:
    """With real time: `run` wakes up by itself, and ends in order."""
    stop, sent = asyncio.Event(), asyncio.Event()

    def observe(event: events.Event) -> None:
        stage.events.append(event)
        if isinstance(event, events.Sent):
            sent.set()

    relay = Relay(stage.store, stage.broker, observers=[observe])
    running = asyncio.ensure_future(relay.run(stop))

    stage.commit(note("m1"))
    async with asyncio.timeout(10):
        await sent.wait()
        stop.set()
        await running

    assert stage.arrived() == ["m1"]
    assert [type(event) for event in stage.events][-2:] == [
        events.LanesGiven,
        events.RelayStopped,
    ]
    assert not (await stage.store.stats()).relays


async def test_run_outlives_an_outage_of_the_database(stage: Stage) -> None:
    store = Flaky(stage.store)
    store.away = True
    back, sent, lost = asyncio.Event(), asyncio.Event(), asyncio.Event()
    marks: dict[type[events.Event], asyncio.Event] = {
        events.StoreBack: back,
        events.Sent: sent,
        events.StoreLost: lost,
    }
    relay = Relay(
        store,
        stage.broker,
        observers=[lambda event: marks[type(event)].set() if type(event) in marks else None],
    )
    stage.commit(note("m1"))
    stop = asyncio.Event()
    running = asyncio.ensure_future(relay.run(stop))

    async with asyncio.timeout(10):
        await lost.wait()
        store.away = False
        await back.wait()
        await sent.wait()
        stop.set()
        await running

    assert stage.arrived() == ["m1"]


async def test_run_raises_what_waiting_cannot_cure(stage: Stage) -> None:
    class Wrong(Flaky):
        async def lease(self, *_arguments: Any, **_named: Any) -> Any:
            raise LookupError("a bug")

    relay = Relay(Wrong(stage.store), stage.broker)

    with pytest.raises(LookupError, match="a bug"):
        await asyncio.wait_for(relay.run(asyncio.Event()), 10)


@pytest.mark.parametrize(
    "times",
    [
        {"renewal": timedelta(seconds=8)},
        {"publish_timeout": timedelta(seconds=14)},
        {"batch": 0},
        {"poll": timedelta(0)},
    ],
)
def test_options_that_would_lose_lanes_are_refused(times: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="must be"):
        RelayOptions(**times)


class Flaky:
    """A store whose settlement fails, or waits, when the test says so."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.away = False
        self.locked = False
        self.pausing: asyncio.Event | None = None
        self.settling = asyncio.Event()

    async def lease(self, *arguments: Any, **named: Any) -> Any:
        """Renew, unless locked."""
        if self.locked:
            raise StoreUnavailable("locked")
        return await self._store.lease(*arguments, **named)

    def __getattr__(self, name: str) -> Any:
        """Pass everything else on."""
        return getattr(self._store, name)

    async def settle(self, *arguments: Any, **named: Any) -> Any:
        """Settle, unless away; a test may hold it up."""
        self.settling.set()
        if self.pausing is not None:
            await self.pausing.wait()
        if self.away:
            raise StoreUnavailable("away")
        return await self._store.settle(*arguments, **named)


async def test_a_relay_without_lanes_rests(stage: Stage) -> None:
    """It looks for lanes now and then; it must not poll the outbox for rows it may not read."""
    relays = [stage.relay(f"relay-{number}") for number in range(2)]
    await relays[0].step()

    await relays[1].step()

    assert relays[1]._dispatches[0].next_in == math.inf
    assert relays[0]._dispatches[0].next_in <= stage.options.sweep.total_seconds()


def test_waking_a_relay_that_has_stopped_does_nothing(tmp_path: Path) -> None:
    """Called after a commit, an error would look like one of the commit."""

    async def run() -> Relay:
        store = SqliteStore(tmp_path / "outbox.db")
        await store.open()
        await store.migrate()
        relay, stop = Relay(store, ScriptedBroker()), asyncio.Event()
        relay.wake()
        running = asyncio.ensure_future(relay.run(stop))
        await asyncio.sleep(0)
        relay.wake()
        stop.set()
        await running
        await store.close()
        return relay

    asyncio.run(run()).wake()


async def test_a_database_that_can_only_be_read_is_not_back(stage: Stage) -> None:
    """A locked one answers reads; an alarm must not flap with them."""
    store = Flaky(stage.store)
    store.locked = True
    seen: list[events.Event] = []
    lost = asyncio.Event()

    def observe(event: events.Event) -> None:
        if isinstance(event, events.StoreLost | events.StoreBack):
            seen.append(event)
        if len(seen) == 3:
            lost.set()

    quick = replace(stage.options, probe=Backoff(initial=timedelta(milliseconds=1), jitter=0))
    relay = Relay(store, stage.broker, options=quick, observers=[observe])
    stop = asyncio.Event()
    running = asyncio.ensure_future(relay.run(stop))

    async with asyncio.timeout(10):
        await lost.wait()
        stop.set()
        await running

    assert not [event for event in seen if isinstance(event, events.StoreBack)]
