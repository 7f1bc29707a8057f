"""Each class of error, provoked on a real Kafka, and what a publish promises beside it."""

import asyncio
import threading
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import urlsplit

import pytest
from confluent_kafka.admin import AdminClient

from postroom.brokers.kafka import KafkaBroker
from postroom.errors import (
    BrokerUnavailable,
    NotAttempted,
    OutcomeUnknown,
    RefusedForGood,
    RefusedForNow,
)
from postroom.lab.servers.proxy import Proxy
from tests.brokers.log import (
    KIND,
    Client,
    everything,
    gone,
    ids,
    kinds,
    make_topic,
    message,
    outcome,
    set_topic,
)
from tests.kafka import Ground

SHORT = timedelta(seconds=1)


@pytest.fixture
async def broker(kafka_client: Client) -> KafkaBroker:
    made = kafka_client()
    await made.open()
    return made


@pytest.fixture
def topic(log: Ground) -> str:
    """A topic with one partition: in it everything has an order."""
    return make_topic(log.servers, f"{log.prefix}orders")


async def test_an_unknown_topic_is_refused_for_now_and_the_others_are_confirmed(
    broker: KafkaBroker, log: Ground, topic: str
) -> None:
    missing = f"{log.prefix}nobody"
    batch = [message(str(n), topic=topic if n % 3 else missing) for n in range(300)]

    results = await outcome(broker, *batch)

    assert kinds(results) == [None if n % 3 else RefusedForNow for n in range(300)]
    assert "postroom topology --apply" in str(results[0])
    assert len(ids(log.servers, topic)) == 200


async def test_no_topic_is_made_by_a_publish(broker: KafkaBroker, log: Ground) -> None:
    """Also where the broker would make one, as it does by default."""
    missing = f"{log.prefix}nobody"

    await outcome(broker, message("a", topic=missing))
    await asyncio.sleep(0.2)

    assert missing not in AdminClient({"bootstrap.servers": log.servers}).list_topics().topics
    assert kinds(await outcome(broker, message("a", topic=missing))) == [RefusedForNow]


async def test_a_deleted_topic_is_refused_and_used_again_once_it_is_back(
    broker: KafkaBroker, log: Ground, topic: str
) -> None:
    assert await outcome(broker, message("a", topic=topic)) == [None]
    admin = AdminClient({"bootstrap.servers": log.servers})
    for future in admin.delete_topics([topic]).values():
        future.result(20)
    await gone(log.servers, topic)

    results = await outcome(broker, message("b", topic=topic))

    assert kinds(results) == [RefusedForNow]
    make_topic(log.servers, topic)
    assert await outcome(broker, message("c", topic=topic)) == [None]


async def test_what_the_topic_does_not_take_is_refused_for_good_before_it_is_sent(
    broker: KafkaBroker, log: Ground
) -> None:
    """To the byte: the largest that the broker takes is sent, one byte more is not."""
    topic = make_topic(log.servers, f"{log.prefix}small", config={"max.message.bytes": "1000"})

    async def sent(size: int) -> type | None:
        one = message("x", topic=topic, key="k", payload=b"x" * size, headers={"h": "v"})
        return kinds(await outcome(broker, one))[0]

    largest = max([size for size in range(700, 900) if _size(topic, size) <= 1000])

    assert await sent(largest) is None
    assert await sent(largest + 1) is RefusedForGood
    assert len(everything(log.servers, topic)) == 1


async def test_many_that_fit_are_not_made_one_that_does_not(
    broker: KafkaBroker, log: Ground
) -> None:
    """What the broker limits is the batch, so ours are no larger than the topic takes."""
    topic = make_topic(log.servers, f"{log.prefix}small", config={"max.message.bytes": "2000"})
    batch = [message(str(n), topic=topic, key="k", payload=b"x" * 800) for n in range(100)]

    assert await outcome(broker, *batch) == [None] * 100
    assert ids(log.servers, topic) == [str(n) for n in range(100)]
    assert broker._producing is not None
    assert [sender.careful for sender in broker._producing._idle] == [False]


async def test_a_refusal_by_the_broker_stops_its_key_and_no_other(
    broker: KafkaBroker, log: Ground, topic: str
) -> None:
    """The limit was lowered since it was asked: the broker refuses what the driver lets pass."""
    assert await outcome(broker, message("first", topic=topic)) == [None]
    set_topic(log.servers, topic, max_message_bytes="5000")
    batch = [
        *(message(f"k{n}", topic=topic, key="k") for n in range(20)),
        message("huge", topic=topic, key="k", payload=b"x" * 9000),
        *(message(f"k{n}", topic=topic, key="k") for n in range(20, 40)),
        *(message(f"l{n}", topic=topic, key="l") for n in range(20)),
        message("free", topic=topic),
    ]

    results = kinds(await outcome(broker, *batch))

    assert results[20] is RefusedForGood
    assert results[:20] == [None] * 20
    assert results[21:41] == [NotAttempted] * 20
    assert results[41:] == [None] * 21
    found = ids(log.servers, topic)
    assert [one for one in found if one.startswith("k")] == [f"k{n}" for n in range(20)]
    assert [one for one in found if one.startswith("l")] == [f"l{n}" for n in range(20)]
    assert len(found) == len(set(found))


async def test_a_refused_batch_is_not_overtaken_by_the_next(
    broker: KafkaBroker, log: Ground, topic: str
) -> None:
    """The first batch is too large for the lowered limit, the second is not."""
    assert await outcome(broker, message("first", topic=topic)) == [None]
    set_topic(log.servers, topic, max_message_bytes="600000")
    batch = [message(str(n), topic=topic, key="k", payload=b"x" * 4000) for n in range(320)]

    assert await outcome(broker, *batch) == [None] * 320

    assert ids(log.servers, topic) == ["first", *(str(n) for n in range(320))]


async def test_one_that_a_compacted_topic_refuses_spoils_no_other(
    broker: KafkaBroker, log: Ground
) -> None:
    """It refuses the whole batch for the sake of one message without a key."""
    topic = make_topic(log.servers, f"{log.prefix}table", config={"cleanup.policy": "compact"})
    batch = [message(str(n), topic=topic, key="k" if n != 5 else None) for n in range(10)]

    results = kinds(await outcome(broker, *batch))

    assert results == [RefusedForNow if n == 5 else None for n in range(10)]
    assert ids(log.servers, topic) == [str(n) for n in range(10) if n != 5]


async def test_a_key_that_goes_to_two_topics_stops_in_both(
    broker: KafkaBroker, log: Ground, topic: str
) -> None:
    other = make_topic(log.servers, f"{log.prefix}table", config={"cleanup.policy": "compact"})
    missing = f"{log.prefix}nobody"
    batch = [
        message("a", topic=topic, key="k"),
        message("b", topic=other, key="k"),
        message("c", topic=topic, key="k"),
        message("x", topic=missing, key="l"),
        message("y", topic=topic, key="l"),
    ]

    results = kinds(await outcome(broker, *batch))

    assert results == [None, None, None, RefusedForNow, NotAttempted]
    assert ids(log.servers, topic) == ["a", "c"]


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"headers": {"a\0b": ""}}, "NUL"),
        ({"key": "\ud83d"}, "not valid Unicode"),
        ({"type": "\ud83d"}, "not valid Unicode"),
        ({"topic": "\ud83d"}, "cannot be a topic"),
        ({"topic": "t" * 250}, "cannot be a topic"),
        ({"topic": "with space"}, "cannot be a topic"),
        ({"topic": ".."}, "cannot be a topic"),
    ],
)
async def test_what_kafka_cannot_carry_is_refused_for_good(
    broker: KafkaBroker, topic: str, fields: dict[str, Any], said: str
) -> None:
    odd = message("b", **{"topic": topic, **fields})

    results = await outcome(broker, message("a", topic=topic), odd, message("c", topic=topic))

    assert kinds(results) == [None, RefusedForGood, None]
    assert said in str(results[1])


async def test_nobody_listening_is_unavailable(kafka_client: Client) -> None:
    with Proxy("127.0.0.1", 1) as proxy:
        port = proxy.port
    broker = kafka_client(f"kafka://127.0.0.1:{port}")
    await broker.open()
    loop = asyncio.get_running_loop()
    begun = loop.time()

    results = await outcome(broker, message("a", topic="t"))
    with pytest.raises(BrokerUnavailable, match="cannot be reached"):
        await broker.ping()

    assert kinds(results) == [BrokerUnavailable]
    assert loop.time() - begun < 4


async def test_a_server_that_says_nothing_is_unavailable_in_time(kafka_client: Client) -> None:
    with Proxy("127.0.0.1", urlsplit(f"//{kafka_client().place}").port or 0) as proxy:
        proxy.silence()
        broker = kafka_client(f"kafka://127.0.0.1:{proxy.port}")
        await broker.open()
        loop = asyncio.get_running_loop()
        begun = loop.time()

        results = await outcome(broker, message("a", topic="t"), timeout=SHORT)

        assert kinds(results) == [BrokerUnavailable]
        assert loop.time() - begun < SHORT.total_seconds()


async def test_calls_at_the_same_time_keep_their_own_results(
    broker: KafkaBroker, log: Ground, topic: str
) -> None:
    async def publish(number: int) -> list[type | None]:
        where = topic if number % 2 else f"{log.prefix}nobody"
        batch = [message(f"{number}-{one}", topic=where) for one in range(200)]
        return list(kinds(await outcome(broker, *batch)))

    results = await asyncio.gather(*(publish(number) for number in range(6)))

    expected: list[list[type | None]] = [[RefusedForNow] * 200, [None] * 200]
    assert results == expected * 3


async def test_a_call_that_no_thread_takes_is_answered_in_time_and_sends_nothing_late(
    broker: KafkaBroker, log: Ground, topic: str
) -> None:
    await outcome(broker, message("warm", topic=topic))
    assert broker._producing is not None
    free = threading.Event()
    taken = [broker._producing._threads.submit(free.wait, 20) for _ in range(64)]
    loop = asyncio.get_running_loop()
    begun = loop.time()

    results = await outcome(broker, message("late", topic=topic), timeout=SHORT)

    took = loop.time() - begun
    free.set()
    await asyncio.gather(*map(asyncio.wrap_future, taken))
    await broker.close()
    assert kinds(results) == [OutcomeUnknown]
    assert took < SHORT.total_seconds()
    assert ids(log.servers, topic) == ["warm"]


async def test_a_cancelled_call_leaves_the_next_one_alone(broker: KafkaBroker, topic: str) -> None:
    batch = [message(str(number), topic=topic) for number in range(300)]
    call = asyncio.create_task(outcome(broker, *batch))
    await asyncio.sleep(0.01)
    call.cancel()
    await asyncio.gather(call, return_exceptions=True)

    assert await outcome(broker, *batch) == [None] * 300


async def test_the_loop_turns_while_a_batch_is_sent(broker: KafkaBroker, topic: str) -> None:
    """Nothing of librdkafka runs on the event loop."""
    await outcome(broker, message("warm", topic=topic))
    batch = [message(str(n), topic=topic, payload=b"x" * 500) for n in range(5000)]
    turns = 0
    publishing = asyncio.create_task(outcome(broker, *batch))
    while not publishing.done():
        await asyncio.sleep(0.001)
        turns += 1

    assert await publishing == [None] * 5000
    assert turns > 4


async def test_key_and_headers_are_used(broker: KafkaBroker, log: Ground, topic: str) -> None:
    moment = datetime(2030, 1, 1, tzinfo=UTC)
    sent = message(
        "0192",
        topic=topic,
        key="order-7",
        version=3,
        headers={"traceparent": "00-1", "postroom-id": "theirs"},
        deliver_at=moment,
    )
    await outcome(broker, sent)

    [record] = everything(log.servers, topic)

    assert record.key() == b"order-7"
    assert record.value() == b"{}"
    headers: Any = record.headers()
    assert dict(headers) == {
        "postroom-id": b"0192",
        "postroom-type": KIND.encode(),
        "postroom-content-type": b"application/json",
        "traceparent": b"00-1",
        "postroom-header-postroom-id": b"theirs",
        "postroom-version": b"3",
        "postroom-deliver-at": b"1893456000000000",
    }


async def test_a_key_goes_where_other_clients_send_it(broker: KafkaBroker, log: Ground) -> None:
    """By the murmur2 hash, as the clients for Java do."""
    topic = make_topic(log.servers, f"{log.prefix}wide", partitions=3)

    await outcome(broker, message("k", topic=topic, key="k"), message("l", topic=topic, key="l"))

    places = {record.key(): record.partition() for record in everything(log.servers, topic)}
    assert places == {b"k": 2, b"l": 1}


def _size(topic: str, payload: int) -> int:
    """Return how many bytes a batch of one such message takes, counted by hand."""
    headers = {
        "h": b"v",
        "postroom-id": b"x",
        "postroom-type": KIND.encode(),
        "postroom-content-type": b"application/json",
    }
    del topic
    # Attributes, two deltas, key, length and value, number of headers; each length one byte.
    body = 3 + 2 + 2 + payload + 1
    body += sum(2 + len(name) + len(value) for name, value in headers.items())
    return 61 + 2 + body
