"""Each class of error, provoked on a real Redis and a real Valkey, and what goes on beside it."""

import asyncio
import signal
import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from postroom.brokers.redis import RedisBroker
from postroom.errors import (
    BrokerUnavailable,
    NotAttempted,
    OutcomeUnknown,
    RefusedForGood,
    RefusedForNow,
)
from postroom.lab.servers.proxy import Proxy
from postroom.lab.servers.redis import RedisServer
from tests.brokers.streams import TOPIC, ask, do, ids, kinds, message, outcome, pings, until

SHORT = timedelta(seconds=1)
Client = Callable[..., RedisBroker]
Serve = Callable[..., RedisServer]


async def opened(client: Client, url: str, **options: Any) -> RedisBroker:
    """Return an open client that makes missing streams."""
    broker = client(url, **{"missing_stream": "create", **options})
    await broker.open()
    return broker


async def test_without_a_stream_is_refused_for_now_and_the_others_are_sent(
    client: Client, redis_url: str, prefix: str
) -> None:
    broker = await opened(client, redis_url, missing_stream="refuse")
    await broker.apply_topology({"billing": [TOPIC]})
    batch = [message(str(n), topic=TOPIC if n % 3 else "nobody.cares") for n in range(300)]

    results = await outcome(broker, *batch)

    assert kinds(results) == [None if n % 3 else RefusedForNow for n in range(300)]
    assert "postroom topology --apply" in str(results[0])
    assert len(await ids(redis_url, f"{prefix}:{TOPIC}")) == 200
    assert await ask(redis_url, "EXISTS", f"{prefix}:nobody.cares") == 0


async def test_a_key_that_is_no_stream_stops_its_messages_and_no_others(
    client: Client, redis_url: str, prefix: str
) -> None:
    broker = await opened(client, redis_url)
    await ask(redis_url, "SET", f"{prefix}:wrong", "type")

    results = await outcome(
        broker,
        message("k1", topic="right", key="k"),
        message("k2", topic="wrong", key="k"),
        message("k3", topic="wrong", key="k"),
        message("k4", topic="right", key="k"),
        message("l1", topic="right", key="l"),
        message("free", topic="wrong"),
    )

    expected = [None, RefusedForNow, NotAttempted, NotAttempted, None, RefusedForNow]
    assert kinds(results) == expected
    assert "WRONGTYPE" in str(results[1])
    assert await ids(redis_url, f"{prefix}:right") == ["k1", "l1"]


async def test_more_than_fits_into_a_transaction_goes_out_in_order(
    client: Client, redis_url: str, prefix: str
) -> None:
    broker = await opened(client, redis_url, max_in_flight=7)
    batch = [message(str(n), topic=f"t{n % 3}", key=f"k{n % 5}") for n in range(90)]

    assert await outcome(broker, *batch) == [None] * 90

    for topic in range(3):
        mine = [str(n) for n in range(90) if n % 3 == topic]
        found = await ids(redis_url, f"{prefix}:t{topic}")
        assert sorted(found, key=int) == mine
        for key in range(5):
            of_key = [name for name in found if int(name) % 5 == key]
            assert of_key == sorted(of_key, key=int)


async def test_streams_are_trimmed_only_when_asked(
    client: Client, redis_url: str, prefix: str
) -> None:
    whole, trimmed = await opened(client, redis_url), await opened(client, redis_url, maxlen=100)
    stream = f"{prefix}:{TOPIC}"
    assert await outcome(whole, *(message(str(n)) for n in range(1000))) == [None] * 1000
    assert await ask(redis_url, "XLEN", stream) == 1000

    assert await outcome(trimmed, message("last")) == [None]

    assert await ask(redis_url, "XLEN", stream) < 300


async def test_a_short_memory_refuses_whole_batches_and_no_key_is_reordered(
    client: Client, serve: Serve, prefix: str
) -> None:
    """Memory comes and goes within the batches; nothing overtakes what was refused."""
    server = serve()
    broker = await opened(client, server.url)
    stop = threading.Event()

    def flicker() -> None:
        while not stop.is_set():
            for limit in (1, 0):
                do(server.url, ("CONFIG", "SET", "maxmemory", limit))

    thread = threading.Thread(target=flicker)
    thread.start()
    sent, refused = [], 0
    try:
        for number in range(60):
            batch = [message(f"{number}-{n}", key=f"k{n % 10}") for n in range(500)]
            results = await outcome(broker, *batch)
            assert set(kinds(results)) <= {None, BrokerUnavailable}
            refused += results[0] is not None
            sent += [m.id for m, r in zip(batch, results, strict=True) if r is None]
            for key in range(10):
                mine = [result is None for result in results[key::10]]
                assert mine == sorted(mine, reverse=True), "a later message of a key went ahead"
    finally:
        stop.set()
        thread.join()
    await ask(server.url, "CONFIG", "SET", "maxmemory", 0)
    assert 0 < refused < 60
    assert await ids(server.url, f"{prefix}:{TOPIC}") == sent


async def test_short_of_memory_is_unavailable_until_there_is_some(
    client: Client, serve: Serve
) -> None:
    server = serve()
    broker = await opened(client, server.url)
    assert await outcome(broker, message("a")) == [None]
    await ask(server.url, "CONFIG", "SET", "maxmemory", 1)

    [result] = await outcome(broker, message("b"))
    with pytest.raises(BrokerUnavailable, match="OOM"):
        await broker.ping()

    assert isinstance(result, BrokerUnavailable)
    assert "OOM" in result.reason
    await ask(server.url, "CONFIG", "SET", "maxmemory", 0)
    await broker.ping()
    assert await outcome(broker, message("b")) == [None]


async def test_a_replica_is_unavailable_until_it_is_the_primary(
    client: Client, serve: Serve
) -> None:
    server = serve()
    broker = await opened(client, server.url)
    await ask(server.url, "REPLICAOF", "127.0.0.1", 1)

    results = await outcome(broker, message("a", key="k"), message("b", key="k"))
    with pytest.raises(BrokerUnavailable, match="READONLY"):
        await broker.ping()

    assert kinds(results) == [BrokerUnavailable] * 2
    assert "READONLY" in str(results[0])
    await ask(server.url, "REPLICAOF", "NO", "ONE")
    await broker.ping()
    assert await outcome(broker, message("a")) == [None]


async def test_a_disk_that_cannot_be_written_is_unavailable(client: Client, serve: Serve) -> None:
    server = serve(save="3600 1")
    broker = await opened(client, server.url)
    assert server._home is not None
    (server._home / "dump.rdb").mkdir()  # what is to be replaced is a folder: every save fails
    await ask(server.url, "SET", "something", "to save")
    await ask(server.url, "BGSAVE")

    async def failed() -> bool:
        return b"rdb_last_bgsave_status:err" in await ask(server.url, "INFO", "persistence")

    await until(failed)

    [result] = await outcome(broker, message("a"))

    assert isinstance(result, BrokerUnavailable)
    assert "MISCONF" in result.reason
    assert not await pings(broker)


async def test_too_few_replicas_by_the_servers_own_rule_is_unavailable(
    client: Client, serve: Serve
) -> None:
    server = serve(min_replicas_to_write="1")
    broker = await opened(client, server.url)

    [result] = await outcome(broker, message("a"))

    assert isinstance(result, BrokerUnavailable)
    assert "NOREPLICAS" in result.reason
    assert not await pings(broker)


async def test_a_server_that_reads_its_data_is_unavailable(
    client: Client, serve: Serve, prefix: str
) -> None:
    server = serve()
    broker = await opened(client, server.url)
    await asyncio.to_thread(do, server.url, *(("SET", f"key-{n}", "x" * 2000) for n in range(400)))
    await ask(server.url, "SAVE")
    server.stop()
    server._settings |= {"key-load-delay": "5000", "loading-process-events-interval-bytes": "1024"}
    starting = asyncio.create_task(asyncio.to_thread(server.start))

    async def loading() -> list[str]:
        results = await outcome(broker, message("a"))
        assert kinds(results) == [BrokerUnavailable]
        return [str(result) for result in results if "LOADING" in str(result)]

    await until(loading)
    assert not await pings(broker)

    await starting
    await until(lambda: pings(broker))
    assert await outcome(broker, message("a")) == [None]
    assert await ids(server.url, f"{prefix}:{TOPIC}") == ["a"]


async def test_a_refused_connection_is_unavailable_and_comes_back(
    client: Client, serve: Serve
) -> None:
    server = serve()
    broker = await opened(client, server.url)
    assert await outcome(broker, message("a")) == [None]
    server.stop()

    results = await outcome(broker, message("b"), message("c"))
    assert kinds(results) == [BrokerUnavailable] * 2
    assert not await pings(broker)

    server.start()
    await broker.ping()
    assert await outcome(broker, message("b")) == [None]


async def test_a_log_in_that_is_refused_keeps_the_password_to_itself(
    client: Client, serve: Serve
) -> None:
    server = serve(requirepass="s3cr3t")
    without = await opened(client, server.url)
    wrong = await opened(client, server.url.replace("://", "://default:t0ps3cr3t@"))
    right = await opened(client, server.url.replace("://", "://:s3cr3t@"))

    [unknown] = await outcome(without, message("a"))
    [refused] = await outcome(wrong, message("a"))

    assert isinstance(unknown, BrokerUnavailable)
    assert isinstance(refused, BrokerUnavailable)
    assert "Authentication required" in unknown.reason
    assert "invalid username-password pair" in refused.reason
    assert not await pings(without)
    said = f"{refused} {wrong!r} {wrong._options!r} {vars(wrong)!r}"
    assert "t0ps3cr3t" not in said
    assert await outcome(right, message("a")) == [None]


async def test_rights_for_some_streams_stop_the_others_only(
    client: Client, serve: Serve, prefix: str
) -> None:
    server = serve()
    rights = ("+@all", "-config", f"~{prefix}:allowed*")
    await ask(server.url, "ACL", "SETUSER", "clerk", "on", ">pw", *rights)
    broker = await opened(client, server.url.replace("://", "://clerk:pw@"))

    await broker.ping()
    results = await outcome(
        broker,
        message("a", topic="allowed"),
        message("k1", topic="forbidden", key="k"),
        message("k2", topic="allowed", key="k"),
        message("b", topic="allowed2"),
    )

    assert kinds(results) == [None, RefusedForNow, NotAttempted, None]
    assert "NOPERM" in str(results[1])
    assert await ids(server.url, f"{prefix}:allowed") == ["a"]


async def test_without_the_right_to_publish_nothing_is_sent(client: Client, serve: Serve) -> None:
    server = serve()
    await ask(server.url, "ACL", "SETUSER", "reader", "on", ">pw", "+@all", "-xadd", "~*")
    broker = await opened(client, server.url.replace("://", "://reader:pw@"))

    results = await outcome(broker, message("a"), message("b"))

    assert kinds(results) == [BrokerUnavailable] * 2
    assert "NOPERM" in str(results[0])
    assert not await pings(broker)


@pytest.mark.parametrize("tells", [True, False])
async def test_what_is_over_the_servers_limit_is_found_and_the_others_go_on(
    client: Client, serve: Serve, prefix: str, *, tells: bool
) -> None:
    """Whether we may ask for the limit, or the server ends the connection on the message."""
    server = serve(proto_max_bulk_len="1mb")
    rights = ("+@all", "~*", *(() if tells else ("-config",)))
    await ask(server.url, "ACL", "SETUSER", "clerk", "on", ">pw", *rights)
    broker = await opened(client, server.url.replace("://", "://clerk:pw@"))
    huge = message("huge", key="k")
    object.__setattr__(huge, "payload", b"x" * 1_100_000)

    results = await outcome(
        broker, message("a"), message("k1", key="k"), huge, message("k3", key="k"), message("b")
    )

    assert kinds(results) == [None, None, RefusedForGood, NotAttempted, None]
    assert await ids(server.url, f"{prefix}:{TOPIC}") == ["a", "k1", "b"]


async def test_what_redis_cannot_be_told_is_refused_for_good(
    client: Client, redis_url: str
) -> None:
    broker = await opened(client, redis_url, max_message_bytes=10)
    large = message("large")
    object.__setattr__(large, "payload", b"x" * 11)

    results = await outcome(
        broker,
        message("a"),
        large,
        message("b", key="\ud83d"),
        message("c", topic="\ud83d"),
        message("d", headers={"h": "\udcff"}),
        message("e"),
    )

    assert kinds(results) == [None, *[RefusedForGood] * 4, None]


async def test_a_cut_wire_is_unknown_in_time_and_over_when_it_is_whole(
    client: Client, serve: Serve
) -> None:
    server = serve()
    with Proxy("127.0.0.1", server.port) as proxy:
        broker = await opened(client, f"redis://127.0.0.1:{proxy.port}", connect_timeout=SHORT)
        assert await outcome(broker, message("a")) == [None]
        proxy.silence()
        loop = asyncio.get_running_loop()
        began = loop.time()

        results = await outcome(broker, message("b"), message("c"), timeout=SHORT)
        assert loop.time() - began < 1
        assert not await pings(broker)

        assert kinds(results) == [OutcomeUnknown] * 2
        assert isinstance(results[0], OutcomeUnknown)
        assert results[0].timed_out
        proxy.restore()
        await until(lambda: pings(broker))
        assert await outcome(broker, message("b")) == [None]


async def test_a_hanging_server_is_unknown_and_sends_nothing_twice_by_itself(
    client: Client, serve: Serve, prefix: str
) -> None:
    server = serve()
    broker = await opened(client, server.url)
    assert await outcome(broker, message("first")) == [None]
    server.signal(signal.SIGSTOP)

    known = await outcome(broker, message("a"), message("b"), timeout=SHORT)
    unsent = await outcome(broker, message("c"), timeout=SHORT)
    server.signal(signal.SIGCONT)

    assert kinds(known) == [OutcomeUnknown] * 2
    assert kinds(unsent) == [BrokerUnavailable]
    await until(lambda: pings(broker))
    assert await outcome(broker, message("last")) == [None]
    found = await ids(server.url, f"{prefix}:{TOPIC}")
    # What the frozen server had in its buffers may come late, whole and once.
    assert [name for name in found if name not in {"a", "b"}] == ["first", "last"]
    assert [name for name in found if name in {"a", "b"}] in ([], ["a", "b"])


@pytest.mark.parametrize("end", ["reset", "killed"])
async def test_a_connection_that_ends_in_the_middle_is_unknown_for_what_was_written(
    client: Client, serve: Serve, prefix: str, end: str
) -> None:
    server = serve(persistent=True)
    with Proxy("127.0.0.1", server.port) as proxy:
        broker = await opened(client, f"redis://127.0.0.1:{proxy.port}", max_in_flight=10)
        assert await outcome(broker, message("first")) == [None]
        server.signal(signal.SIGSTOP)
        before = proxy.passed
        batch = [message(str(n), key="k") for n in range(30)]
        publishing = asyncio.create_task(outcome(broker, *batch))
        await until(lambda: asyncio.sleep(0, proxy.passed > before))

        if end == "reset":
            proxy.reset()
        else:
            server.stop(how=signal.SIGKILL)
        results = await publishing

        assert kinds(results) == [OutcomeUnknown] * 10 + [BrokerUnavailable] * 20
        assert isinstance(results[0], OutcomeUnknown)
        assert not results[0].timed_out
        if end == "reset":
            server.signal(signal.SIGCONT)
        else:
            server.start()
        await until(lambda: pings(broker))
        assert await outcome(broker, *batch) == [None] * 30
        found = await ids(server.url, f"{prefix}:{TOPIC}")
        again = [str(n) for n in range(10)]
        whole = [str(n) for n in range(30)]
        assert found[0] == "first"
        assert found[1:] in (whole, again + whole)


async def test_what_was_confirmed_is_there_after_a_kill(
    client: Client, serve: Serve, prefix: str
) -> None:
    server = serve(persistent=True)
    broker = await opened(client, server.url)
    batch = [message(str(n), key="k") for n in range(500)]
    assert await outcome(broker, *batch) == [None] * 500

    server.stop(how=signal.SIGKILL)
    server.start()

    assert await ids(server.url, f"{prefix}:{TOPIC}") == [str(n) for n in range(500)]
    await broker.ping()
    assert await outcome(broker, message("more")) == [None]


async def test_replicas_have_it_before_it_is_sent(
    client: Client, serve: Serve, prefix: str
) -> None:
    primary, replica = serve(repl_diskless_sync_delay="0"), serve()
    broker = await opened(client, primary.url, replicas=1)

    alone = await outcome(broker, message("k1", key="k"), timeout=SHORT)
    with pytest.raises(BrokerUnavailable, match="0 of 1 replicas"):
        await broker.ping()
    await ask(replica.url, "REPLICAOF", "127.0.0.1", primary.port)
    await until(lambda: pings(broker))

    assert kinds(alone) == [OutcomeUnknown]
    assert isinstance(alone[0], OutcomeUnknown)
    assert alone[0].timed_out
    assert await outcome(broker, message("k1", key="k"), message("k2", key="k")) == [None] * 2
    assert await ids(replica.url, f"{prefix}:{TOPIC}") == ["k1", "k1", "k2"]


async def test_a_disk_has_it_before_it_is_sent_or_the_server_cannot_promise(
    client: Client, serve: Serve
) -> None:
    server, forgetful = serve(persistent=True, appendfsync="always"), serve()
    broker = await opened(client, server.url, fsync=True)
    other = await opened(client, forgetful.url, fsync=True)

    if isinstance((await asyncio.to_thread(do, server.url, ("WAITAOF", 0, 0, 1)))[0], Exception):
        with pytest.raises(BrokerUnavailable, match=r"unknown command.*WAITAOF"):
            await broker.ping()
        return
    await broker.ping()

    assert await outcome(broker, message("a")) == [None]
    with pytest.raises(BrokerUnavailable, match="appendonly"):
        await other.ping()
    assert kinds(await outcome(other, message("a"))) == [OutcomeUnknown]
