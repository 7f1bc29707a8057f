"""The scripted double provokes every way in which a publish can fail."""

import asyncio
from datetime import timedelta

import pytest

from postroom.errors import (
    BrokerUnavailable,
    NotAttempted,
    OutcomeUnknown,
    RefusedForGood,
    RefusedForNow,
)
from postroom.message import Message
from postroom.testing.clock import ManualClock
from postroom.testing.scripted import ScriptedBroker

PATIENCE = timedelta(seconds=5)


def message(name: str, *, key: str | None = None) -> Message:
    return Message(type="shop.order-placed", payload=b"{}", id=name, key=key, topic="orders")


def kinds(results: object) -> list[type | None]:
    assert isinstance(results, list | tuple)
    return [None if result is None else type(result) for result in results]


async def until_asleep(clock: ManualClock) -> None:
    for _ in range(20):
        await asyncio.sleep(0)
    assert clock.sleepers


def arrived(broker: ScriptedBroker) -> list[str]:
    return [one.id for one in broker.arrived]


async def test_without_rules_everything_arrives_and_is_confirmed() -> None:
    broker = ScriptedBroker()

    results = await broker.publish([message("a"), message("b")], timeout=PATIENCE)

    assert kinds(results) == [None, None]
    assert arrived(broker) == ["a", "b"]
    assert [one.id for one in broker.calls[0].messages] == ["a", "b"]
    assert broker.calls[0].results == (None, None)


async def test_a_refusal_does_not_stop_later_messages_of_the_key() -> None:
    broker = ScriptedBroker()
    broker.refuse("a")

    results = await broker.publish([message("a", key="k"), message("b", key="k")], timeout=PATIENCE)
    again = await broker.publish([message("a", key="k")], timeout=PATIENCE)

    assert kinds(results) == [RefusedForNow, None]
    assert kinds(again) == [None]
    assert arrived(broker) == ["b", "a"]


async def test_a_refusal_stops_the_key_where_the_features_say_so() -> None:
    broker = ScriptedBroker(refusal_stops_key=True)
    broker.refuse_for_good("a")
    batch = [message("a", key="k"), message("b", key="k"), message("c", key="l"), message("d")]

    results = await broker.publish(batch, timeout=PATIENCE)

    assert kinds(results) == [RefusedForGood, NotAttempted, None, None]
    assert arrived(broker) == ["c", "d"]


async def test_rules_match_by_id_key_type_and_predicate_and_run_out() -> None:
    broker = ScriptedBroker()
    broker.refuse("k", times=2)
    broker.unroutable(lambda one: one.id == "c", times=None)

    first = await broker.publish([message("a", key="k"), message("c")], timeout=PATIENCE)
    second = await broker.publish([message("a", key="k"), message("c")], timeout=PATIENCE)
    third = await broker.publish([message("a", key="k"), message("c")], timeout=PATIENCE)
    broker.clear()
    broker.refuse("shop.order-placed")
    fourth = await broker.publish([message("c")], timeout=PATIENCE)

    assert kinds(first) == kinds(second) == [RefusedForNow, RefusedForNow]
    assert kinds(third) == [None, RefusedForNow]
    assert kinds(fourth) == [RefusedForNow]


async def test_payloads_over_the_limit_are_refused_for_good() -> None:
    broker = ScriptedBroker(max_message_bytes=1)

    results = await broker.publish([message("a")], timeout=PATIENCE)

    assert kinds(results) == [RefusedForGood]
    assert broker.features.max_message_bytes == 1


@pytest.mark.parametrize("delivered", [True, False])
async def test_a_lost_connection_leaves_the_rest_of_the_call_unknown(delivered: bool) -> None:
    broker = ScriptedBroker()
    broker.lose_connection_after("b", delivered=delivered)

    results = await broker.publish([message("a"), message("b"), message("c")], timeout=PATIENCE)

    assert kinds(results) == [None, OutcomeUnknown, OutcomeUnknown]
    assert arrived(broker) == (["a", "b"] if delivered else ["a"])


async def test_confirms_of_earlier_messages_can_be_lost_with_the_connection() -> None:
    broker = ScriptedBroker()
    broker.close_channel("b", unanswered_before=True)

    results = await broker.publish([message("a"), message("b"), message("c")], timeout=PATIENCE)

    assert kinds(results) == [OutcomeUnknown] * 3
    assert arrived(broker) == ["a"]


async def test_a_closed_channel_comes_with_the_brokers_reply() -> None:
    broker = ScriptedBroker()
    broker.close_channel("b", reason="message too strange")

    results = await broker.publish([message("a"), message("b"), message("c")], timeout=PATIENCE)

    assert kinds(results) == [None, OutcomeUnknown, OutcomeUnknown]
    assert isinstance(results[1], OutcomeUnknown)
    assert results[1].error_reply == "message too strange"
    assert arrived(broker) == ["a"]


async def test_a_hang_ends_at_the_time_out_of_the_call() -> None:
    clock = ManualClock()
    broker = ScriptedBroker(clock=clock)
    broker.hang("b")

    call = asyncio.create_task(broker.publish([message("a"), message("b")], timeout=PATIENCE))
    await until_asleep(clock)
    clock.advance(5)
    results = await call

    assert kinds(results) == [None, OutcomeUnknown]
    assert isinstance(results[1], OutcomeUnknown)
    assert results[1].timed_out


async def test_while_down_nothing_is_sent_and_pings_fail() -> None:
    broker = ScriptedBroker()
    broker.down()

    results = await broker.publish([message("a")], timeout=PATIENCE)
    with pytest.raises(BrokerUnavailable):
        await broker.ping()
    broker.up()
    await broker.ping()

    assert kinds(results) == [BrokerUnavailable]
    assert arrived(broker) == []
    assert broker.pings == 2


async def test_down_for_a_number_of_calls_counts_pings_too() -> None:
    broker = ScriptedBroker()
    broker.down(times=2)

    results = await broker.publish([message("a")], timeout=PATIENCE)
    with pytest.raises(BrokerUnavailable):
        await broker.ping()
    again = await broker.publish([message("a")], timeout=PATIENCE)

    assert kinds(results) == [BrokerUnavailable]
    assert kinds(again) == [None]


async def test_a_blocked_broker_takes_nothing_until_it_is_unblocked() -> None:
    clock = ManualClock()
    broker = ScriptedBroker(clock=clock)
    broker.block()

    call = asyncio.create_task(broker.publish([message("a")], timeout=PATIENCE))
    await until_asleep(clock)
    with pytest.raises(BrokerUnavailable):
        await broker.ping()
    broker.unblock()
    results = await call

    assert kinds(results) == [None]


async def test_a_call_blocked_until_its_time_out_has_sent_nothing() -> None:
    clock = ManualClock()
    broker = ScriptedBroker(clock=clock)
    broker.block()

    call = asyncio.create_task(broker.publish([message("a")], timeout=PATIENCE))
    await until_asleep(clock)
    clock.advance(PATIENCE)
    results = await call

    assert kinds(results) == [BrokerUnavailable]
    assert arrived(broker) == []


async def test_a_flapping_broker_answers_pings_and_loses_publishes() -> None:
    broker = ScriptedBroker()
    broker.flap(1)

    lost = await broker.publish([message("a"), message("b")], timeout=PATIENCE)
    await broker.ping()
    broker.flap(1, delivered=True)
    kept = await broker.publish([message("a")], timeout=PATIENCE)
    well = await broker.publish([message("b")], timeout=PATIENCE)

    assert kinds(lost) == [OutcomeUnknown] * 2
    assert kinds(kept) == [OutcomeUnknown]
    assert kinds(well) == [None]
    assert arrived(broker) == ["a", "b"]
