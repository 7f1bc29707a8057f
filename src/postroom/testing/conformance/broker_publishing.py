"""What `publish` promises: confirms, order, limits, and messages that arrive unchanged."""

import asyncio
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from postroom.broker import Broker
from postroom.errors import BrokerUnavailable, NotAttempted, RefusedForGood, RefusedForNow
from postroom.message import Message
from postroom.testing.conformance.broker_stage import TIMEOUT, BrokerHooks, Stage, drain, receive

_UNICODE = "Grüße, 世界 🚚 \x7f \u2028 e\u0301"


class PublishingTests(BrokerHooks):
    """Confirms and their meaning."""

    async def test_a_confirmed_message_is_received(self, stage: Stage) -> None:
        await stage.found()

        await stage.publish(stage.message("a"))

        async with stage.subscribe() as box:
            assert (await receive(box)).message == stage.message("a")

    async def test_a_waiting_consumer_receives_what_is_published_later(self, stage: Stage) -> None:
        async with stage.subscribe() as box:
            waiting = asyncio.create_task(receive(box))
            await asyncio.sleep(0)
            await stage.publish(stage.message("a"))

            assert (await waiting).message.id == "a"

    async def test_publishing_nothing_is_answered_with_nothing(self, stage: Stage) -> None:
        assert list(await stage.broker.publish([], timeout=TIMEOUT)) == []

    async def test_a_key_keeps_its_order_within_and_across_calls(self, stage: Stage) -> None:
        await stage.found()
        names = [str(number) for number in range(30)]

        for start in range(0, 30, 10):
            batch = names[start : start + 10]
            await stage.publish(*(stage.message(name, key="k") for name in batch))

        async with stage.subscribe() as box:
            assert await drain(box, 30) == names

    async def test_the_same_message_twice_is_received_twice(self, stage: Stage) -> None:
        """A broker that drops copies by their id may deliver one; the id never changes."""
        await stage.found()

        await stage.publish(stage.message("a"))
        await stage.publish(stage.message("a"))
        await stage.publish(stage.message("end"))

        async with stage.subscribe() as box:
            names = [(await receive(box)).message.id for _ in range(2)]
        assert names in (["a", "a"], ["a", "end"])

    async def test_a_topic_without_groups_takes_messages_or_says_no(self, stage: Stage) -> None:
        kinds = await stage.attempt(stage.message("a"))

        assert kinds == [RefusedForNow if stage.features.reports_unroutable else None]

    async def test_publishers_do_not_disturb_each_other(self, stage: Stage) -> None:
        await stage.found()
        clients = [await stage.another() for _ in range(4)]

        async def publish(client: Broker, key: str) -> None:
            for step in range(10):
                await stage.publish(stage.message(f"{key}-{step}", key=key), by=client)

        async with asyncio.TaskGroup() as group:
            for number, client in enumerate(clients):
                group.create_task(publish(client, f"key-{number}"))

        async with stage.subscribe() as box:
            names = await drain(box, 40)
        for number in range(4):
            mine = [name for name in names if name.startswith(f"key-{number}-")]
            assert mine == [f"key-{number}-{step}" for step in range(10)]

    async def test_confirmed_messages_survive_the_end_of_the_broker(self, stage: Stage) -> None:
        if not stage.features.durable:
            pytest.skip("features.durable is False")
        await stage.found()
        await stage.publish(stage.message("a", key="k"), stage.message("b", key="k"))

        await stage.restart()

        async with stage.subscribe() as box:
            assert await drain(box, 2) == ["a", "b"]


class LimitTests(BrokerHooks):
    """Messages that the broker cannot take."""

    async def test_a_payload_as_large_as_allowed_arrives(self, stage: Stage) -> None:
        await stage.found()
        large = replace(stage.message("a"), payload=b"\xff" * _limit(stage))

        await stage.publish(large)

        async with stage.subscribe() as box:
            assert (await receive(box)).message == large

    async def test_a_larger_one_is_refused_for_good_and_others_are_not(self, stage: Stage) -> None:
        await stage.found()
        huge = replace(stage.message("huge", key="k"), payload=b"x" * (_limit(stage) + 1))

        kinds = await stage.attempt(stage.message("a", key="l"), huge, stage.message("b"))

        assert kinds == [None, RefusedForGood, None]
        async with stage.subscribe() as box:
            assert sorted(await drain(box, 2)) == ["a", "b"]

    async def test_a_refusal_stops_later_messages_of_its_key_as_declared(
        self, stage: Stage
    ) -> None:
        huge = replace(stage.message("huge", key="k"), payload=b"x" * (_limit(stage) + 1))
        await stage.found()

        kinds = await stage.attempt(
            stage.message("first", key="k"),
            huge,
            stage.message("behind", key="k"),
            stage.message("other", key="l"),
            stage.message("keyless"),
        )

        behind = NotAttempted if stage.features.refusal_stops_key else None
        assert kinds == [None, RefusedForGood, behind, None, None]


_AWKWARD: dict[str, dict[str, Any]] = {
    "least": {"content_type": "application/octet-stream"},
    "no payload": {"payload": b""},
    "every byte": {"payload": bytes(range(256)) * 40},
    "unicode": {
        "type": _UNICODE,
        "key": _UNICODE,
        "headers": {_UNICODE: _UNICODE, "empty": ""},
        "payload": _UNICODE.encode(),
        "content_type": "text/plain; charset=utf-8",
    },
    "empty key": {"key": ""},
    "long texts": {"key": "k" * 200, "headers": {"h" * 100: "v" * 2000}},
    "version 0": {"key": "k", "version": 0},
    "large version": {"key": "k", "version": 2**63 - 1},
    "times": {
        "deliver_at": datetime(2001, 2, 3, 4, 5, 6, 789_012, tzinfo=UTC),
        "expires_at": datetime(2101, 2, 3, 4, 5, 6, 1, tzinfo=UTC),
    },
    "trace": {
        "headers": {"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}
    },
}


class RoundTripTests(BrokerHooks):
    """A message never changes on the way."""

    @pytest.mark.parametrize("case", _AWKWARD)
    async def test_every_field_arrives_unchanged(self, stage: Stage, case: str) -> None:
        await stage.found()
        sent = replace(stage.message("a"), **_AWKWARD[case])

        await stage.publish(sent)

        async with stage.subscribe() as box:
            assert (await receive(box)).message == sent

    async def test_ids_are_compared_as_they_are(self, stage: Stage) -> None:
        await stage.found()
        names = ["a", "A", "a ", "å", "a\u030a", "0", "00", ""]

        await stage.publish(*(stage.message(name, key="k") for name in names))

        async with stage.subscribe() as box:
            assert await drain(box, len(names)) == names


class ConnectingTests(BrokerHooks):
    """`open`, `close` and `ping`."""

    async def test_a_ping_returns_where_a_publish_has_a_chance(self, stage: Stage) -> None:
        await stage.found()

        await stage.broker.ping()

        await stage.publish(stage.message("a"))

    async def test_opening_and_closing_twice_does_no_harm(self, stage: Stage) -> None:
        await stage.broker.open()
        await stage.broker.close()
        await stage.broker.close()
        await stage.broker.open()

        await stage.found()
        await stage.publish(stage.message("a"))

    async def test_after_a_close_nothing_is_sent_and_nothing_raised(self, stage: Stage) -> None:
        await stage.broker.close()

        assert await stage.attempt(stage.message("a")) == [BrokerUnavailable]
        with pytest.raises(BrokerUnavailable):
            await stage.broker.ping()

    async def test_a_publish_is_answered_within_its_time_out(self, stage: Stage) -> None:
        batch: list[Message] = [stage.message(str(number)) for number in range(50)]
        loop = asyncio.get_running_loop()
        begun = loop.time()

        results = await stage.broker.publish(batch, timeout=timedelta(milliseconds=1))

        assert len(results) == 50
        assert loop.time() - begun < 1

    async def test_names_and_features_are_there(self, stage: Stage) -> None:
        assert stage.broker.name
        assert stage.features == stage.broker.features


def _limit(stage: Stage) -> int:
    if stage.features.max_message_bytes is None:
        pytest.skip("features.max_message_bytes is None")
    return stage.features.max_message_bytes
