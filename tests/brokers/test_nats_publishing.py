"""Each class of error, provoked on a real JetStream, and what a publish promises beside it."""

import asyncio
import json
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import urlsplit

import pytest

from postroom.brokers.nats import NatsBroker
from postroom.brokers.nats.wire import Arrived
from postroom.errors import (
    BrokerUnavailable,
    NotAttempted,
    OutcomeUnknown,
    RefusedForGood,
    RefusedForNow,
)
from postroom.lab.servers.proxy import Proxy
from tests.brokers.stream import SHORT, Client, client, kinds, message, outcome
from tests.nats import Ground

__all__ = ["client"]


@pytest.fixture
async def broker(client: Client, jetstream: Ground) -> NatsBroker:
    """An open client; the stream takes the topic of the test."""
    await jetstream.make()
    made = client()
    await made.open()
    return made


@pytest.fixture
def topic(jetstream: Ground) -> str:
    return jetstream.topic


async def test_no_stream_for_the_subject_is_refused_for_now_and_others_are_confirmed(
    broker: NatsBroker, jetstream: Ground, topic: str
) -> None:
    batch = [message(str(n), topic=topic if n % 3 else "nobody.cares") for n in range(300)]

    results = await outcome(broker, *batch)

    assert kinds(results) == [None if n % 3 else RefusedForNow for n in range(300)]
    assert "no stream takes messages of topic 'nobody.cares'" in str(results[0])
    assert await jetstream.count() == 200


async def test_a_refusal_stops_its_key_and_no_other(
    client: Client, jetstream: Ground, topic: str
) -> None:
    """The stream is full for one subject, and would take the next message of the key."""
    await jetstream.make(
        f"{topic}.>", max_msgs_per_subject=1, discard="new", discard_new_per_subject=True
    )
    broker = client()
    await broker.open()
    full, free = f"{topic}.full", f"{topic}.free"
    assert await outcome(broker, message("0", topic=full)) == [None]

    results = await outcome(
        broker,
        message("1", topic=full, key="k"),
        message("2", topic=f"{free}.2", key="k"),
        message("3", topic=f"{free}.3", key="l"),
        message("4", topic=f"{free}.4", key="k"),
        message("5", topic=f"{free}.5", key="l"),
        message("6", topic=f"{free}.6"),
    )

    expected = [RefusedForNow, NotAttempted, None, NotAttempted, None, None]
    assert kinds(results) == expected
    assert sorted(await jetstream.ids()) == ["0", "3", "5", "6"]


async def test_a_key_is_stored_in_order_within_a_batch(
    broker: NatsBroker, jetstream: Ground, topic: str
) -> None:
    batch = [message(f"{n % 7}-{n}", topic=topic, key=f"k{n % 7}") for n in range(350)]

    assert await outcome(broker, *batch) == [None] * 350

    stored = await jetstream.ids()
    for key in range(7):
        mine = [name for name in stored if name.startswith(f"{key}-")]
        assert mine == [f"{key}-{n}" for n in range(350) if n % 7 == key]


async def test_a_slow_server_leaves_a_long_key_unattempted_and_nothing_unknown(
    client: Client, jetstream: Ground, topic: str
) -> None:
    """Each answer takes a fifth of a second: the time ends before the key does."""
    await jetstream.make()
    with Proxy("127.0.0.1", urlsplit(jetstream.url).port or 0) as proxy:
        broker = client(f"nats://127.0.0.1:{proxy.port}")
        await broker.open()
        await broker.ping()
        proxy.slow(0.1)
        batch = [message(str(number), topic=topic, key="k") for number in range(100)]

        found = kinds(await outcome(broker, *batch, timeout=2 * SHORT))

    sent = found.count(None)
    assert 1 <= sent < 20
    assert found == [None] * sent + [NotAttempted] * (100 - sent)
    assert await jetstream.ids() == [str(number) for number in range(sent)]


async def test_a_stream_at_its_limit_is_refused_for_now(
    client: Client, jetstream: Ground, topic: str
) -> None:
    await jetstream.make(max_msgs=1, discard="new")
    broker = client()
    await broker.open()

    results = [
        *await outcome(broker, message("a", topic=topic)),
        *await outcome(broker, message("b", topic=topic)),
    ]

    assert kinds(results) == [None, RefusedForNow]
    assert "maximum messages exceeded" in str(results[1])


async def test_the_word_of_another_stream_counts_for_nothing(
    client: Client, jetstream: Ground, topic: str
) -> None:
    """The topic belongs to another stream: it refuses, because it is not the expected one."""
    await jetstream.make(f"{topic}.ours")
    async with jetstream.jetstream() as context:
        await context.add_stream(name=f"{jetstream.stream}-dead", subjects=[topic])
    broker = client()
    await broker.open()

    results = await outcome(broker, message("a", topic=topic), message("b", topic=f"{topic}.ours"))

    assert kinds(results) == [RefusedForNow, None]
    assert "another stream" in str(results[0])
    assert await jetstream.count(f"{jetstream.stream}-dead") == 0


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (b'{"stream":"%b","seq":7}', None),
        (b'{"stream":"%b","domain":"hub","seq":7,"duplicate": true}', None),
        (b'{"stream":"%b","seq":0}', OutcomeUnknown),
        (b'{"stream":"other","seq":7}', OutcomeUnknown),
        (b'{"stream":"%b"}', OutcomeUnknown),
        (b"+ACK", OutcomeUnknown),
        (b"", OutcomeUnknown),
        (b"[]", OutcomeUnknown),
        (b'{"error":{"code":503,"err_code":10023,"description":"x"}}', BrokerUnavailable),
        (b'{"error":{"code":400,"err_code":10097,"description":"x"}}', RefusedForGood),
        (b'{"error":{}}', RefusedForNow),
    ],
)
async def test_only_a_positive_answer_of_the_right_stream_is_sent(
    client: Client, jetstream: Ground, topic: str, answer: bytes, expected: type | None
) -> None:
    """Somebody else listens to the subject, and answers in the stream's place."""
    await jetstream.make(f"{topic}.ours")
    name = jetstream.stream.encode()
    async with jetstream.client() as other:

        async def reply(asked: Any) -> None:
            await other.publish(asked.reply, answer.replace(b"%b", name))

        await other.subscribe(topic, cb=reply)
        await other.flush()
        broker = client()
        await broker.open()

        results = await outcome(broker, message("a", topic=topic))

    assert kinds(results) == [expected]


async def test_a_copy_within_the_window_is_sent_and_stored_once(
    broker: NatsBroker, jetstream: Ground, topic: str
) -> None:
    first = await outcome(broker, message("a", topic=topic))
    again = await outcome(broker, message("a", topic=topic), message("b", topic=topic))

    assert [*first, *again] == [None, None, None]
    assert await jetstream.ids() == ["a", "b"]


async def test_ids_that_differ_in_blanks_are_no_copies(
    broker: NatsBroker, jetstream: Ground, topic: str
) -> None:
    names = ["a", "a ", " a", "A", "a%20", "å", "a\n", ""]

    assert await outcome(broker, *(message(name, topic=topic) for name in names)) == [None] * 8

    assert await jetstream.count() == 8


async def test_without_its_stream_nothing_is_sent(client: Client, topic: str) -> None:
    broker = client()
    await broker.open()

    [result] = await outcome(broker, message("a", topic=topic))
    with pytest.raises(BrokerUnavailable, match="postroom topology --apply"):
        await broker.ping()

    assert isinstance(result, BrokerUnavailable)


async def test_a_stream_that_goes_away_convicts_no_message(
    broker: NatsBroker, jetstream: Ground, topic: str
) -> None:
    assert await outcome(broker, message("a", topic=topic)) == [None]
    async with jetstream.jetstream() as context:
        await context.delete_stream(jetstream.stream)

    assert kinds(await outcome(broker, message("b", topic=topic))) == [BrokerUnavailable]

    await jetstream.make()
    await broker.ping()
    assert await outcome(broker, message("b", topic=topic)) == [None]


async def test_what_the_server_would_not_take_is_refused_before_it_is_sent(
    broker: NatsBroker, jetstream: Ground, topic: str
) -> None:
    """Headers count too, and room is left for the reason of a dead letter."""
    async with jetstream.client() as other:
        limit = other.max_payload
    small = message("small", topic=topic, payload=b"x" * (limit - 9000))
    large = message("large", topic=topic, payload=b"x" * (limit - 8192))

    results = await outcome(broker, small, large, message("next", topic=topic))

    assert kinds(results) == [None, RefusedForGood, None]
    assert "the server takes" in str(results[1])
    assert await outcome(broker, message("after", topic=topic)) == [None]


async def test_what_the_stream_finds_too_large_is_refused_for_good(
    client: Client, jetstream: Ground, topic: str
) -> None:
    await jetstream.make(max_msg_size=1000)
    broker = client()
    await broker.open()
    large = message("large", topic=topic, payload=b"x" * 2000)

    results = await outcome(broker, large, message("next", topic=topic))

    assert kinds(results) == [RefusedForGood, None]
    assert "max_msg_size" in str(results[0])


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"headers": {"large": "x" * 66_000}}, "its headers have 66"),
        ({"version": 2**63}, "its version does not fit"),
        ({"key": "\ud83d"}, "not valid Unicode"),
        ({"topic": "\ud83d"}, "not valid Unicode"),
        ({"topic": ""}, "cannot be a subject"),
        ({"topic": "a b"}, "cannot be a subject"),
        ({"topic": "a\r\nPUB b 1\r\nx"}, "cannot be a subject"),
        ({"topic": "a..b"}, "cannot be a subject"),
        ({"topic": "a.*"}, "cannot be a subject"),
        ({"topic": "a.>"}, "cannot be a subject"),
        ({"topic": ".a"}, "cannot be a subject"),
        ({"topic": "$JS.API.STREAM.DELETE.postroom"}, "cannot be a subject"),
        ({"topic": "t" * 1025}, "cannot be a subject"),
    ],
)
async def test_what_nats_cannot_carry_is_refused_for_good(
    broker: NatsBroker, topic: str, fields: dict[str, Any], said: str
) -> None:
    odd = message("b", **{"topic": topic, **fields})

    results = await outcome(broker, message("a", topic=topic), odd, message("c", topic=topic))

    assert kinds(results) == [None, RefusedForGood, None]
    assert said in str(results[1])


async def test_nobody_listening_is_unavailable(client: Client, topic: str) -> None:
    with Proxy("127.0.0.1", 1) as proxy:
        port = proxy.port
    broker = client(f"nats://ann:s3cr3t@127.0.0.1:{port}")
    await broker.open()

    [result] = await outcome(broker, message("a", topic=topic))

    assert isinstance(result, BrokerUnavailable)
    assert "cannot connect" in result.reason
    assert "s3cr3t" not in str(result) + repr(broker) + repr(broker._options)


async def test_one_of_several_servers_is_enough(
    client: Client, jetstream: Ground, topic: str
) -> None:
    await jetstream.make()
    with Proxy("127.0.0.1", 1) as proxy:
        gone = proxy.port
    broker = client(f"nats://127.0.0.1:{gone},127.0.0.1:{urlsplit(jetstream.url).port}")
    await broker.open()

    assert await outcome(broker, message("a", topic=topic)) == [None]


async def test_a_server_that_says_nothing_is_unavailable_in_time(
    client: Client, jetstream: Ground, topic: str
) -> None:
    """It accepts connections and hangs: the whole handshake is within the time-out."""
    with Proxy("127.0.0.1", urlsplit(jetstream.url).port or 0) as proxy:
        proxy.silence()
        broker = client(f"nats://127.0.0.1:{proxy.port}")
        await broker.open()
        loop = asyncio.get_running_loop()
        begun = loop.time()

        results = await outcome(broker, message("a", topic=topic), timeout=SHORT)

        assert kinds(results) == [BrokerUnavailable]
        assert loop.time() - begun < SHORT.total_seconds()


async def test_a_wire_that_goes_silent_leaves_the_outcome_unknown_in_time(
    client: Client, jetstream: Ground, topic: str
) -> None:
    """Cut without a word, as by a firewall; nothing of it is sent later."""
    await jetstream.make()
    with Proxy("127.0.0.1", urlsplit(jetstream.url).port or 0) as proxy:
        broker = client(f"nats://127.0.0.1:{proxy.port}")
        await broker.open()
        assert await outcome(broker, message("a", topic=topic)) == [None]
        proxy.silence()
        loop = asyncio.get_running_loop()
        begun = loop.time()

        results = await outcome(
            broker,
            message("b", topic=topic, key="k"),
            message("c", topic=topic, key="k"),
            timeout=SHORT,
        )

        assert loop.time() - begun < SHORT.total_seconds()
        assert kinds(results) == [OutcomeUnknown, NotAttempted]
        unknown = results[0]
        assert isinstance(unknown, OutcomeUnknown)
        assert unknown.timed_out
        assert unknown.error_reply is None
        proxy.restore()
        await broker.ping()
        assert await outcome(broker, message("d", topic=topic)) == [None]
    assert await jetstream.ids() == ["a", "d"]


async def test_a_reset_in_the_middle_of_a_batch_leaves_the_rest_unknown(
    client: Client, jetstream: Ground, topic: str
) -> None:
    await jetstream.make()
    with Proxy("127.0.0.1", urlsplit(jetstream.url).port or 0) as proxy:
        broker = client(f"nats://127.0.0.1:{proxy.port}")
        await broker.open()
        assert await outcome(broker, message("first", topic=topic)) == [None]
        proxy.slow(0.1)
        batch = [message(str(number), topic=topic) for number in range(50)]
        publishing = asyncio.create_task(outcome(broker, *batch))
        await asyncio.sleep(0.05)
        proxy.reset()

        results = await publishing

        assert set(kinds(results)) == {OutcomeUnknown}
        assert not any(isinstance(one, OutcomeUnknown) and one.timed_out for one in results)
        proxy.slow(0)
        assert await outcome(broker, message("again", topic=topic)) == [None]


async def test_no_more_are_in_flight_than_allowed(
    client: Client, jetstream: Ground, topic: str
) -> None:
    """On a silent wire those beyond the window were never sent, and are known to be so."""
    await jetstream.make()
    with Proxy("127.0.0.1", urlsplit(jetstream.url).port or 0) as proxy:
        broker = client(f"nats://127.0.0.1:{proxy.port}", max_in_flight=10)
        await broker.open()
        many = [message(str(number), topic=topic) for number in range(95)]
        assert await outcome(broker, *many) == [None] * 95
        proxy.silence()

        results = await outcome(broker, *many, timeout=SHORT)

    assert kinds(results) == [OutcomeUnknown] * 10 + [BrokerUnavailable] * 85


async def test_a_batch_is_one_write(
    broker: NatsBroker, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    await outcome(broker, message("a", topic=topic))
    connection = await broker._publishing().connection()
    writes: list[int] = []
    write = connection.write

    def noted(data: bytes) -> None:
        writes.append(len(data))
        write(data)

    monkeypatch.setattr(connection, "write", noted)

    batch = [message(str(n), topic=topic, key=f"k{n}") for n in range(500)]
    assert await outcome(broker, *batch) == [None] * 500

    assert len(writes) == 1


async def test_calls_at_the_same_time_keep_their_own_results(
    broker: NatsBroker, topic: str
) -> None:
    async def publish(number: int, where: str) -> list[type | None]:
        batch = [message(f"{number}-{each}", topic=where) for each in range(200)]
        return list(kinds(await outcome(broker, *batch)))

    calls = [publish(number, topic if number % 2 else "nobody") for number in range(6)]
    results = await asyncio.gather(*calls)

    expected: list[list[type | None]] = [[RefusedForNow] * 200, [None] * 200]
    assert results == expected * 3


async def test_a_cancelled_call_leaves_the_next_one_alone(broker: NatsBroker, topic: str) -> None:
    await outcome(broker, message("first", topic=topic))
    batch = [message(str(number), topic="nobody") for number in range(900)]
    call = asyncio.create_task(outcome(broker, *batch))
    await asyncio.sleep(0)
    call.cancel()
    await asyncio.gather(call, return_exceptions=True)

    results = await outcome(broker, *(message(str(n), topic=topic) for n in range(900)))

    assert results == [None] * 900


async def test_an_answer_that_breaks_the_reader_ends_the_connection(
    broker: NatsBroker, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A fault of ours must not leave a connection that looks alive and hears nothing."""
    await outcome(broker, message("a", topic=topic))
    publishing = await broker._publishing().publishing()

    def broken(number: int, arrived: Arrived) -> None:
        raise LookupError(number, arrived)

    monkeypatch.setattr(publishing, "answered", broken)
    results = await outcome(broker, message("b", topic=topic))

    assert kinds(results) == [OutcomeUnknown]
    assert await outcome(broker, message("b", topic=topic)) == [None]


async def test_how_a_message_looks_on_the_wire(
    broker: NatsBroker, jetstream: Ground, topic: str
) -> None:
    """As nats-py reads it, which knows nothing of us."""
    moment = datetime(2030, 1, 1, tzinfo=UTC)
    sent = message(
        "0192",
        topic=topic,
        key="order 7",
        version=3,
        headers={"traceparent": "00-1", "naïve": "a\r\nb: c", "Nats-Rollup": "all", "x": " y"},
        deliver_at=moment,
        expires_at=moment + timedelta(days=1),
    )
    await outcome(broker, sent)

    stored = await jetstream.stored(1)

    micros = int(moment.timestamp()) * 1_000_000
    assert stored.subject == topic
    assert stored.data == b"{}"
    assert stored.headers == {
        "Nats-Expected-Stream": jetstream.stream,
        "Nats-Msg-Id": "0192",
        "postroom-type": "shop.order-placed",
        "postroom-content-type": "application/json",
        "postroom-key": "order 7",
        "postroom-version": "3",
        "postroom-deliver-at": str(micros),
        "postroom-expires-at": str(micros + 86_400_000_000),
        "traceparent": "00-1",
        "postroom-header-na%C3%AFve": "a%0D%0Ab: c",
        "postroom-header-Nats-Rollup": "all",
        "postroom-header-x": "%20y",
    }


async def test_nothing_is_made_unless_asked(client: Client, jetstream: Ground, topic: str) -> None:
    broker = client()
    await broker.open()

    await outcome(broker, message("a", topic=topic))

    async with jetstream.client() as other:
        answer = await other.request("$JS.API.STREAM.NAMES", b'{"subject": ""}', timeout=5)
    names = json.loads(answer.data)["streams"] or []
    assert not [name for name in names if name.startswith(jetstream.stream)]
