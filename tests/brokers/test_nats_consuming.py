"""Consuming from a real JetStream: foreign messages, retries, dead letters, and what is lost."""

import asyncio
import time
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import urlsplit

import pytest
from nats.js.api import ConsumerConfig

from postroom.broker import Delivery
from postroom.brokers.nats import NatsBroker
from postroom.errors import BrokerUnavailable, DeliveryLost, RefusedForNow, SettingsError
from postroom.lab.servers.proxy import Proxy
from tests.brokers.stream import Client, client, kinds, message, outcome
from tests.nats import Ground

__all__ = ["client"]

SOON = timedelta(milliseconds=50)


@pytest.fixture
def topic(jetstream: Ground) -> str:
    return jetstream.topic


@pytest.fixture
async def broker(client: Client, topic: str) -> NatsBroker:
    """An open client, with everything in place for the group billing."""
    made = client()
    await made.open()
    await made.apply_topology({"billing": [topic]})
    return made


async def receive(box: AsyncIterator[Delivery], *, within: float = 15) -> Delivery:
    async with asyncio.timeout(within):
        return await anext(box)


async def nothing(box: AsyncIterator[Delivery], seconds: float) -> None:
    """Insist that nothing comes for a while."""
    with pytest.raises(TimeoutError):
        await receive(box, within=seconds)


# Foreign messages


_FOREIGN: dict[str, tuple[bytes, bytes]] = {
    "nothing but a body": (b"", b"hello"),
    "no body": (b"", b""),
    "a header block without a line": (b"NATS/1.0", b"{}"),
    "a header block without its end": (b"NATS/1.0\r\npostroom-id: a", b"{}"),
    "an empty id": (b"NATS/1.0\r\nNats-Msg-Id: \r\n\r\n", b"{}"),
    "what looks like a status": (b"NATS/1.0 404 No Messages\r\n\r\n", b"{}"),
    "a status that is no text": (b"NATS/1.0 \xff\xfe\xfd\r\n\r\n", b"{}"),
    "bytes that are no text": (
        b"NATS/1.0\r\npostroom-id: \xff\xfe\r\n\xff\xff: \x80\r\npostroom-type: %ff%00\r\n\r\n",
        bytes(range(256)),
    ),
    "lines that are no headers": (b"NATS/1.0\r\nhello\r\n: x\r\n  : y\r\na:b:c\r\n\r\n", b"{}"),
    "a version that is no number": (b"NATS/1.0\r\npostroom-version: three\r\n\r\n", b"{}"),
    "a moment no datetime has": (
        b"NATS/1.0\r\npostroom-deliver-at: 4611686018427387904\r\n\r\n",
        b"{}",
    ),
    "a number without end": (b"NATS/1.0\r\npostroom-version: " + b"9" * 6000 + b"\r\n\r\n", b"{}"),
    "an envelope of another library": (
        b"NATS/1.0\r\nMT-Activity-Id: 1\r\n\r\n",
        b'{"messageType": ["urn:message:Shop:OrderPlaced"], "message": {}}',
    ),
}


@pytest.mark.parametrize("case", _FOREIGN)
async def test_a_foreign_message_arrives_and_stops_nobody(
    broker: NatsBroker, jetstream: Ground, topic: str, case: str
) -> None:
    headers, body = _FOREIGN[case]
    if headers:
        await jetstream.put_raw(headers, body)
    else:
        await jetstream.put(body)
    assert await outcome(broker, message("next", topic=topic)) == [None]

    async with broker.subscribe([topic], group="billing", prefetch=10) as box:
        foreign = await receive(box)
        assert foreign.message.payload == body
        assert foreign.message.topic == topic
        assert foreign.attempt == 1
        await foreign.reject("not ours")
        assert (await receive(box)).message.id == "next"

    [letter] = await broker.dead_letters("billing")
    assert letter.message == foreign.message
    assert letter.reason == "not ours"


async def test_a_message_without_an_id_has_the_empty_id_and_its_topic_for_a_type(
    broker: NatsBroker, jetstream: Ground, topic: str
) -> None:
    await jetstream.put(b"{}")

    async with broker.subscribe([topic], group="billing", prefetch=1) as box:
        found = (await receive(box)).message

    assert (found.id, found.type, found.content_type) == ("", topic, "application/octet-stream")


async def test_a_foreign_id_is_taken_as_it_is(
    broker: NatsBroker, jetstream: Ground, topic: str
) -> None:
    """Only ours are written with %XX, and say so."""
    await jetstream.put(b"{}", headers={"Nats-Msg-Id": "a%20b"})
    await outcome(broker, message("a b ", topic=topic), message("a%20b ", topic=topic))

    async with broker.subscribe([topic], group="billing", prefetch=5) as box:
        ids = [(await receive(box)).message.id for _ in range(3)]

    assert ids == ["a%20b", "a b ", "a%20b "]


async def test_a_dead_letter_keeps_the_bytes_that_others_put_in(
    broker: NatsBroker, jetstream: Ground, topic: str
) -> None:
    await jetstream.put_raw(
        b"NATS/1.0\r\nNats-Msg-Id: a\r\nX-Own: \xff\xfe\r\nX-Own: b\r\nNats-Own: x\r\n\r\n", b"x"
    )

    async with broker.subscribe([topic], group="billing", prefetch=1) as box:
        await (await receive(box)).reject("never")

    api = await broker._consuming().api()
    stored = await api.message(f"{jetstream.stream}-dead", {"seq": 1})
    assert stored is not None
    assert b"\r\nX-Own: \xff\xfe\r\nX-Own: b\r\n" in stored.headers
    assert b"\r\npostroom-id: a\r\n" in stored.headers
    assert b"\r\npostroom-reason: never\r\n" in stored.headers
    assert f"\r\npostroom-topic: {topic}\r\n".encode() in stored.headers
    assert b"Nats-Own" not in stored.headers


async def test_a_foreign_message_that_leaves_no_room_for_a_reason_is_told_of(
    broker: NatsBroker, jetstream: Ground, topic: str
) -> None:
    async with jetstream.client() as other:
        limit = other.max_payload
    await jetstream.put(b"x" * limit)

    async with broker.subscribe([topic], group="billing", prefetch=1) as box:
        await (await receive(box)).reject("never")

    [letter] = await broker.dead_letters("billing")
    assert letter.message.payload == b""
    assert letter.reason == f"never (its payload of {limit} bytes lies in the stream at 1)"
    with pytest.raises(BrokerUnavailable, match="no payload"):
        await broker.replay_dead("billing")


# Retries and attempts


async def test_a_short_delay_does_not_wait_behind_a_long_one(
    broker: NatsBroker, topic: str
) -> None:
    loop = asyncio.get_running_loop()
    async with broker.subscribe([topic], group="billing", prefetch=10) as box:
        await outcome(broker, message("long", topic=topic), message("short", topic=topic))
        first, second = await receive(box), await receive(box)
        begun = loop.time()
        await first.retry(timedelta(seconds=1), "not yet")
        await second.retry(SOON, "not yet")

        assert (await receive(box)).message.id == "short"
        assert loop.time() - begun < 0.8
        assert (await receive(box)).message.id == "long"
        assert loop.time() - begun >= 1


async def test_attempts_are_counted_across_processes_and_giving_back_is_not(
    client: Client, broker: NatsBroker, topic: str
) -> None:
    """However often it was delivered: only failures count, whoever had them."""
    other = client()
    await other.open()
    await outcome(broker, message("a", topic=topic))

    for turn in range(12):
        by = (broker, other)[turn % 2]
        async with by.subscribe([topic], group="billing", prefetch=1) as box:
            delivery = await receive(box)
            assert delivery.attempt == turn // 3 + 1
            assert delivery.redelivered is (turn > 0)
            if turn % 3 == 2:
                await delivery.retry(SOON, "not yet")


async def test_a_count_is_dropped_when_its_message_is_done(
    broker: NatsBroker, jetstream: Ground, topic: str
) -> None:
    await outcome(broker, message("a", topic=topic), message("b", topic=topic))
    async with broker.subscribe([topic], group="billing", prefetch=2) as box:
        for _ in range(2):
            await (await receive(box)).retry(SOON, "not yet")
        assert await jetstream.count(f"{jetstream.stream}-tries") == 2
        await (await receive(box)).ack()
        await (await receive(box)).reject("never")

    assert await jetstream.count(f"{jetstream.stream}-tries") == 0


async def test_a_count_of_a_stream_that_is_no_more_means_nothing(
    broker: NatsBroker, jetstream: Ground, topic: str
) -> None:
    """Numbers begin anew in a stream that was deleted and made again."""
    await outcome(broker, message("a", topic=topic))
    async with broker.subscribe([topic], group="billing", prefetch=1) as box:
        await (await receive(box)).retry(SOON, "not yet")
    async with jetstream.jetstream() as context:
        await context.delete_stream(jetstream.stream)
    await broker.apply_topology({"billing": [topic]})
    await outcome(broker, message("b", topic=topic))
    async with broker.subscribe([topic], group="billing", prefetch=1) as box:
        await receive(box)

    async with broker.subscribe([topic], group="billing", prefetch=1) as box:
        again = await receive(box)

    assert (again.message.id, again.redelivered, again.attempt) == ("b", True, 1)


async def test_nothing_is_let_go_of_before_it_is_kept(
    broker: NatsBroker, jetstream: Ground, topic: str
) -> None:
    """Neither a failure without its count nor a dead letter that no stream took."""
    async with broker.subscribe([topic], group="billing", prefetch=1) as box:
        await outcome(broker, message("a", topic=topic))
        delivery = await receive(box)
        async with jetstream.jetstream() as context:
            await context.delete_stream(f"{jetstream.stream}-dead")
            await context.delete_stream(f"{jetstream.stream}-tries")

        with pytest.raises(BrokerUnavailable, match="no stream takes"):
            await delivery.reject("poison")
        with pytest.raises(BrokerUnavailable, match="no stream takes"):
            await delivery.retry(SOON, "not yet")
        [status] = await broker.queues()
        assert status.out == 1

        await broker.apply_topology({"billing": [topic]})
        await delivery.retry(SOON, "then later")
        assert (await receive(box)).attempt == 2


async def test_no_more_are_asked_for_than_there_is_room_for(client: Client, topic: str) -> None:
    """Told by the server, also after a while; and what is acknowledged is done for it at once."""
    broker = client(ack_wait=timedelta(seconds=0.5))
    await broker.open()
    await broker.apply_topology({"billing": [topic]})
    await outcome(broker, *(message(str(number), topic=topic) for number in range(10)))
    async with broker.subscribe([topic], group="billing", prefetch=4) as box:
        held = [await receive(box), await receive(box)]
        await asyncio.sleep(0.6)
        [status] = await broker.queues()
        assert (status.ready, status.out) == (6, 4)

        for one in held:
            await one.ack()
        await receive(box)
        await asyncio.sleep(0.6)
        [status] = await broker.queues()
        assert (status.ready, status.out) == (4, 4)


async def test_a_message_is_kept_while_its_handler_works_on(
    client: Client, jetstream: Ground, topic: str
) -> None:
    """Three times as long as the server waits; those behind it in the process are kept too."""
    brokers = [client(ack_wait=timedelta(seconds=0.5)), client()]
    for one in brokers:
        await one.open()
    await brokers[0].apply_topology({"billing": [topic]})
    await outcome(brokers[0], message("a", topic=topic), message("b", topic=topic))
    async with (
        brokers[0].subscribe([topic], group="billing", prefetch=2) as box,
        brokers[1].subscribe([topic], group="billing", prefetch=2) as other,
    ):
        held = await receive(box)
        await nothing(other, 1.5)
        await held.ack()
        behind = await receive(box)
        assert (behind.message.id, behind.redelivered) == ("b", False)
        await behind.ack()
        await nothing(other, 0.8)
    [status] = await brokers[0].queues()
    assert (status.ready, status.out) == (0, 0)
    del jetstream


async def test_who_was_frozen_does_not_answer_for_what_others_have(
    client: Client, topic: str
) -> None:
    """The whole process stands still for longer than the server waits."""
    brokers = [client(ack_wait=timedelta(seconds=0.5)), client()]
    for one in brokers:
        await one.open()
    await brokers[0].apply_topology({"billing": [topic]})
    await outcome(brokers[0], message("a", topic=topic))
    async with brokers[0].subscribe([topic], group="billing", prefetch=2) as box:
        late = await receive(box)
        time.sleep(0.8)  # noqa: ASYNC251 - that is what is tested

        with pytest.raises(DeliveryLost):
            await late.ack()
    async with brokers[1].subscribe([topic], group="billing", prefetch=1) as box:
        again = await receive(box)
        assert (again.message.id, again.redelivered, again.attempt) == ("a", True, 1)
        await again.ack()


async def test_what_expires_before_it_is_handed_out_becomes_a_dead_letter(
    broker: NatsBroker, topic: str
) -> None:
    late = message("late", topic=topic, expires_at=datetime.now(UTC) - timedelta(seconds=1))
    await outcome(broker, late, message("next", topic=topic))

    async with broker.subscribe([topic], group="billing", prefetch=5) as box:
        assert (await receive(box)).message.id == "next"

    [letter] = await broker.dead_letters("billing")
    assert (letter.message, letter.reason, letter.attempts) == (late, "expired", 0)


async def test_leaving_gives_everything_back_at_once_and_in_order(
    client: Client, broker: NatsBroker, topic: str
) -> None:
    """Also what nobody has seen yet; the server's own patience of 30 seconds is not awaited."""
    names = [f"{number:02}" for number in range(20)]
    await outcome(broker, *(message(name, topic=topic, key="k") for name in names))
    async with broker.subscribe([topic], group="billing", prefetch=20) as box:
        assert [(await receive(box)).message.id for _ in range(3)] == names[:3]

    other = client()
    await other.open()
    async with other.subscribe([topic], group="billing", prefetch=20) as box:
        again = [await receive(box, within=3) for _ in names]

    assert [one.message.id for one in again] == names
    assert {one.attempt for one in again} == {1}


async def test_a_released_message_comes_before_what_came_after_it(
    broker: NatsBroker, topic: str
) -> None:
    await outcome(broker, *(message(name, topic=topic, key="k") for name in "abcd"))
    async with broker.subscribe([topic], group="billing", prefetch=10) as box:
        first, second = await receive(box), await receive(box)
        await second.release()
        await first.release()

        again = [await receive(box) for _ in range(4)]

    assert [one.message.id for one in again] == ["a", "b", "c", "d"]
    assert [one.redelivered for one in again] == [True, True, False, False]


# Losing


async def test_a_deleted_consumer_ends_the_subscription(
    broker: NatsBroker, jetstream: Ground, topic: str
) -> None:
    async with broker.subscribe([topic], group="billing", prefetch=1) as box:
        waiting = asyncio.create_task(receive(box))
        await outcome(broker, message("a", topic=topic))
        held = await waiting
        waiting = asyncio.create_task(receive(box))
        async with jetstream.jetstream() as context:
            await context.delete_consumer(jetstream.stream, "billing")

        with pytest.raises(DeliveryLost, match="deleted"):
            await held.ack()
        with pytest.raises(BrokerUnavailable, match=r"Consumer Deleted|does not exist"):
            await waiting
    with pytest.raises(BrokerUnavailable, match="postroom topology --apply"):
        async with broker.subscribe([topic], group="billing", prefetch=1):
            pass


async def test_a_deleted_stream_ends_the_subscription(
    broker: NatsBroker, jetstream: Ground, topic: str
) -> None:
    async with broker.subscribe([topic], group="billing", prefetch=1) as box:
        waiting = asyncio.create_task(receive(box))
        async with jetstream.jetstream() as context:
            await context.delete_stream(jetstream.stream)

        with pytest.raises(BrokerUnavailable, match=r"Consumer Deleted|does not exist"):
            await waiting


async def test_a_reset_connection_loses_nothing_and_keeps_the_order(
    client: Client, broker: NatsBroker, jetstream: Ground, topic: str
) -> None:
    """What was done is acknowledged over another connection; the rest comes again, and first."""
    with Proxy("127.0.0.1", urlsplit(jetstream.url).port or 0) as proxy:
        other = client(f"nats://127.0.0.1:{proxy.port}")
        await other.open()
        await outcome(broker, *(message(name, topic=topic, key="k") for name in "abc"))
        async with other.subscribe([topic], group="billing", prefetch=2) as box:
            done, held = await receive(box), await receive(box)
            assert held.message.id == "b"
            proxy.reset()
            with pytest.raises(BrokerUnavailable):
                await receive(box)
            await done.ack()

        async with other.subscribe([topic], group="billing", prefetch=5) as box:
            again = [await receive(box, within=3) for _ in range(2)]

    assert [one.message.id for one in again] == ["b", "c"]
    assert [one.redelivered for one in again] == [True, False]


async def test_a_silent_wire_is_noticed(
    client: Client, broker: NatsBroker, jetstream: Ground, topic: str
) -> None:
    del broker
    with Proxy("127.0.0.1", urlsplit(jetstream.url).port or 0) as proxy:
        other = client(
            f"nats://127.0.0.1:{proxy.port}",
            heartbeat=timedelta(seconds=1),
            connect_timeout=timedelta(seconds=0.5),
        )
        await other.open()
        async with other.subscribe([topic], group="billing", prefetch=1) as box:
            proxy.silence()
            with pytest.raises(BrokerUnavailable, match="no sign of life"):
                await receive(box, within=6)


# Groups and their dead letters


async def test_dead_letters_are_shown_replayed_and_discarded(
    broker: NatsBroker, topic: str
) -> None:
    await broker.apply_topology({"audit": [topic]})
    names = ["a", "b", "c", "d"]
    await outcome(broker, *(message(name, topic=topic, key=name) for name in names))
    async with broker.subscribe([topic], group="billing", prefetch=10) as box:
        for _ in names:
            delivery = await receive(box)
            await delivery.reject(f"{delivery.message.id} is poison")

    letters = await broker.dead_letters("billing")
    assert await broker.dead_letters() == letters
    assert await broker.dead_letters("audit") == []
    assert [letter.message.id for letter in letters] == names
    assert [letter.attempts for letter in letters] == [1] * 4
    assert [letter.group for letter in letters] == ["billing"] * 4
    assert letters[0].reason == "a is poison"
    assert abs(letters[0].died_at - datetime.now(UTC)) < timedelta(minutes=1)
    assert len(await broker.dead_letters("billing", limit=2)) == 2

    assert await broker.discard_dead("billing", [letters[1].position]) == 1
    assert await broker.replay_dead("billing", [letters[2].position, 10_000]) == 1
    assert await broker.replay_dead("billing", limit=1) == 1
    assert [one.message.id for one in await broker.dead_letters("billing")] == ["d"]

    found = {one.group: (one.ready, one.out, one.dead) for one in await broker.queues()}
    assert found == {"audit": (4, 0, 0), "billing": (2, 0, 1)}
    async with broker.subscribe([topic], group="billing", prefetch=10) as box:
        again = [await receive(box), await receive(box)]
        expected = [message("c", topic=topic, key="c"), message("a", topic=topic, key="a")]
        assert [one.message for one in again] == expected
        assert [one.attempt for one in again] == [1, 1]
        await again[0].reject("still poison")
    assert [one.message.id for one in await broker.dead_letters("billing")] == ["d", "c"]


async def test_a_group_without_a_consumer_has_nothing(broker: NatsBroker) -> None:
    assert await broker.dead_letters("nobody") == []
    assert await broker.replay_dead("nobody") == 0
    assert await broker.discard_dead("nobody") == 0
    assert await broker.drop_group("nobody") == 0


async def test_dropping_a_group_ends_it_and_no_other(broker: NatsBroker, topic: str) -> None:
    await broker.apply_topology({"audit": [topic]})
    await outcome(broker, *(message(name, topic=topic) for name in "abc"))
    async with broker.subscribe([topic], group="billing", prefetch=1) as box:
        await (await receive(box)).reject("poison")

    assert await broker.drop_group("billing") == 3

    assert [one.group for one in await broker.queues()] == ["audit"]
    async with broker.subscribe([topic], group="audit", prefetch=5) as box:
        assert [(await receive(box)).message.id for _ in range(3)] == ["a", "b", "c"]


async def test_dropping_a_topic_leaves_the_others(broker: NatsBroker, topic: str) -> None:
    other = f"{topic}-other"
    await broker.apply_topology({"billing": [other]})
    await outcome(broker, message("a", topic=topic), message("b", topic=other))
    async with broker.subscribe([topic], group="billing", prefetch=1) as box:
        for _ in range(2):
            await (await receive(box)).reject("poison")

    assert await broker.drop_group("billing", [topic]) == 1

    assert [letter.message.id for letter in await broker.dead_letters("billing")] == ["b"]
    await outcome(broker, message("c", topic=topic), message("d", topic=other))
    async with broker.subscribe([topic], group="billing", prefetch=1) as box:
        assert (await receive(box)).message.id == "d"


@pytest.mark.parametrize("group", ["shop.billing", "a b", "größe", "a*b>c", "a/b\\c", "%2E"])
async def test_any_name_can_be_a_group(broker: NatsBroker, topic: str, group: str) -> None:
    await broker.apply_topology({group: [topic]})
    await outcome(broker, message("a", topic=topic))

    async with broker.subscribe([topic], group=group, prefetch=1) as box:
        await (await receive(box)).retry(SOON, "not yet")
        await (await receive(box)).reject("poison")

    assert group in {one.group for one in await broker.queues()}
    [letter] = await broker.dead_letters(group)
    assert (letter.group, letter.message.id, letter.attempts) == (group, "a", 2)


# Topology


async def test_applying_a_topology_adds_and_never_removes(
    broker: NatsBroker, jetstream: Ground, topic: str
) -> None:
    more = f"{topic}-more"
    for _ in range(2):
        await broker.apply_topology({"billing": [more]})

    async with jetstream.jetstream() as context:
        stream = await context.stream_info(jetstream.stream)
        consumer = await context.consumer_info(jetstream.stream, "billing")
    again = f"{jetstream.stream}.again"
    assert set(stream.config.subjects or []) == {f"{again}.>", topic, more}
    assert set(consumer.config.filter_subjects or []) == {f"{again}.billing", topic, more}
    assert consumer.config.max_deliver == -1
    assert consumer.config.ack_policy == "explicit"


async def test_a_stream_of_somebody_elses_making_is_kept_as_it_is(
    client: Client, jetstream: Ground, topic: str
) -> None:
    """It takes the topics already, by a pattern; only what the driver needs is added."""
    await jetstream.make(f"{topic}.>", max_msgs=1000, description="theirs")
    broker = client()
    await broker.open()

    await broker.apply_topology({"billing": [f"{topic}.paid"]})

    async with jetstream.jetstream() as context:
        config = (await context.stream_info(jetstream.stream)).config
    assert config.subjects == [f"{topic}.>", f"{jetstream.stream}.again.>"]
    assert (config.max_msgs, config.description) == (1000, "theirs")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"ack_wait": timedelta(seconds=7)}, "ack_wait is 30000000000"),
        ({"replicas": 3}, "num_replicas is 1, not 3"),
        ({"max_age": timedelta(days=1)}, "max_age is 0"),
        ({"duplicate_window": timedelta(minutes=1)}, "duplicate_window is 120000000000"),
    ],
)
async def test_what_is_made_differently_is_said_and_left(
    client: Client, broker: NatsBroker, topic: str, options: dict[str, Any], said: str
) -> None:
    del broker
    other = client(**options)
    await other.open()

    with pytest.raises(SettingsError, match=said):
        await other.apply_topology({"billing": [topic]})


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"max_deliver": 5}, "drops a message after 5 deliveries"),
        ({"ack_policy": "all"}, "does not wait for each acknowledgement"),
        ({"deliver_subject": "somewhere"}, "pushes"),
    ],
)
async def test_a_consumer_that_would_lose_messages_is_refused(
    client: Client, jetstream: Ground, topic: str, config: dict[str, Any], said: str
) -> None:
    await jetstream.make()
    async with jetstream.jetstream() as context:
        await context.add_consumer(
            jetstream.stream,
            ConsumerConfig(durable_name="billing", **{"ack_policy": "explicit", **config}),
        )
    broker = client()
    await broker.open()

    with pytest.raises(SettingsError, match=said):
        await broker.apply_topology({"billing": [topic]})
    with pytest.raises(SettingsError, match=said):
        async with broker.subscribe([topic], group="billing", prefetch=1):
            pass


async def test_topics_that_another_stream_takes_are_said(
    client: Client, jetstream: Ground, topic: str
) -> None:
    async with jetstream.jetstream() as context:
        await context.add_stream(name=f"{jetstream.stream}-dead", subjects=[topic])
    broker = client()
    await broker.open()

    with pytest.raises(SettingsError, match="subjects overlap"):
        await broker.apply_topology({"billing": [topic]})


async def test_a_topic_that_no_group_wants_is_refused(broker: NatsBroker, topic: str) -> None:
    results = await outcome(
        broker, message("a", topic=topic), message("b", topic=f"{topic}-unwanted")
    )

    assert kinds(results) == [None, RefusedForNow]
