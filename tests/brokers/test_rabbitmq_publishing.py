"""Each class of error, provoked on a real RabbitMQ, and what a publish promises beside it."""

import asyncio
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import urlsplit
from uuid import uuid4

import pytest
from pamqp import commands

from postroom.brokers.rabbitmq import RabbitmqBroker, frames
from postroom.errors import BrokerUnavailable, OutcomeUnknown, RefusedForGood, RefusedForNow
from postroom.lab.servers.proxy import Proxy
from tests.brokers.rabbit import (
    TOPIC,
    at_port,
    bound_queue,
    count,
    do,
    get,
    kinds,
    message,
    outcome,
)
from tests.rabbitmq import Ground

SHORT = timedelta(seconds=1)
Client = Callable[..., RabbitmqBroker]


@pytest.fixture
def exchange() -> str:
    return f"test-{uuid4().hex[:8]}"


@pytest.fixture
async def client(rabbit: Ground, exchange: str) -> AsyncIterator[Client]:
    """Makes clients of the server, which are closed after the test."""
    made: list[RabbitmqBroker] = []

    def make(url: str = rabbit.url, **options: Any) -> RabbitmqBroker:
        made.append(RabbitmqBroker(url, exchange=exchange, **options))
        return made[-1]

    yield make
    for broker in made:
        await broker.close()


@pytest.fixture
async def queue(rabbit: Ground, exchange: str) -> str:
    """A queue that is bound to the topic."""
    return await bound_queue(rabbit.url, exchange, TOPIC)


@pytest.fixture
async def broker(client: Client, queue: str) -> RabbitmqBroker:
    """An open client; its messages arrive in the queue."""
    del queue
    made = client()
    await made.open()
    return made


async def test_no_queue_is_refused_for_now_and_the_others_are_confirmed(
    broker: RabbitmqBroker, rabbit: Ground, queue: str
) -> None:
    batch = [message(str(n), topic=TOPIC if n % 3 else "nobody.cares") for n in range(300)]

    results = await outcome(broker, *batch)

    assert kinds(results) == [None if n % 3 else RefusedForNow for n in range(300)]
    assert isinstance(results[0], RefusedForNow)
    assert "312 NO_ROUTE" in results[0].reason
    assert "nobody.cares" in results[0].reason
    assert await count(rabbit.url, queue) == 200


async def test_of_two_copies_the_returned_one_is_refused(broker: RabbitmqBroker) -> None:
    batch = [message("a", topic="nobody"), message("a"), message("a", topic="nobody")]

    assert kinds(await outcome(broker, *batch)) == [RefusedForNow, None, RefusedForNow]


async def test_a_full_queue_is_refused_for_now(
    client: Client, rabbit: Ground, exchange: str
) -> None:
    await bound_queue(
        rabbit.url,
        exchange,
        TOPIC,
        arguments={"x-max-length": 1, "x-overflow": "reject-publish"},
    )
    broker = client()
    await broker.open()

    results = [*await outcome(broker, message("a")), *await outcome(broker, message("b"))]

    assert kinds(results) == [None, RefusedForNow]


async def test_without_its_exchange_nothing_is_sent(client: Client) -> None:
    broker = client()
    await broker.open()

    [result] = await outcome(broker, message("a"))
    with pytest.raises(BrokerUnavailable, match="postroom topology --apply"):
        await broker.ping()

    assert isinstance(result, BrokerUnavailable)


async def test_an_exchange_that_goes_away_convicts_no_message(
    broker: RabbitmqBroker, rabbit: Ground, exchange: str
) -> None:
    """Its messages are not to blame: the outcome is unknown, then the broker is unavailable."""
    assert await outcome(broker, message("a")) == [None]
    await do(rabbit.url, commands.Exchange.Delete(exchange=exchange))

    [first] = await outcome(broker, message("b"))
    [second] = await outcome(broker, message("b"))

    assert isinstance(first, OutcomeUnknown)
    assert first.error_reply is None
    assert isinstance(second, BrokerUnavailable)
    await bound_queue(rabbit.url, exchange, TOPIC)
    await broker.ping()
    assert await outcome(broker, message("b")) == [None]


async def test_a_message_on_which_the_broker_closes_leaves_its_error_reply(
    client: Client, rabbit: Ground, exchange: str, queue: str
) -> None:
    """It is over the server's limit, and ours is set too high: the broker closes the channel."""
    broker = client(max_message_bytes=2**40)
    await broker.open()
    assert await outcome(broker, message("before")) == [None]
    poison = message("poison")
    object.__setattr__(poison, "payload", b"x" * 5_000_000)

    results = await outcome(broker, message("a"), poison, message("b"))
    if results[1] is None:
        pytest.skip("the server takes larger messages than the one that the tests start")

    assert isinstance(results[1], OutcomeUnknown)
    assert results[1].error_reply is not None
    assert "PRECONDITION_FAILED" in results[1].error_reply
    assert not results[1].timed_out
    assert kinds(results)[2] is OutcomeUnknown
    await broker.ping()
    assert await outcome(broker, message("a"), message("b")) == [None, None]
    del exchange, queue, rabbit


async def test_too_large_is_refused_for_good_before_it_is_sent(client: Client, queue: str) -> None:
    broker = client(max_message_bytes=1)
    await broker.open()

    assert kinds(await outcome(broker, message("a"))) == [RefusedForGood]
    del queue


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"headers": {"large": "x" * 200_000}}, "do not fit into one frame"),
        ({"headers": {"n" * 256: ""}}, "name of a header has 256 bytes"),
        ({"version": 2**63}, "its version does not fit"),
        ({"content_type": "t" * 256}, "content type has 256 bytes"),
        ({"key": "\ud83d"}, "not valid Unicode"),
        ({"topic": "t" * 256}, "its topic has 256 bytes"),
        ({"topic": "\ud83d"}, "its topic is not valid Unicode"),
    ],
)
async def test_what_amqp_cannot_carry_is_refused_for_good(
    broker: RabbitmqBroker, fields: dict[str, Any], said: str
) -> None:
    results = await outcome(broker, message("a"), message("b", **fields), message("c"))

    assert kinds(results) == [None, RefusedForGood, None]
    assert said in str(results[1])


async def test_a_refused_log_in_is_unavailable_and_keeps_the_password_to_itself(
    client: Client, rabbit: Ground
) -> None:
    port = urlsplit(rabbit.url).port
    broker = client(at_port(rabbit.url, port or 0, user="nobody:s3cr3t"))
    await broker.open()

    [result] = await outcome(broker, message("a"))

    assert isinstance(result, BrokerUnavailable)
    assert "ACCESS_REFUSED" in result.reason
    assert "s3cr3t" not in str(result) + repr(broker) + repr(broker._options)


async def test_without_the_right_to_write_nothing_is_sent(
    client: Client, rabbit: Ground, queue: str
) -> None:
    user = f"reader-{uuid4().hex[:8]}"
    rabbit.api("PUT", f"/users/{user}", {"password": "pw", "tags": ""})
    rights = {"configure": ".*", "write": "^$", "read": ".*"}
    rabbit.api("PUT", f"/permissions/{{vhost}}/{user}", rights)
    try:
        broker = client(at_port(rabbit.url, urlsplit(rabbit.url).port or 0, user=f"{user}:pw"))
        await broker.open()

        [result] = await outcome(broker, message("a"))
        with pytest.raises(BrokerUnavailable, match="no permission"):
            await broker.ping()
    finally:
        rabbit.api("DELETE", f"/users/{user}")

    assert isinstance(result, BrokerUnavailable)
    assert await count(rabbit.url, queue) == 0


async def test_an_unknown_virtual_host_is_unavailable(client: Client, rabbit: Ground) -> None:
    broker = client(f"{rabbit.url.rpartition('/')[0]}/no-such-host")
    await broker.open()

    [result] = await outcome(broker, message("a"))

    assert isinstance(result, BrokerUnavailable)


async def test_nobody_listening_is_unavailable(client: Client, rabbit: Ground) -> None:
    with Proxy("127.0.0.1", 1) as proxy:
        port = proxy.port
    broker = client(at_port(rabbit.url, port))
    await broker.open()

    assert kinds(await outcome(broker, message("a"))) == [BrokerUnavailable]


async def test_a_server_that_says_nothing_is_unavailable_in_time(
    client: Client, rabbit: Ground
) -> None:
    """It accepts connections and hangs: the whole handshake is within the time-out."""
    with Proxy("127.0.0.1", urlsplit(rabbit.url).port or 0) as proxy:
        proxy.silence()
        broker = client(at_port(rabbit.url, proxy.port))
        await broker.open()
        loop = asyncio.get_running_loop()
        begun = loop.time()

        results = await outcome(broker, message("a"), timeout=SHORT)

        assert kinds(results) == [BrokerUnavailable]
        assert loop.time() - begun < SHORT.total_seconds()


async def test_a_wire_that_goes_silent_leaves_the_outcome_unknown_in_time(
    client: Client, rabbit: Ground, queue: str
) -> None:
    """Cut without a word, as by a firewall: no reset ever comes."""
    with Proxy("127.0.0.1", urlsplit(rabbit.url).port or 0) as proxy:
        broker = client(at_port(rabbit.url, proxy.port))
        await broker.open()
        assert await outcome(broker, message("a")) == [None]
        proxy.silence()
        loop = asyncio.get_running_loop()
        begun = loop.time()

        [result] = await outcome(broker, message("b"), timeout=SHORT)

        assert loop.time() - begun < SHORT.total_seconds()
        assert isinstance(result, OutcomeUnknown)
        assert result.timed_out
        assert result.error_reply is None
        proxy.restore()
        await broker.ping()
        assert await outcome(broker, message("b")) == [None]
    assert await count(rabbit.url, queue) == 2


async def test_a_reset_in_the_middle_of_a_batch_leaves_the_rest_unknown(
    client: Client, rabbit: Ground, queue: str
) -> None:
    with Proxy("127.0.0.1", urlsplit(rabbit.url).port or 0) as proxy:
        broker = client(at_port(rabbit.url, proxy.port))
        await broker.open()
        assert await outcome(broker, message("first")) == [None]
        proxy.slow(0.1)
        batch = [message(str(number)) for number in range(50)]
        publishing = asyncio.create_task(outcome(broker, *batch))
        await asyncio.sleep(0.05)
        proxy.reset()

        results = await publishing

        assert set(kinds(results)) == {OutcomeUnknown}
        assert not any(isinstance(one, OutcomeUnknown) and one.timed_out for one in results)
        proxy.slow(0)
        assert await outcome(broker, message("again")) == [None]
    del queue


async def test_no_more_are_in_flight_than_allowed(
    client: Client, rabbit: Ground, queue: str
) -> None:
    """On a silent wire those beyond the window were never sent, and are known to be so."""
    with Proxy("127.0.0.1", urlsplit(rabbit.url).port or 0) as proxy:
        broker = client(at_port(rabbit.url, proxy.port), max_in_flight=10)
        await broker.open()
        many = [message(str(number)) for number in range(95)]
        assert await outcome(broker, *many) == [None] * 95
        proxy.silence()

        results = await outcome(broker, *many, timeout=SHORT)

    assert kinds(results) == [OutcomeUnknown] * 10 + [BrokerUnavailable] * 85
    del queue


async def test_a_batch_is_one_write(
    broker: RabbitmqBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    await outcome(broker, message("a"))
    connection = await broker._publishing().connection()
    writes: list[int] = []
    write = connection.write

    def noted(data: bytes) -> None:
        writes.append(len(data))
        write(data)

    monkeypatch.setattr(connection, "write", noted)

    results = await outcome(broker, *(message(str(number)) for number in range(500)))

    assert results == [None] * 500
    assert len(writes) == 1


async def test_calls_at_the_same_time_keep_their_own_results(broker: RabbitmqBroker) -> None:
    async def publish(topic: str) -> list[type | None]:
        batch = [message(f"{topic}-{number}", topic=topic) for number in range(200)]
        return list(kinds(await outcome(broker, *batch)))

    calls = [publish(TOPIC if number % 2 else "nobody") for number in range(6)]
    results = await asyncio.gather(*calls)

    expected: list[list[type | None]] = [[RefusedForNow] * 200, [None] * 200]
    assert results == expected * 3


async def test_a_cancelled_call_leaves_the_next_one_alone(broker: RabbitmqBroker) -> None:
    await outcome(broker, message("first"))
    batch = [message(str(number), topic="nobody") for number in range(300)]
    call = asyncio.create_task(outcome(broker, *batch))
    await asyncio.sleep(0)
    call.cancel()
    await asyncio.gather(call, return_exceptions=True)

    assert await outcome(broker, *(message(str(n)) for n in range(300))) == [None] * 300


async def test_native_fields_are_used(broker: RabbitmqBroker, rabbit: Ground, queue: str) -> None:
    moment = datetime(2030, 1, 1, tzinfo=UTC)
    sent = message(
        "0192", key="order-7", version=3, headers={"traceparent": "00-1"}, deliver_at=moment
    )
    await outcome(broker, sent)

    content = await get(rabbit.url, queue)

    assert content is not None
    _, properties = frames.read_header(content.header)
    assert properties.text(frames.MESSAGE_ID) == "0192"
    assert properties.text(frames.TYPE) == TOPIC
    assert properties.text(frames.CONTENT_TYPE) == "application/json"
    assert properties.fields[frames.DELIVERY_MODE] == b"\x02"
    stamp = int.from_bytes(properties.fields[frames.TIMESTAMP])
    assert abs(datetime.now(UTC).timestamp() - stamp) < 60
    assert {name.decode(): frames.decoded(value) for name, value in properties.headers.items()} == {
        "traceparent": "00-1",
        "postroom-key": "order-7",
        "postroom-version": 3,
        "postroom-deliver-at": int(moment.timestamp()) * 1_000_000,
    }
    assert frames.readable(content.routing_key) == TOPIC


async def test_nothing_is_declared_unless_asked(client: Client, rabbit: Ground) -> None:
    """Publishing and subscribing where nothing exists leaves nothing behind."""
    broker = client()
    await broker.open()

    await outcome(broker, message("a"))
    with pytest.raises(BrokerUnavailable, match="postroom topology --apply"):
        async with broker.subscribe([TOPIC], group="billing", prefetch=1):
            pass

    for kind in ("exchanges", "queues"):
        found = rabbit.api("GET", f"/{kind}/{{vhost}}")
        assert isinstance(found, list)
        assert not [one for one in found if broker._names.exchange in one["name"]]
