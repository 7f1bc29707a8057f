"""What the Kafka driver does when its server, or another member of a group, is killed or frozen."""

import asyncio
import signal
import sys
import time
from collections.abc import AsyncIterator, Callable
from datetime import timedelta
from pathlib import Path
from uuid import uuid4

import pytest
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)

from postroom.broker import Delivery
from postroom.brokers.kafka import KafkaBroker
from postroom.errors import BrokerError, BrokerUnavailable, OutcomeUnknown, RefusedForNow
from tests.brokers.log import SESSION, ids, kinds, make_topic, message, outcome
from tests.kafka import OwnKafka

pytestmark = [pytest.mark.crash, pytest.mark.timeout(120)]

SHORT = timedelta(seconds=2)


@pytest.fixture
def topic(own_kafka: OwnKafka) -> str:
    return make_topic(own_kafka.servers, f"orders-{uuid4().hex[:8]}")


@pytest.fixture
async def broker(own_kafka: OwnKafka) -> AsyncIterator[KafkaBroker]:
    made = KafkaBroker(own_kafka.url, session_timeout=SESSION)
    await made.open()
    yield made
    await made.close()


async def test_nothing_confirmed_is_lost_when_the_server_is_killed(
    own_kafka: OwnKafka, broker: KafkaBroker, topic: str
) -> None:
    """Batches go on all the time while it is killed and comes back; each key keeps its order."""
    confirmed: list[str] = []
    errors: list[BrokerError] = []
    last: list[BrokerError] = []
    done = asyncio.Event()

    async def publish() -> None:
        step = 0
        while not done.is_set() or last:
            batch = [message(f"k{n}-{step:04}", topic=topic, key=f"k{n}") for n in range(20)]
            results = await outcome(broker, *batch, timeout=SHORT)
            last[:] = [one for one in results if one is not None]
            errors.extend(last)
            confirmed.extend(
                one.id for one, result in zip(batch, results, strict=True) if result is None
            )
            if not last:
                step += 1
            await asyncio.sleep(0.01)

    publishing = asyncio.create_task(publish())
    await _until(lambda: len(confirmed) > 1000)

    await asyncio.to_thread(own_kafka.server.stop, how=signal.SIGKILL)
    await _until(lambda: any(isinstance(one, BrokerUnavailable) for one in errors))
    await asyncio.to_thread(own_kafka.server.start)
    before = len(confirmed)
    await _until(lambda: len(confirmed) > before + 200)
    done.set()
    async with asyncio.timeout(30):
        await publishing

    assert errors
    assert {type(one) for one in errors} <= {OutcomeUnknown, BrokerUnavailable}
    there = ids(own_kafka.servers, topic)
    assert set(confirmed) <= set(there)
    for number in range(20):
        firsts = list(dict.fromkeys(one for one in there if one.startswith(f"k{number}-")))
        assert firsts == sorted(firsts)


async def test_a_killed_server_ends_the_subscription_and_nothing_is_lost(
    own_kafka: OwnKafka, broker: KafkaBroker, topic: str
) -> None:
    await outcome(broker, *(message(str(number), topic=topic) for number in range(10)))
    begun = time.monotonic()
    received = []
    async with broker.subscribe([topic], group="billing", prefetch=1) as box:
        for _ in range(3):
            delivery = await anext(box)
            received.append(delivery.message.id)
            await delivery.ack()
        await asyncio.sleep(0.5)
        await asyncio.to_thread(own_kafka.server.stop, how=signal.SIGKILL)
        begun = time.monotonic()

        with pytest.raises(BrokerUnavailable):
            await _drain(box)
    assert time.monotonic() - begun < 20

    await asyncio.to_thread(own_kafka.server.start)
    async with broker.subscribe([topic], group="billing", prefetch=10) as box, asyncio.timeout(40):
        while len(set(received)) < 10:
            delivery = await anext(box)
            received.append(delivery.message.id)
            await delivery.ack()


async def test_a_frozen_server_leaves_the_outcome_unknown_in_time(
    own_kafka: OwnKafka, broker: KafkaBroker, topic: str
) -> None:
    assert await outcome(broker, message("a", topic=topic)) == [None]
    own_kafka.server.signal(signal.SIGSTOP)
    begun = time.monotonic()
    try:
        results = await outcome(broker, message("b", topic=topic), timeout=SHORT)
        took = time.monotonic() - begun
        again = await outcome(broker, message("b", topic=topic), timeout=SHORT)
    finally:
        own_kafka.server.signal(signal.SIGCONT)

    assert took < SHORT.total_seconds()
    assert isinstance(results[0], OutcomeUnknown)
    assert results[0].timed_out
    assert results[0].error_reply is None
    assert kinds(again) == [BrokerUnavailable]
    await broker.ping()
    assert await outcome(broker, message("b", topic=topic)) == [None]


async def test_a_reset_wire_is_nobodys_fault(own_kafka: OwnKafka, topic: str) -> None:
    """Librdkafka connects anew and sends again, without a second copy."""
    proxy = own_kafka.proxy
    broker = KafkaBroker(own_kafka.proxied)
    await broker.open()
    try:
        assert await outcome(broker, message("first", topic=topic)) == [None]
        proxy.slow(0.1)
        batch = [message(str(number), topic=topic, key="k") for number in range(50)]
        publishing = asyncio.create_task(outcome(broker, *batch))
        await asyncio.sleep(0.05)
        proxy.reset()
        proxy.slow(0)

        assert await publishing == [None] * 50
    finally:
        proxy.slow(0)
        await broker.close()
    assert ids(own_kafka.servers, topic) == ["first", *(str(n) for n in range(50))]


async def test_field_13_offset_past_unfinished_work(
    own_kafka: OwnKafka, broker: KafkaBroker, topic: str
) -> None:
    """Of 1 to 10 the third is slow, the others are done; the process is killed."""
    await outcome(broker, *(message(str(n), topic=topic, key=str(n)) for n in range(1, 11)))
    program = Path(__file__).with_name("kafka_member.py")
    member = await asyncio.create_subprocess_exec(
        *(sys.executable, str(program), own_kafka.url, "", topic, "3"),
        stdout=asyncio.subprocess.PIPE,
    )
    assert member.stdout is not None
    async with asyncio.timeout(30):
        told = [(await member.stdout.readline()).decode().split() for _ in range(10)]
    await asyncio.sleep(1)
    member.kill()
    await member.wait()

    assert told == [[str(n), "False"] for n in range(1, 11)]
    async with broker.subscribe([topic], group="billing", prefetch=20) as box, asyncio.timeout(30):
        again = await anext(box)
        assert again.message.id == "3"
        assert again.redelivered
        await again.ack()


async def test_an_unknown_password_is_unavailable_and_is_not_told(own_kafka: OwnKafka) -> None:
    broker = KafkaBroker(f"kafka://clerk:s3cr3t@127.0.0.1:{own_kafka.server.sasl_port}")
    await broker.open()
    try:
        begun = time.monotonic()
        [result] = await outcome(broker, message("a", topic="t"))
        with pytest.raises(BrokerUnavailable):
            await broker.ping()
        assert time.monotonic() - begun < 5
    finally:
        await broker.close()

    assert isinstance(result, BrokerUnavailable)
    assert "uthentication" in result.reason
    assert "s3cr3t" not in str(result) + repr(broker)


async def test_without_the_right_to_write_only_that_topic_is_refused(
    own_kafka: OwnKafka, topic: str
) -> None:
    admin = AdminClient({"bootstrap.servers": own_kafka.servers})
    closed = make_topic(own_kafka.servers, f"closed-{uuid4().hex[:8]}")
    deny = AclBinding(
        ResourceType.TOPIC,
        closed,
        ResourcePatternType.LITERAL,
        "User:clerk",
        "*",
        AclOperation.WRITE,
        AclPermissionType.DENY,
    )
    allow = AclBinding(
        ResourceType.TOPIC,
        closed,
        ResourcePatternType.LITERAL,
        "User:clerk",
        "*",
        AclOperation.READ,
        AclPermissionType.ALLOW,
    )
    for future in admin.create_acls([deny, allow]).values():
        future.result(20)
    broker = KafkaBroker(f"kafka://clerk:clerk-secret@127.0.0.1:{own_kafka.server.sasl_port}")
    await broker.open()
    try:
        results = await outcome(broker, message("a", topic=closed), message("b", topic=topic))
        async with broker.subscribe([closed], group="clerk", prefetch=1):
            pass
    finally:
        await broker.close()

    assert kinds(results) == [RefusedForNow, None]
    assert "not allowed to write" in str(results[0])
    assert ids(own_kafka.servers, closed) == []


async def test_tls_is_used_and_a_stranger_is_not_believed(own_kafka: OwnKafka, topic: str) -> None:
    if own_kafka.certificates is None:
        pytest.skip("openssl makes the certificates, and is not installed")
    url = f"kafka://127.0.0.1:{own_kafka.server.tls_port}"
    friend = KafkaBroker(url, tls=True, cacertfile=str(own_kafka.certificates / "ca.pem"))
    stranger = KafkaBroker(url, tls=True)
    credulous = KafkaBroker(url, tls=True, verify=False)

    results = []
    for broker in (friend, stranger, credulous):
        await broker.open()
        results += await outcome(broker, message("a", topic=topic))
        await broker.close()

    assert kinds(results) == [None, BrokerUnavailable, None]
    assert "certificate" in str(results[1])


async def _until(seen: Callable[[], bool]) -> None:
    async with asyncio.timeout(40):
        while not seen():
            await asyncio.sleep(0.05)


async def _drain(box: AsyncIterator[Delivery]) -> None:
    async with asyncio.timeout(30):
        async for delivery in box:
            await delivery.ack()
