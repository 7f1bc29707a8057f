"""Consuming from a real Redis and a real Valkey: who holds what, and what nobody may lose."""

import asyncio
import json
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from postroom.broker import ALL_TOPICS, Delivery
from postroom.brokers.redis import RedisBroker
from postroom.brokers.redis.member import Member
from postroom.errors import BrokerUnavailable, DeliveryLost
from postroom.lab.servers.proxy import Proxy
from postroom.lab.servers.redis import RedisServer
from postroom.testing.conformance.broker_stage import drain
from tests.brokers.streams import TOPIC, ask, do, message, outcome, until

SOON = timedelta(milliseconds=50)
LEASE = timedelta(seconds=1)
Client = Callable[..., RedisBroker]
Serve = Callable[..., RedisServer]
Box = AsyncIterator[Delivery]


@pytest.fixture
async def broker(client: Client, redis_url: str) -> RedisBroker:
    """An open client, with everything in place for the group billing."""
    return await prepared(client, redis_url)


async def prepared(client: Client, url: str, **options: Any) -> RedisBroker:
    """Return an open client, with everything in place for the group billing."""
    made = client(url, **{"lease": LEASE, **options})
    await made.open()
    await made.apply_topology({"billing": [TOPIC]})
    return made


async def receive(box: Box) -> Delivery:
    async with asyncio.timeout(15):
        return await anext(box)


async def receive_all(box: Box) -> None:
    """Receive until there is an error."""
    while True:
        await receive(box)


@asynccontextmanager
async def billing(broker: RedisBroker, prefetch: int = 10) -> AsyncIterator[Box]:
    """Receive for the group billing."""
    async with broker.subscribe([TOPIC], group="billing", prefetch=prefetch) as box:
        yield box


async def holders(url: str, prefix: str) -> dict[str, int]:
    """Return who holds how many entries of the group billing, by name."""
    found = await ask(url, "XINFO", "CONSUMERS", f"{prefix}:{TOPIC}", "billing")
    named = [dict(zip(one[::2], one[1::2], strict=True)) for one in found]
    return {one[b"name"].decode(): one[b"pending"] for one in named}


@asynccontextmanager
async def party(url: str, prefix: str, *, how: str = "shared") -> AsyncIterator[Process]:
    """Run another process that receives for the group billing."""
    program = Path(__file__).with_name("redis_party.py")
    arguments = (url, prefix, TOPIC, "billing", "3", str(LEASE.total_seconds()), how)
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, str(program), *arguments), stdin=PIPE, stdout=PIPE
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def said(process: Process) -> str:
    """Return the id of the message that the process has received."""
    assert process.stdout is not None
    async with asyncio.timeout(15):
        found: str = json.loads(await process.stdout.readline())["id"]
        return found


# Foreign entries


_FOREIGN: dict[str, tuple[str | bytes, ...]] = {
    "other fields": ("order", "42", "cents", "990"),
    "one field without a name": ("", ""),
    "an empty id": ("id", "", "payload", "{}"),
    "bytes that are no text": (b"id", b"\xff\xfe", b"\xff", b"\x80", b"payload", bytes(range(256))),
    "a version that is a text": ("id", "x", "version", "three"),
    "a version without an end": ("id", "x", "version", "9" * 5000),
    "a moment no datetime has": ("id", "x", "deliver_at", str(2**62)),
    "a field twice": ("id", "x", "payload", "1", "payload", "2"),
    "thousands of fields": tuple(part for n in range(5000) for part in (f"f{n}", str(n))),
    "our own names": ("postroom-reason", "none", "postroom-attempts", "many", "header:", "h"),
}


@pytest.mark.parametrize("case", _FOREIGN)
async def test_a_foreign_entry_arrives_and_stops_nobody(
    broker: RedisBroker, redis_url: str, prefix: str, case: str
) -> None:
    await ask(redis_url, "XADD", f"{prefix}:{TOPIC}", "*", *_FOREIGN[case])
    assert await outcome(broker, message("next")) == [None]

    async with billing(broker) as box:
        foreign = await receive(box)
        assert foreign.message.topic == TOPIC
        assert foreign.attempt == 1
        await foreign.retry(SOON, "not yet")
        assert (await receive(box)).message.id == "next"
        again = await receive(box)
        assert (again.message, again.attempt) == (foreign.message, 2)
        await again.reject("not ours")

    [letter] = await broker.dead_letters("billing")
    assert (letter.message, letter.reason, letter.attempts) == (foreign.message, "not ours", 2)
    assert await broker.replay_dead("billing") == 1
    async with billing(broker) as box:
        assert await drain(box, 1) == ["next"]
        assert (await receive(box)).message == foreign.message


async def test_an_entry_without_an_id_has_the_empty_id_and_its_topic_for_a_type(
    broker: RedisBroker, redis_url: str, prefix: str
) -> None:
    await ask(redis_url, "XADD", f"{prefix}:{TOPIC}", "*", "order", "42", b"\xff", b"\x80")

    async with billing(broker) as box:
        found = (await receive(box)).message

    assert (found.id, found.type, found.content_type) == ("", TOPIC, "application/octet-stream")
    assert (found.payload, found.headers) == (b"", {"order": "42", "\\xff": "\\x80"})


async def test_names_of_headers_that_mean_something_to_us_are_carried_all_the_same(
    broker: RedisBroker,
) -> None:
    names = ("id", "payload", "header:id", "postroom-only", "postroom-reason", "")
    sent = message("a", headers=dict.fromkeys(names, "mine"))

    async with billing(broker) as box:
        assert await outcome(broker, sent) == [None]
        first = await receive(box)
        assert first.message == sent
        await first.retry(SOON, "not yet")
        assert (await receive(box)).message == sent


# Retries


async def test_a_short_delay_does_not_wait_behind_a_long_one_nor_take_room(
    broker: RedisBroker, redis_url: str, prefix: str
) -> None:
    async with billing(broker, prefetch=1) as box:
        assert await outcome(broker, message("long"), message("short")) == [None] * 2
        await (await receive(box)).retry(timedelta(hours=1), "not today")
        await (await receive(box)).retry(SOON, "not yet")

        assert (await receive(box)).message.id == "short"

    assert await holders(redis_url, prefix) == {"postroom:given-back": 1, "postroom:later": 1}


async def test_a_retry_waits_for_its_time_with_whoever_is_there(
    client: Client, redis_url: str
) -> None:
    one, other = await prepared(client, redis_url), await prepared(client, redis_url)
    loop = asyncio.get_running_loop()
    async with billing(one) as box, billing(other) as elsewhere:
        assert await outcome(one, message("a")) == [None]
        first = await _first(box, elsewhere)
        began = loop.time()
        await first.retry(timedelta(seconds=1.5), "not yet")

        again = await _first(box, elsewhere)

        assert again.attempt == 2
        assert 1.5 <= loop.time() - began < 4


async def _first(*boxes: Box) -> Delivery:
    """Return what comes first, to whom it may."""
    waits = [asyncio.ensure_future(anext(box)) for box in boxes]
    done, _ = await asyncio.wait(waits, timeout=15, return_when=asyncio.FIRST_COMPLETED)
    for wait in waits:
        wait.cancel()
    await asyncio.gather(*waits, return_exceptions=True)
    [found] = done
    return found.result()


async def test_delays_that_were_deleted_are_over(
    broker: RedisBroker, redis_url: str, prefix: str
) -> None:
    """The times are in a sorted set of ours; without it nothing waits for ever."""
    async with billing(broker) as box:
        assert await outcome(broker, message("a")) == [None]
        await (await receive(box)).retry(timedelta(hours=1), "not today")
        await ask(redis_url, "DEL", f"{prefix}.delayed:billing:{TOPIC}")

        again = await receive(box)

        assert (again.message.id, again.attempt) == ("a", 2)


async def test_what_expired_is_a_dead_letter(broker: RedisBroker) -> None:
    late = datetime.now(UTC) - timedelta(seconds=1)
    async with billing(broker) as box:
        assert await outcome(broker, message("late", expires_at=late), message("b")) == [None] * 2
        assert await drain(box, 1) == ["b"]

    [letter] = await broker.dead_letters("billing")
    assert (letter.message.id, letter.reason, letter.attempts) == ("late", "expired", 0)


# Who holds what


async def test_a_slow_consumer_that_lives_is_not_robbed(
    client: Client, redis_url: str, prefix: str
) -> None:
    slow, quick = await prepared(client, redis_url), await prepared(client, redis_url)
    async with billing(slow, prefetch=2) as box:
        assert await outcome(slow, message("a"), message("b"), message("c")) == [None] * 3
        delivery = await receive(box)
        async with billing(quick) as other:
            assert await drain(other, 1) == ["c"]
            waiting = asyncio.ensure_future(anext(other))

            await asyncio.wait((waiting,), timeout=LEASE.total_seconds() * 3)

            assert not waiting.done()
            await delivery.ack()
            await (await receive(box)).ack()
            waiting.cancel()
            await asyncio.gather(waiting, return_exceptions=True)
    assert await holders(redis_url, prefix) in ({}, {"postroom:given-back": 0})


async def test_what_a_killed_process_had_comes_to_another(
    client: Client, redis_url: str, prefix: str
) -> None:
    broker = await prepared(client, redis_url)
    assert await outcome(broker, message("a"), message("b")) == [None] * 2
    async with party(redis_url, prefix) as process:
        assert await said(process) == "a"
        process.kill()
        await process.wait()

        async with billing(broker) as box:
            first = await receive(box)
            assert (first.message.id, first.attempt, first.redelivered) == ("a", 1, True)
            assert (await receive(box)).message.id == "b"


async def test_a_process_that_was_frozen_hands_out_nothing_that_others_have(
    client: Client, redis_url: str, prefix: str
) -> None:
    broker = await prepared(client, redis_url)
    assert await outcome(broker, *map(message, "abc")) == [None] * 3
    async with party(redis_url, prefix) as process:
        assert await said(process) == "a"
        process.send_signal(signal.SIGSTOP)
        async with billing(broker) as box:
            assert await drain(box, 3) == ["a", "b", "c"]

        process.send_signal(signal.SIGCONT)
        assert process.stdin is not None
        process.stdin.write(b"\n")
        await outcome(broker, message("d"))

        assert await said(process) == "d"


async def test_a_single_consumer_hands_over_in_order_when_it_is_killed(
    client: Client, redis_url: str, prefix: str
) -> None:
    broker = await prepared(client, redis_url, single_active_consumer=True)
    assert await outcome(broker, *map(message, "abcde")) == [None] * 5
    async with party(redis_url, prefix, how="single") as process:
        assert await said(process) == "a"
        async with billing(broker, prefetch=2) as box:
            waiting = asyncio.ensure_future(receive(box))
            await asyncio.wait((waiting,), timeout=LEASE.total_seconds() * 2)
            assert not waiting.done(), "two consumers receive at the same time"

            process.kill()
            first = await waiting
            await first.ack()

            assert first.message.id == "a"
            assert await drain(box, 4) == ["b", "c", "d", "e"]


async def test_what_is_given_back_at_a_stop_comes_to_others_at_once(
    client: Client, redis_url: str
) -> None:
    lease = timedelta(hours=1)
    one, other = (
        await prepared(client, redis_url, lease=lease),
        await prepared(client, redis_url, lease=lease),
    )
    async with billing(one) as box:
        assert await outcome(one, *map(message, "abc")) == [None] * 3
        await receive(box)
        async with billing(other) as elsewhere:
            waiting = asyncio.create_task(drain(elsewhere, 3))
            await asyncio.sleep(0)
            await one.close()

            assert await asyncio.wait_for(waiting, 5) == ["a", "b", "c"]


async def test_names_of_consumers_do_not_pile_up_and_take_nothing_with_them(
    client: Client, redis_url: str, prefix: str
) -> None:
    broker = await prepared(client, redis_url)
    assert broker._in is not None
    for _ in range(5):
        async with billing(broker):
            pass
    assert await holders(redis_url, prefix) == {}
    stream = f"{prefix}:{TOPIC}"
    assert await outcome(broker, message("a")) == [None]
    for name in ("gone", "busy"):
        await ask(redis_url, "XGROUP", "CREATECONSUMER", stream, "billing", name)
    await ask(redis_url, "XREADGROUP", "GROUP", "billing", "busy", "STREAMS", stream, ">")
    member = Member(
        broker._in, broker._names, group="billing", name="me", lease=LEASE.seconds, delete=False
    )

    await member.tidy(TOPIC, 3600)
    assert await holders(redis_url, prefix) == {"gone": 0, "busy": 1}
    await asyncio.sleep(0.01)  # both are silent for longer than nothing
    await member.tidy(TOPIC, 0)

    assert await holders(redis_url, prefix) == {"busy": 1}
    async with billing(broker) as box:
        assert await drain(box, 1) == ["a"]


async def test_an_acknowledgement_comes_too_late_for_what_another_has(
    client: Client, redis_url: str, prefix: str
) -> None:
    broker = await prepared(client, redis_url)
    async with billing(broker) as box:
        assert await outcome(broker, message("a"), message("b")) == [None] * 2
        first, second = await receive(box), await receive(box)
        [[entry, *_], *_] = await ask(
            redis_url, "XPENDING", f"{prefix}:{TOPIC}", "billing", "-", "+", 10
        )
        await ask(redis_url, "XCLAIM", f"{prefix}:{TOPIC}", "billing", "thief", 0, entry)

        results = await asyncio.gather(first.ack(), second.ack(), return_exceptions=True)

        assert isinstance(results[0], DeliveryLost)
        assert results[1] is None
        assert (await holders(redis_url, prefix))["thief"] == 1


# Trimmed, deleted, flushed


async def test_what_was_trimmed_before_it_was_done_is_reported(
    client: Client, redis_url: str, prefix: str
) -> None:
    frozen, broker = await prepared(client, redis_url), await prepared(client, redis_url)
    async with billing(frozen) as box:
        assert await outcome(frozen, message("a")) == [None]
        await receive(box)
        [subscription] = frozen._subscriptions
        await subscription.freeze()
        [entry] = await ask(redis_url, "XRANGE", f"{prefix}:{TOPIC}", "-", "+")
        await ask(redis_url, "XTRIM", f"{prefix}:{TOPIC}", "MAXLEN", 0)

        async with billing(broker):
            [letter] = await until(lambda: broker.dead_letters("billing"))

    assert "trimmed or deleted" in letter.reason
    assert letter.message.topic == TOPIC
    [[_, fields]] = await ask(redis_url, "XRANGE", f"{prefix}.dead:billing", "-", "+")
    assert entry[0] in fields
    assert await broker.replay_dead("billing") == 0
    assert await broker.discard_dead("billing") == 1


@pytest.mark.parametrize("answer", ["retry", "reject"])
async def test_what_was_trimmed_while_we_had_it_is_kept_as_a_dead_letter(
    broker: RedisBroker, redis_url: str, prefix: str, answer: str
) -> None:
    async with billing(broker) as box:
        assert await outcome(broker, message("a")) == [None]
        delivery = await receive(box)
        await ask(redis_url, "XTRIM", f"{prefix}:{TOPIC}", "MAXLEN", 0)

        if answer == "retry":
            await delivery.retry(SOON, "no stock")
        else:
            await delivery.reject("no stock")

    [letter] = await broker.dead_letters("billing")
    assert letter.message == message("a")
    assert "no stock" in letter.reason
    assert await holders(redis_url, prefix) == {}


_LOSSES: dict[str, Callable[[str], tuple[str, ...]]] = {
    "flushed": lambda _: ("FLUSHALL",),
    "stream deleted": lambda stream: ("DEL", stream),
    "group destroyed": lambda stream: ("XGROUP", "DESTROY", stream, "billing"),
}


@pytest.mark.parametrize("loss", _LOSSES)
async def test_a_group_that_is_gone_is_told_and_made_again(
    client: Client, serve: Serve, prefix: str, loss: str
) -> None:
    server = serve()
    broker = await prepared(client, server.url)
    stream = f"{prefix}:{TOPIC}"
    async with billing(broker) as box:
        assert await outcome(broker, message("a")) == [None]
        delivery = await receive(box)
        await ask(server.url, *_LOSSES[loss](stream))

        with pytest.raises(BrokerUnavailable, match="made again"):
            await receive(box)
        with pytest.raises(DeliveryLost):
            await delivery.ack()

    assert await outcome(broker, message("b")) == [None]
    async with billing(broker) as box:
        names = await drain(box, 2 if loss == "group destroyed" else 1)
        assert names[-1] == "b"


async def test_a_group_that_went_while_nobody_listened_is_told_and_made_again(
    client: Client, serve: Serve
) -> None:
    """As when a server comes back without its data."""
    server = serve()
    broker = await prepared(client, server.url)
    async with billing(broker):
        pass
    server.stop()
    server.start()

    with pytest.raises(BrokerUnavailable, match="made again"):
        async with billing(broker):
            pass
    async with billing(broker) as box:
        assert await outcome(broker, message("a")) == [None]
        assert await drain(box, 1) == ["a"]


async def test_without_its_group_a_consumer_is_told_what_to_do(
    client: Client, redis_url: str
) -> None:
    broker = client(redis_url)
    await broker.open()

    with pytest.raises(BrokerUnavailable, match="postroom topology --apply"):
        async with billing(broker):
            pass


# Connections that end


async def test_a_lost_connection_is_told_and_what_was_out_comes_again_at_once(
    client: Client, serve: Serve
) -> None:
    server = serve()
    with Proxy("127.0.0.1", server.port) as proxy:
        url = f"redis://127.0.0.1:{proxy.port}"
        broker = await prepared(client, url, lease=timedelta(hours=1))
        async with billing(broker) as box:
            assert await outcome(broker, message("a"), message("b")) == [None] * 2
            await receive(box)
            proxy.reset()

            with pytest.raises(BrokerUnavailable, match="connection lost"):
                await receive_all(box)

        async with billing(broker) as box:
            first = await asyncio.wait_for(anext(box), 5)
            assert (first.message.id, first.redelivered, first.attempt) == ("a", True, 1)
            assert (await receive(box)).message.id == "b"


async def test_a_cut_wire_is_told_in_time(client: Client, serve: Serve) -> None:
    server = serve()
    with Proxy("127.0.0.1", server.port) as proxy:
        url = f"redis://127.0.0.1:{proxy.port}"
        broker = await prepared(client, url, connect_timeout=timedelta(seconds=0.5))
        async with billing(broker) as box:
            proxy.silence()

            with pytest.raises(BrokerUnavailable, match=r"no answer in time|did not answer"):
                await asyncio.wait_for(anext(box), 5)


async def test_a_killed_server_comes_back_with_everything(client: Client, serve: Serve) -> None:
    server = serve(persistent=True)
    broker = await prepared(client, server.url, lease=timedelta(hours=1))
    async with billing(broker) as box:
        assert await outcome(broker, *map(message, "abcdef")) == [None] * 6
        await (await receive(box)).ack()
        await (await receive(box)).retry(SOON, "not yet")
        await receive(box)
        server.stop(how=signal.SIGKILL)
        with pytest.raises(BrokerUnavailable):
            await receive_all(box)
    server.start()

    found: dict[str, int | None] = {}
    async with billing(broker) as box:
        while len(found) < 5:
            delivery = await receive(box)
            found[delivery.message.id] = delivery.attempt
            await delivery.ack()

    assert found == {"b": 2, "c": 1, "d": 1, "e": 1, "f": 1}


# Dead letters


async def test_a_dead_letter_is_stored_before_its_original_is_acknowledged(
    broker: RedisBroker, redis_url: str, prefix: str
) -> None:
    async with billing(broker) as box:
        assert await outcome(broker, message("a")) == [None]
        delivery = await receive(box)
        await ask(redis_url, "SET", f"{prefix}.dead:billing", "no stream: nothing can be added")

        with pytest.raises(BrokerUnavailable, match="WRONGTYPE"):
            await delivery.reject("no stock")

        assert sum((await holders(redis_url, prefix)).values()) == 1
        await ask(redis_url, "DEL", f"{prefix}.dead:billing")
        await delivery.reject("no stock")

    [letter] = await broker.dead_letters("billing")
    assert (letter.message.id, letter.reason) == ("a", "no stock")


async def test_a_replay_goes_to_its_group_alone(
    client: Client, redis_url: str, prefix: str
) -> None:
    broker = await prepared(client, redis_url)
    await broker.apply_topology({"shipping": [TOPIC]})
    assert await outcome(broker, message("a", key="k")) == [None]
    async with billing(broker) as box:
        await (await receive(box)).reject("no stock")
    [letter] = await broker.dead_letters("billing")

    assert await broker.replay_dead("billing", [letter.position + 1]) == 0
    assert await broker.replay_dead("billing", [letter.position]) == 1
    assert await outcome(broker, message("b")) == [None]

    async with billing(broker) as box:
        again = await receive(box)
        assert (again.message, again.attempt) == (message("a", key="k"), 1)
        await again.ack()
    async with broker.subscribe([TOPIC], group="shipping", prefetch=10) as box:
        assert await drain(box, 2) == ["a", "b"]
    assert await broker.dead_letters("billing") == []
    pending = await ask(redis_url, "XPENDING", f"{prefix}:{TOPIC}", "shipping")
    assert pending[0] == 0


async def test_people_see_what_each_group_has_to_do(client: Client, redis_url: str) -> None:
    broker = await prepared(client, redis_url)
    await broker.apply_topology({"shipping": [TOPIC]})
    assert await outcome(broker, *map(message, "abcdef")) == [None] * 6
    async with billing(broker, prefetch=3) as box:
        await (await receive(box)).reject("no stock")
        await (await receive(box)).retry(timedelta(hours=1), "not today")
        await (await receive(box)).ack()
        await receive(box)

        async def settled() -> Any:
            found = {(one.group, one.topic): one for one in await broker.queues()}
            mine = found["billing", TOPIC]
            return found if (mine.ready, mine.out) == (0, 3) else None

        found = await until(settled)

    mine, theirs = found["billing", TOPIC], found["shipping", TOPIC]
    assert (mine.delayed, mine.dead, mine.consumers) == (1, 0, 1)
    assert found["billing", ALL_TOPICS].dead == 1
    assert (theirs.ready, theirs.out, theirs.delayed, theirs.consumers) == (6, 0, 0, 0)
    assert datetime.now(UTC) - theirs.oldest_at < timedelta(minutes=1)
    assert await broker.drop_group("billing") == 5
    assert {one.group for one in await broker.queues()} == {"shipping"}


@pytest.mark.parametrize("groups", [1, 2])
async def test_what_is_done_is_deleted_only_where_one_group_receives(
    client: Client, redis_url: str, prefix: str, groups: int
) -> None:
    broker = await prepared(client, redis_url, delete_acked=True)
    if groups == 2:
        await broker.apply_topology({"shipping": [TOPIC]})
    assert await outcome(broker, *map(message, "abcd")) == [None] * 4

    async with billing(broker) as box:
        assert await drain(box, 3) == ["a", "b", "c"]
        await (await receive(box)).reject("no stock")

    assert await ask(redis_url, "XLEN", f"{prefix}:{TOPIC}") == (0 if groups == 1 else 4)
    if groups == 2:
        async with broker.subscribe([TOPIC], group="shipping", prefetch=10) as box:
            assert await drain(box, 4) == ["a", "b", "c", "d"]


async def test_topics_read_together_come_in_the_order_of_the_server(
    client: Client, redis_url: str
) -> None:
    broker = await prepared(client, redis_url)
    topics = [TOPIC, "other", "third"]
    await broker.apply_topology({"billing": topics})
    names = [str(n) for n in range(30)]
    for name in names:
        sent = message(name, topic=topics[int(name) % 3], key="k")
        assert await outcome(broker, sent) == [None]
        await asyncio.sleep(0.002)  # an id tells milliseconds

    async with broker.subscribe(topics, group="billing", prefetch=90) as box:
        assert await drain(box, 30) == names


@pytest.fixture(autouse=True)
def _forgotten_scripts(request: pytest.FixtureRequest) -> None:
    """Let scripts be unknown to the server at first: it may have been restarted."""
    if "redis_url" in request.fixturenames:
        do(request.getfixturevalue("redis_url"), ("SCRIPT", "FLUSH"))
