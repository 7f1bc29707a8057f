"""What the Kafka driver does when the wire goes silent, or it is frozen itself."""

import asyncio
import signal
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from uuid import uuid4

import pytest

from postroom.broker import Delivery
from postroom.brokers.kafka import KafkaBroker
from postroom.errors import BrokerUnavailable, DeliveryLost, OutcomeUnknown
from tests.brokers.log import SESSION, committed, ids, kinds, make_topic, message, outcome
from tests.kafka import OwnKafka

pytestmark = [pytest.mark.crash, pytest.mark.timeout(120)]

SHORT = timedelta(seconds=2)


@pytest.fixture
def topic(own_kafka: OwnKafka) -> str:
    return make_topic(own_kafka.servers, f"orders-{uuid4().hex[:8]}")


@pytest.fixture
async def broker(own_kafka: OwnKafka) -> AsyncIterator[KafkaBroker]:
    """A client at the wire that can be cut."""
    made = KafkaBroker(own_kafka.proxied, session_timeout=SESSION)
    await made.open()
    yield made
    await made.close()


@pytest.fixture
def wire(own_kafka: OwnKafka) -> Iterator[Callable[[], None]]:
    """Cuts the wire without a word; it is whole again after the test."""
    yield own_kafka.proxy.silence
    own_kafka.proxy.restore()


async def test_a_silent_wire_is_no_answer_in_time_and_is_used_again(
    own_kafka: OwnKafka, broker: KafkaBroker, topic: str, wire: Callable[[], None]
) -> None:
    """No reset comes; what was on its way may be there, and is there again, in order."""
    batch = [message(f"{n:03}", topic=topic, key="k") for n in range(50)]
    assert await outcome(broker, message("warm", topic=topic)) == [None]
    wire()
    took = []

    for _ in range(2):
        begun = time.monotonic()
        results = await outcome(broker, *batch, timeout=SHORT)
        took.append(time.monotonic() - begun)
        assert set(kinds(results)) <= {OutcomeUnknown, BrokerUnavailable}
    own_kafka.proxy.restore()
    begun = time.monotonic()
    await _reached(broker)

    assert max(took) < SHORT.total_seconds()
    assert time.monotonic() - begun < 10
    assert await outcome(broker, *batch) == [None] * 50
    firsts = list(dict.fromkeys(ids(own_kafka.servers, topic)))
    assert firsts == ["warm", *(one.id for one in batch)]


async def test_who_is_cut_off_commits_nothing_over_the_new_owner(
    own_kafka: OwnKafka, broker: KafkaBroker, topic: str, wire: Callable[[], None]
) -> None:
    """The group goes on without it; its late answer is lost, and it comes back by itself."""
    other = KafkaBroker(own_kafka.url, session_timeout=SESSION)
    await other.open()
    await outcome(other, *(message(str(n), topic=topic) for n in range(3)))
    try:
        async with broker.subscribe([topic], group="cut", prefetch=1) as box:
            mine = await _next(box)
            [subscription] = broker._subscriptions
            wire()

            async with other.subscribe([topic], group="cut", prefetch=10) as theirs:
                taken = [await _next(theirs) for _ in range(3)]
                assert [one.message.id for one in taken] == ["0", "1", "2"]
                assert taken[0].redelivered
                for one in taken:
                    await one.ack()
                await _until(lambda: committed(own_kafka.servers, "cut", topic) == 3)
                await _until(lambda: not subscription.listener.partitions)
                with pytest.raises(DeliveryLost):
                    await mine.ack()

                own_kafka.proxy.restore()
                await _reached(broker)
                assert committed(own_kafka.servers, "cut", topic) == 3

            with suppress(BrokerUnavailable):  # it may have seen that nobody answered
                await outcome(other, message("3", topic=topic))
                again = await _next(box)
                assert again.message.id == "3"
                await again.ack()
                await _until(lambda: committed(own_kafka.servers, "cut", topic) == 4)
    finally:
        await other.close()


async def test_a_publisher_that_hung_sends_nothing_late(own_kafka: OwnKafka) -> None:
    """Librdkafka runs on without us, and gives up what it has: another relay may own the lanes."""
    topic = make_topic(
        own_kafka.servers, f"late-{uuid4().hex[:8]}", config={"max.message.bytes": "20000"}
    )
    count, seconds, hang = 200, 3, 9
    program = Path(__file__).with_name("kafka_publisher.py")
    given = map(str, (program, own_kafka.url, topic, count, seconds, hang))
    child = await asyncio.create_subprocess_exec(
        *(sys.executable, *given), stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
    )
    assert child.stdin is not None
    assert child.stdout is not None
    try:
        async with asyncio.timeout(60):
            assert await child.stdout.readline() == b"ready 1\n"
            own_kafka.server.signal(signal.SIGSTOP)
            child.stdin.write(b"go\n")
            assert await child.stdout.readline() == b"queued\n"
            await asyncio.sleep(seconds + 2)  # its time is over, and its lease might be
            own_kafka.server.signal(signal.SIGCONT)
            told = await child.stdout.readline()
            await child.wait()
    finally:
        own_kafka.server.signal(signal.SIGCONT)
        with suppress(ProcessLookupError):
            child.kill()
        await child.wait()

    assert told == b"confirmed 0\n"
    # What was on the wire, five requests, nobody can take back.
    assert len(await asyncio.to_thread(ids, own_kafka.servers, topic)) < 20


async def test_a_frozen_server_delays_no_answer_and_no_close(
    own_kafka: OwnKafka, topic: str
) -> None:
    broker = KafkaBroker(own_kafka.url)
    await broker.open()
    await outcome(broker, message("warm", topic=topic))
    own_kafka.server.signal(signal.SIGSTOP)
    try:
        begun = time.monotonic()
        results = await asyncio.gather(
            *(outcome(broker, message(str(n), topic=topic), timeout=SHORT) for n in range(40))
        )
        took = time.monotonic() - begun
        await broker.close()
    finally:
        own_kafka.server.signal(signal.SIGCONT)

    assert took < SHORT.total_seconds()
    assert {type(one) for [one] in results} == {OutcomeUnknown}
    assert time.monotonic() - begun - took < 5


async def _next(box: AsyncIterator[Delivery]) -> Delivery:
    async with asyncio.timeout(30):
        return await anext(box)


async def _until(seen: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not await asyncio.to_thread(seen):
            await asyncio.sleep(0.05)


async def _reached(broker: KafkaBroker) -> None:
    async with asyncio.timeout(30):
        while True:
            with suppress(BrokerUnavailable):
                return await broker.ping()
