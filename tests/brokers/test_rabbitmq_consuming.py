"""Consuming from a real RabbitMQ: foreign messages, retries, dead letters, and lost queues."""

import asyncio
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import urlsplit
from uuid import uuid4

import pytest
from pamqp import commands

from postroom.broker import Delivery
from postroom.brokers.rabbitmq import RabbitmqBroker, frames
from postroom.brokers.rabbitmq import topology as plan
from postroom.brokers.rabbitmq.frames import number_value, short, text_value
from postroom.brokers.rabbitmq.topology import LONGEST, UNIT, Names, QueueType, delay_route
from postroom.errors import BrokerUnavailable, DeliveryLost, RefusedForNow, SettingsError
from postroom.lab.servers.proxy import Proxy
from tests.brokers.rabbit import TOPIC, at_port, count, do, get, message, outcome, put
from tests.rabbitmq import Ground

SOON = timedelta(milliseconds=50)
Client = Callable[..., RabbitmqBroker]


@pytest.fixture(params=["classic", "quorum"])
def queue_type(request: pytest.FixtureRequest) -> QueueType:
    found: QueueType = request.param
    return found


@pytest.fixture
def exchange() -> str:
    return f"test-{uuid4().hex[:8]}"


@pytest.fixture
async def client(rabbit: Ground, exchange: str, queue_type: QueueType) -> AsyncIterator[Client]:
    """Makes clients of the server, which are closed after the test."""
    made: list[RabbitmqBroker] = []

    def make(url: str = rabbit.url, **options: Any) -> RabbitmqBroker:
        made.append(RabbitmqBroker(url, exchange=exchange, queue_type=queue_type, **options))
        return made[-1]

    yield make
    for broker in made:
        await broker.close()


@pytest.fixture
async def broker(client: Client) -> RabbitmqBroker:
    """An open client, with everything in place for the group billing."""
    made = client()
    await made.open()
    await made.apply_topology({"billing": [TOPIC]})
    return made


async def receive(box: AsyncIterator[Delivery]) -> Delivery:
    async with asyncio.timeout(15):
        return await anext(box)


# Foreign messages


_FOREIGN: dict[str, tuple[dict[int, bytes], frames.Table, bytes]] = {
    "nothing but a body": ({}, {}, b"hello"),
    "no body": ({}, {}, b""),
    "an empty id": ({frames.MESSAGE_ID: short("")}, {}, b"{}"),
    "bytes that are no text": (
        {frames.MESSAGE_ID: b"\x03\xff\xfe\x00", frames.TYPE: b"\x01\x80"},
        {b"\xff": b"S" + (1).to_bytes(4) + b"\xff"},
        bytes(range(256)),
    ),
    "a key that is a number": ({}, {b"postroom-key": number_value(7)}, b"{}"),
    "a version that is a text": ({}, {b"postroom-version": text_value("three")}, b"{}"),
    "a moment no datetime has": ({}, {b"postroom-deliver-at": number_value(2**62)}, b"{}"),
    "attempts below zero": ({}, {b"postroom-attempts": number_value(-5)}, b"{}"),
    "an envelope of another library": (
        {frames.CONTENT_TYPE: short("application/vnd.masstransit+json")},
        {b"MT-Activity-Id": text_value("1")},
        b'{"messageType": ["urn:message:Shop:OrderPlaced"], "message": {}}',
    ),
}


@pytest.mark.parametrize("case", _FOREIGN)
async def test_a_foreign_message_arrives_and_stops_nobody(
    broker: RabbitmqBroker, rabbit: Ground, exchange: str, case: str
) -> None:
    fields, headers, body = _FOREIGN[case]
    await put(rabbit.url, exchange, TOPIC, body, fields=fields, headers=headers)
    assert await outcome(broker, message("next")) == [None]

    async with broker.subscribe([TOPIC], group="billing", prefetch=10) as box:
        foreign = await receive(box)
        assert foreign.message.payload == body
        assert foreign.message.topic == TOPIC
        assert foreign.attempt == 1
        await foreign.reject("not ours")
        assert (await receive(box)).message.id == "next"

    [letter] = await broker.dead_letters("billing")
    assert letter.message == foreign.message
    assert letter.reason == "not ours"


async def test_a_message_without_an_id_has_the_empty_id_and_its_topic_for_a_type(
    broker: RabbitmqBroker, rabbit: Ground, exchange: str
) -> None:
    await put(rabbit.url, exchange, TOPIC, b"{}")

    async with broker.subscribe([TOPIC], group="billing", prefetch=1) as box:
        found = (await receive(box)).message

    assert (found.id, found.type, found.content_type) == ("", TOPIC, "application/octet-stream")


async def test_header_values_that_are_no_text_become_text(
    broker: RabbitmqBroker, rabbit: Ground, exchange: str
) -> None:
    headers = {
        b"text": text_value("as it is"),
        b"number": b"I" + (-7).to_bytes(4, signed=True),
        b"yes": b"t\x01",
        b"nothing": b"V",
        b"moment": b"T" + (1_700_000_000).to_bytes(8),
        b"list": b"A"
        + (10).to_bytes(4)
        + b"S"
        + (3).to_bytes(4)
        + b"abt\x01"[:2]
        + b"c"
        + b"t\x01",
        b"table": b"F" + frames.pack_table({b"a": number_value(1)}),
        b"decimal": b"D\x02" + (12345).to_bytes(4),
    }
    await put(rabbit.url, exchange, TOPIC, b"{}", headers=headers)

    async with broker.subscribe([TOPIC], group="billing", prefetch=1) as box:
        found = (await receive(box)).message.headers

    assert found == {
        "text": "as it is",
        "number": "-7",
        "yes": "true",
        "nothing": "null",
        "moment": "2023-11-14T22:13:20Z",
        "list": '["abc", true]',
        "table": '{"a": 1}',
        "decimal": "123.45",
    }


async def test_a_retry_and_a_dead_letter_keep_what_others_put_in(
    broker: RabbitmqBroker, rabbit: Ground, exchange: str
) -> None:
    """Fields that mean nothing to us, and the kinds of header values, survive each move."""
    correlation, expiration = 1 << 10, frames.EXPIRATION
    fields = {correlation: short("req-1"), expiration: short("3600000")}
    await put(rabbit.url, exchange, TOPIC, b"{}", fields=fields, headers={b"n": number_value(1)})

    async with broker.subscribe([TOPIC], group="billing", prefetch=1) as box:
        await (await receive(box)).retry(SOON, "not yet")
        again = await receive(box)
        assert again.attempt == 2
        await again.reject("never")

    content = await get(rabbit.url, f"{exchange}.billing.dead")
    assert content is not None
    _, properties = frames.read_header(content.header)
    assert properties.text(correlation) == "req-1"
    assert properties.text(expiration) is None
    assert properties.number(b"n") == 1


async def test_names_that_mean_something_to_rabbitmq_are_carried_all_the_same(
    broker: RabbitmqBroker,
) -> None:
    """CC as text would make it close the channel; x-death it would write itself."""
    headers = dict.fromkeys(("CC", "BCC", "x-death", "X-Delay", "postroom-key", "x-own"), "mine")
    headers["postroom-header-CC"] = "mine too"
    sent = message("a", headers=headers)

    async with broker.subscribe([TOPIC], group="billing", prefetch=1) as box:
        assert await outcome(broker, sent) == [None]
        first = await receive(box)
        assert first.message == sent
        await first.retry(SOON, "not yet")
        assert (await receive(box)).message == sent


# Retries


async def test_a_short_delay_does_not_wait_behind_a_long_one(broker: RabbitmqBroker) -> None:
    loop = asyncio.get_running_loop()
    async with broker.subscribe([TOPIC], group="billing", prefetch=10) as box:
        await outcome(broker, message("long"), message("short"))
        first, second = await receive(box), await receive(box)
        begun = loop.time()
        await first.retry(timedelta(seconds=2), "not yet")
        await second.retry(SOON, "not yet")

        assert (await receive(box)).message.id == "short"
        assert loop.time() - begun < 1.5
        assert (await receive(box)).message.id == "long"
        assert loop.time() - begun >= 2


@pytest.mark.parametrize("seconds", [0, 0.05, 0.1, 1, 37.3, 300, 6553.5])
def test_a_delay_is_the_sum_of_its_queues(seconds: float, queue_type: QueueType) -> None:
    names = Names(exchange="e", queue_type=queue_type, single_active=True)
    wanted = timedelta(seconds=seconds)

    _, key = delay_route(names, "billing", wanted)

    bits = key.split(".")[:-1]
    total = sum(
        (UNIT * 2**level for level, bit in enumerate(reversed(bits)) if bit == "1"), SOON * 0
    )
    assert wanted <= total < wanted + UNIT or total == UNIT


async def test_a_delay_beyond_the_longest_goes_round_again(
    broker: RabbitmqBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The longest pass is made short here; the message is handed out only when it is due."""
    longest = timedelta(milliseconds=200)
    monkeypatch.setattr("postroom.brokers.rabbitmq.subscription.LONGEST", longest)
    loop = asyncio.get_running_loop()
    async with broker.subscribe([TOPIC], group="billing", prefetch=1) as box:
        await outcome(broker, message("a"))
        delivery = await receive(box)
        begun = loop.time()
        await delivery.retry(timedelta(seconds=0.7), "not yet")
        again = await receive(box)

        assert loop.time() - begun >= 0.68
        assert again.attempt == 2
        await again.ack()
    assert longest < LONGEST


async def test_giving_back_often_buries_nothing(broker: RabbitmqBroker) -> None:
    """It is no failure, however often it happens; a quorum queue's own limit must not count it."""
    await outcome(broker, message("a"))
    for _ in range(30):
        async with broker.subscribe([TOPIC], group="billing", prefetch=1) as box:
            await (await receive(box)).release()

    async with broker.subscribe([TOPIC], group="billing", prefetch=1) as box:
        assert (await receive(box)).attempt == 1


async def test_a_copy_that_cannot_be_kept_leaves_the_delivery_open(
    broker: RabbitmqBroker, rabbit: Ground, exchange: str
) -> None:
    """Nothing is acknowledged before its copy is confirmed."""
    async with broker.subscribe([TOPIC], group="billing", prefetch=1) as box:
        await outcome(broker, message("a"))
        delivery = await receive(box)
        await do(rabbit.url, commands.Queue.Delete(queue=f"{exchange}.billing.dead"))

        with pytest.raises(BrokerUnavailable, match="no copy could be kept"):
            await delivery.reject("poison")
        await delivery.retry(SOON, "then later")

        assert (await receive(box)).attempt == 2


async def test_what_is_too_large_for_a_reason_is_buried_as_it_came(
    broker: RabbitmqBroker, rabbit: Ground, exchange: str
) -> None:
    """Its properties fill a frame; RabbitMQ moves it itself, without our reason."""
    headers = {b"filler": text_value("x" * 130_950)}
    await put(rabbit.url, exchange, TOPIC, b"body", headers=headers)

    async with broker.subscribe([TOPIC], group="billing", prefetch=1) as box:
        await (await receive(box)).reject("a reason that does not fit")

    [letter] = await until_dead(broker, 1)
    assert letter.message.payload == b"body"
    assert letter.message.topic == TOPIC
    assert "rejected" in letter.reason


# Losing


async def test_a_deleted_queue_ends_the_subscription(
    broker: RabbitmqBroker, rabbit: Ground, exchange: str
) -> None:
    async with broker.subscribe([TOPIC], group="billing", prefetch=1) as box:
        waiting = asyncio.create_task(receive(box))
        await asyncio.sleep(0.05)
        await do(rabbit.url, commands.Queue.Delete(queue=f"{exchange}.billing"))

        with pytest.raises(BrokerUnavailable, match="deleted"):
            await waiting


async def test_a_reset_connection_ends_the_subscription_and_loses_nothing(
    client: Client, broker: RabbitmqBroker, rabbit: Ground
) -> None:
    with Proxy("127.0.0.1", urlsplit(rabbit.url).port or 0) as proxy:
        other = client(at_port(rabbit.url, proxy.port))
        await other.open()
        await outcome(broker, message("a"))
        async with other.subscribe([TOPIC], group="billing", prefetch=1) as box:
            held = await receive(box)
            proxy.reset()
            with pytest.raises(BrokerUnavailable):
                await receive(box)
            with pytest.raises(DeliveryLost):
                await held.ack()

        async with other.subscribe([TOPIC], group="billing", prefetch=1) as box:
            again = await receive(box)
            assert (again.message.id, again.redelivered, again.attempt) == ("a", True, 1)


async def test_a_silent_wire_is_noticed_by_the_heartbeat(
    client: Client, broker: RabbitmqBroker, rabbit: Ground
) -> None:
    del broker
    with Proxy("127.0.0.1", urlsplit(rabbit.url).port or 0) as proxy:
        other = client(at_port(rabbit.url, proxy.port), heartbeat=timedelta(seconds=1))
        await other.open()
        async with other.subscribe([TOPIC], group="billing", prefetch=1) as box:
            proxy.silence()
            async with asyncio.timeout(6):
                with pytest.raises(BrokerUnavailable, match="no sign of life"):
                    await anext(box)


async def test_one_consumer_of_a_group_is_active_and_another_takes_over(
    client: Client, broker: RabbitmqBroker
) -> None:
    """In order, and what the first had in its hands comes first."""
    other = client()
    await other.open()
    async with (
        broker.subscribe([TOPIC], group="billing", prefetch=2) as first,
        other.subscribe([TOPIC], group="billing", prefetch=10) as second,
    ):
        await outcome(broker, *(message(str(number), key="k") for number in range(6)))
        mine = [await receive(first), await receive(first)]
        waiting = asyncio.create_task(receive(second))
        await asyncio.sleep(0.3)
        assert not waiting.done()
        assert [one.message.id for one in mine] == ["0", "1"]
        await mine[0].ack()
        await broker.close()

        names = [(await waiting).message.id]
        names += [(await receive(second)).message.id for _ in range(4)]

    assert names == ["1", "2", "3", "4", "5"]


async def test_what_expires_before_it_is_handed_out_becomes_a_dead_letter(
    broker: RabbitmqBroker,
) -> None:
    late = message("late", expires_at=datetime.now(UTC) - timedelta(seconds=1))
    await outcome(broker, late, message("next"))

    async with broker.subscribe([TOPIC], group="billing", prefetch=5) as box:
        assert (await receive(box)).message.id == "next"

    [letter] = await until_dead(broker, 1)
    assert (letter.message, letter.reason, letter.attempts) == (late, "expired", 0)


async def test_the_rights_that_the_page_names_are_enough(
    client: Client, broker: RabbitmqBroker, rabbit: Ground, exchange: str
) -> None:
    """For a relay, and for a consumer; neither may configure anything."""
    name = exchange.replace("-", "[-]")
    rights = {
        "relay": {"configure": "^$", "write": f"^{name}$", "read": "^$"},
        "consumer": {
            "configure": "^$",
            "write": r"^(amq\.default|postroom\.delay\..*)$",
            "read": rf"^{name}\.billing.*$",
        },
    }
    clients = {}
    for role, allowed in rights.items():
        user = f"{exchange}-{role}"
        rabbit.api("PUT", f"/users/{user}", {"password": "pw", "tags": ""})
        rabbit.api("PUT", f"/permissions/{{vhost}}/{user}", allowed)
        port = urlsplit(rabbit.url).port or 0
        clients[role] = client(at_port(rabbit.url, port, user=f"{user}:pw"))
        await clients[role].open()
    relay, consumer = clients["relay"], clients["consumer"]

    await relay.ping()
    assert await outcome(relay, message("a"), message("b")) == [None, None]
    async with consumer.subscribe([TOPIC], group="billing", prefetch=1) as box:
        await (await receive(box)).retry(SOON, "not yet")
        await (await receive(box)).reject("poison")
        await (await receive(box)).ack()
    assert [letter.reason for letter in await until_dead(consumer, 1)] == ["poison"]
    assert await consumer.replay_dead("billing") == 1
    for role in rights:
        rabbit.api("DELETE", f"/users/{exchange}-{role}")
    del broker


# Dead letters, queues, topology


async def until_dead(broker: RabbitmqBroker, count: int) -> list[Any]:
    """Wait until a group has so many dead letters: RabbitMQ moves them in its own time."""
    async with asyncio.timeout(15):
        while len(letters := await broker.dead_letters("billing")) < count:
            await asyncio.sleep(0.05)
    return list(letters)


async def test_dead_letters_are_shown_replayed_and_discarded(broker: RabbitmqBroker) -> None:
    names = ["a", "b", "c", "d"]
    await outcome(broker, *(message(name, key=name) for name in names))
    async with broker.subscribe([TOPIC], group="billing", prefetch=10) as box:
        for _ in names:
            delivery = await receive(box)
            await delivery.reject(f"{delivery.message.id} is poison")

    letters = await until_dead(broker, 4)
    assert await broker.dead_letters("billing") == letters
    assert [letter.message.id for letter in letters] == names
    assert [letter.attempts for letter in letters] == [1] * 4
    assert letters[0].reason == "a is poison"
    assert abs(letters[0].died_at - datetime.now(UTC)) < timedelta(minutes=1)
    assert len(await broker.dead_letters("billing", limit=2)) == 2

    assert await broker.discard_dead("billing", [letters[1].position]) == 1
    assert await broker.replay_dead("billing", [letters[2].position, 1]) == 1
    assert await broker.replay_dead("billing", limit=1) == 1
    assert [one.message.id for one in await until_dead(broker, 1)] == ["d"]

    [status] = await broker.queues()
    assert (status.group, status.topic, status.ready, status.dead) == ("billing", "*", 2, 1)
    async with broker.subscribe([TOPIC], group="billing", prefetch=10) as box:
        again = [await receive(box), await receive(box)]
        assert [one.message for one in again] == [message("c", key="c"), message("a", key="a")]
        assert [one.attempt for one in again] == [1, 1]


async def test_a_group_without_queues_has_nothing(broker: RabbitmqBroker) -> None:
    assert await broker.dead_letters("nobody") == []
    assert await broker.replay_dead("nobody") == 0
    assert await broker.discard_dead("nobody") == 0
    assert await broker.drop_group("nobody") == 0


async def test_dropping_a_group_deletes_its_queues(
    broker: RabbitmqBroker, rabbit: Ground, exchange: str
) -> None:
    await broker.apply_topology({"audit": [TOPIC]})
    await outcome(broker, message("a"), message("b"))

    assert await broker.drop_group("billing") == 2

    assert await count(rabbit.url, f"{exchange}.audit") == 2
    with pytest.raises(BrokerUnavailable, match="does not exist"):
        async with broker.subscribe([TOPIC], group="billing", prefetch=1):
            pass


async def test_dropping_a_topic_leaves_the_others(
    broker: RabbitmqBroker, rabbit: Ground, exchange: str
) -> None:
    await broker.apply_topology({"billing": [TOPIC, "other"]})
    await outcome(broker, message("a"), message("b", topic="other"), message("c"))
    async with broker.subscribe([TOPIC], group="billing", prefetch=1) as box:
        for _ in range(2):
            await (await receive(box)).reject("poison")
    await until_dead(broker, 2)

    assert await broker.drop_group("billing", [TOPIC]) == 1

    assert [letter.message.id for letter in await until_dead(broker, 1)] == ["b"]
    assert await count(rabbit.url, f"{exchange}.billing") == 1
    late = await outcome(broker, message("d"), message("e", topic="other"))
    assert [type(one) for one in late] == [RefusedForNow, type(None)]


async def test_applying_a_topology_again_changes_nothing(
    broker: RabbitmqBroker, queue_type: QueueType
) -> None:
    wanted = {"billing": [TOPIC]}
    await broker.apply_topology(wanted)

    parts = broker.topology(wanted)

    assert ("exchange", broker._names.exchange) in [(part.kind, part.name) for part in parts]
    [main] = [part for part in parts if part.name == f"{broker._names.exchange}.billing"]
    assert queue_type in main.detail
    assert "x-single-active-consumer=True" in main.detail


async def test_what_is_made_differently_is_said_and_left(
    client: Client, broker: RabbitmqBroker
) -> None:
    other = client(single_active_consumer=False)
    await other.open()
    del broker

    with pytest.raises(SettingsError, match="made differently"):
        await other.apply_topology({"billing": [TOPIC]})


@pytest.mark.parametrize("version", [(3, 10), (4, 0)])
def test_a_newer_broker_is_told_to_forget_its_delivery_limit(version: tuple[int, int]) -> None:
    names = Names(exchange="e", queue_type="quorum", single_active=True)

    made = plan.declarations(names, {"billing": [TOPIC]}, version=version)

    queues = [one.method for one in made if isinstance(one.method, commands.Queue.Declare)]
    limits = {(queue.arguments or {}).get("x-delivery-limit") for queue in queues}
    assert limits == {-1 if version >= (4, 0) else None}
