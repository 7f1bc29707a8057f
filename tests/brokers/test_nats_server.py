"""What publishing to NATS does when the server is killed, frozen, guarded or encrypted."""

import asyncio
import signal
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from postroom.broker import Delivery
from postroom.brokers.nats import NatsBroker
from postroom.errors import (
    BrokerError,
    BrokerUnavailable,
    NotAttempted,
    OutcomeUnknown,
    RefusedForNow,
)
from postroom.lab.servers.nats import NatsServer, any_server, installed
from tests.brokers.stream import SHORT, kinds, message, outcome
from tests.certificates import certificates
from tests.nats import Ground
from tests.servers import Server, needed

pytestmark = [pytest.mark.crash, pytest.mark.timeout(60)]

OWN = needed([Server("own", "nats")] if installed() else [], "NATS")
TOPIC = "shop.order-placed"
Client = Callable[..., NatsBroker]


@contextmanager
def running(config: str = "", *, user: str = "") -> Iterator[NatsServer]:
    """Give a server of the test's own."""
    made = any_server(config=config, user=user)
    try:
        made.start()
        yield made
    finally:
        made.remove()


@pytest.fixture(params=OWN)
def server() -> Iterator[NatsServer]:
    with running() as made:
        yield made


@pytest.fixture
def own() -> None:
    """Skip, loudly, where there is no server to start."""
    if installed() is None:
        pytest.skip("no NATS server is installed")


@pytest.fixture
async def client() -> AsyncIterator[Client]:
    """Makes open clients, which are closed after the test."""
    made: list[NatsBroker] = []

    def make(url: str, **options: Any) -> NatsBroker:
        options = {"heartbeat": timedelta(seconds=1), **options}
        made.append(NatsBroker(url, **options))
        return made[-1]

    yield make
    for broker in made:
        await broker.close()


async def opened(broker: NatsBroker) -> NatsBroker:
    await broker.open()
    await broker.apply_topology({"billing": [TOPIC]})
    return broker


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
async def test_nothing_confirmed_is_lost_when_the_server_ends(
    server: NatsServer, client: Client, how: signal.Signals
) -> None:
    """Batches go on all the time while it ends and comes back; each key keeps its order."""
    broker = await opened(client(server.url))
    confirmed: list[str] = []
    errors: list[BrokerError] = []
    done = asyncio.Event()
    step = 0

    async def publish() -> None:
        nonlocal step
        waiting = {f"k{key}": 0 for key in range(20)}
        while not done.is_set():
            batch = [
                message(f"{key}-{number + ahead:05}", topic=TOPIC, key=key)
                for key, number in waiting.items()
                for ahead in range(3)
            ]
            results = await outcome(broker, *batch, timeout=SHORT)
            for one, result in zip(batch, results, strict=True):
                if result is None:
                    confirmed.append(one.id)
                    waiting[str(one.key)] += 1
                else:
                    errors.append(result)
            step += 1
            await asyncio.sleep(0.05 if any(results) else 0)

    publishing = asyncio.create_task(publish())
    for _ in range(2):
        await _until(_reaches(lambda: step, step + 5))
        await asyncio.to_thread(server.stop, how=how)
        await asyncio.sleep(0.2)
        await asyncio.to_thread(server.start)
    await _until(_reaches(lambda: len(confirmed), len(confirmed) + 500))
    done.set()
    await publishing

    stored = await Ground(server.url, "postroom", TOPIC).ids()
    assert errors
    assert {type(error) for error in errors} <= _EXPECTED
    assert set(confirmed) <= set(stored)
    for key in range(20):
        mine = [name for name in stored if name.startswith(f"k{key}-")]
        assert list(dict.fromkeys(mine)) == sorted(set(mine))


_EXPECTED: set[type[BrokerError]] = {BrokerUnavailable, OutcomeUnknown, NotAttempted}


def _reaches(count: Callable[[], int], wanted: int) -> Callable[[], bool]:
    return lambda: count() >= wanted


async def _until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not condition():
            await asyncio.sleep(0.01)


async def test_a_frozen_server_is_answered_for_in_time(server: NatsServer, client: Client) -> None:
    broker = await opened(client(server.url))
    assert await outcome(broker, message("a", topic=TOPIC)) == [None]
    server.signal(signal.SIGSTOP)
    loop = asyncio.get_running_loop()
    begun = loop.time()

    [first] = await outcome(broker, message("b", topic=TOPIC), timeout=SHORT)
    [second] = await outcome(broker, message("b", topic=TOPIC), timeout=SHORT)

    assert loop.time() - begun < 2 * SHORT.total_seconds()
    assert isinstance(first, OutcomeUnknown)
    assert first.timed_out
    assert isinstance(second, BrokerUnavailable)
    server.signal(signal.SIGCONT)
    await broker.ping()
    assert await outcome(broker, message("b", topic=TOPIC)) == [None]
    assert await Ground(server.url, "postroom", TOPIC).ids() == ["a", "b"]


async def test_what_a_killed_consumer_had_comes_to_another_uncounted(
    server: NatsServer, client: Client
) -> None:
    """Also what it held without having handed it out; only after the server's patience."""
    broker = client(server.url, ack_wait=timedelta(seconds=1))
    await opened(broker)
    names = ["a", "b", "c", "d"]
    await outcome(broker, *(message(name, topic=TOPIC) for name in names))
    member = await asyncio.create_subprocess_exec(
        *(sys.executable, str(Path(__file__).with_name("nats_member.py")), server.url, TOPIC),
        stdout=asyncio.subprocess.PIPE,
    )
    assert member.stdout is not None
    async with asyncio.timeout(20):
        assert await member.stdout.readline() == b"a\n"
        # Alive, it keeps them for longer than that.
        async with broker.subscribe([TOPIC], group="billing", prefetch=5) as box:
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(1.5):
                    await anext(box)
        member.kill()
        await member.wait()

        async with broker.subscribe([TOPIC], group="billing", prefetch=5) as box:
            again = [await anext(box) for _ in names]

    assert sorted(one.message.id for one in again) == names
    assert {(one.redelivered, one.attempt) for one in again} == {(True, 1)}


async def test_a_server_that_ends_ends_the_subscription_and_no_count_is_lost(
    server: NatsServer, client: Client
) -> None:
    """It comes back with its streams; the last acknowledgements it may have forgotten."""
    broker = await opened(client(server.url, ack_wait=timedelta(seconds=1)))
    await outcome(broker, *(message(name, topic=TOPIC) for name in "abc"))
    async with broker.subscribe([TOPIC], group="billing", prefetch=5) as box:
        first, second = await anext(box), await anext(box)
        await first.ack()
        await second.retry(timedelta(milliseconds=50), "not yet")
        await asyncio.to_thread(server.stop, how=signal.SIGKILL)
        with pytest.raises(BrokerUnavailable):
            await _to_the_end(box)
        await asyncio.to_thread(server.start)

    found: dict[str, int | None] = {}
    async with asyncio.timeout(20), broker.subscribe([TOPIC], group="billing", prefetch=5) as box:
        while not {"b", "c"} <= set(found):
            delivery = await anext(box)
            found[delivery.message.id] = delivery.attempt
            await delivery.ack()
    assert (found["b"], found["c"], found.get("a", 1)) == (2, 1, 1)


async def _to_the_end(box: AsyncIterator[Delivery]) -> None:
    async for _ in box:
        pass


_GUARDED = """
authorization {
  users = [
    { user: admin, password: pw }
    { user: relay, password: pw, permissions: {
        publish: ["shop.order-placed", "$JS.API.STREAM.INFO.postroom"], subscribe: "_INBOX.>" } }
    { user: consumer, password: pw, permissions: { subscribe: "_INBOX.>", publish: [
        "$JS.API.STREAM.INFO.*", "$JS.API.CONSUMER.INFO.postroom.billing"
        "$JS.API.CONSUMER.MSG.NEXT.postroom.billing", "$JS.ACK.postroom.billing.>"
        "postroom-dead.billing", "postroom-tries.billing.*"
        "$JS.API.STREAM.MSG.GET.postroom-tries", "$JS.API.STREAM.PURGE.postroom-tries" ] } }
    { user: deployer, password: pw, permissions: { subscribe: "_INBOX.>", publish: [
        "$JS.API.STREAM.*.*", "$JS.API.CONSUMER.*.postroom.>" ] } }
    { user: deaf, password: pw, permissions: { publish: ">", subscribe: "nothing" } }
  ]
}
"""


@pytest.mark.usefixtures("own")
async def test_the_rights_that_the_page_names_are_enough_for_a_relay(client: Client) -> None:
    """What else it publishes is refused for now, at once, and holds up nothing."""
    with running(_GUARDED, user="admin:pw") as server:
        admin = await opened(client(server.url, subjects=["shop.>"]))
        relay = client(f"nats://relay:pw@127.0.0.1:{server.port}")
        await relay.open()
        await relay.ping()
        other = "shop.Secret"
        loop = asyncio.get_running_loop()
        begun = loop.time()

        results = await outcome(
            relay,
            message("a", topic=TOPIC),
            message("b", topic=other),
            message("c", topic=other),
            message("d", topic=TOPIC),
        )

        assert kinds(results) == [None, RefusedForNow, RefusedForNow, None]
        assert "no permission to publish to 'shop.Secret'" in str(results[1])
        assert loop.time() - begun < 2
        assert await outcome(admin, message("b", topic=other)) == [None]


@pytest.mark.usefixtures("own")
async def test_the_rights_that_the_page_names_are_enough_for_a_consumer(client: Client) -> None:
    with running(_GUARDED, user="admin:pw") as server:
        deployer = await opened(client(f"nats://deployer:pw@127.0.0.1:{server.port}"))
        await deployer.apply_topology({"billing": ["shop.other"]})
        admin = client(server.url)
        await admin.open()
        await outcome(admin, message("a", topic=TOPIC), message("b", topic=TOPIC))
        consumer = client(f"nats://consumer:pw@127.0.0.1:{server.port}")
        await consumer.open()

        async with consumer.subscribe([TOPIC], group="billing", prefetch=1) as box:
            await (await anext(box)).retry(timedelta(milliseconds=50), "not yet")
            await (await anext(box)).ack()
            again = await anext(box)
            assert (again.message.id, again.attempt) == ("a", 2)
            await again.reject("poison")

        assert [one.reason for one in await admin.dead_letters("billing")] == ["poison"]
        assert await Ground(server.url, "postroom", TOPIC).count("postroom-tries") == 0


@pytest.mark.usefixtures("own")
async def test_who_may_hear_no_answers_cannot_publish(client: Client) -> None:
    with running(_GUARDED, user="admin:pw") as server:
        await opened(client(server.url))
        broker = client(f"nats://deaf:pw@127.0.0.1:{server.port}")
        await broker.open()

        [result] = await outcome(broker, message("a", topic=TOPIC))

        assert isinstance(result, BrokerUnavailable)
        assert "no permission to subscribe" in result.reason


@pytest.mark.usefixtures("own")
async def test_a_refused_log_in_is_unavailable_and_keeps_the_password_to_itself(
    client: Client,
) -> None:
    with running(_GUARDED, user="admin:pw") as server:
        for named in ("relay:s3cr3t", "s3cr3t"):
            broker = client(f"nats://{named}@127.0.0.1:{server.port}")
            await broker.open()

            [result] = await outcome(broker, message("a", topic=TOPIC))

            assert isinstance(result, BrokerUnavailable)
            assert "Authorization Violation" in result.reason
            assert "s3cr3t" not in str(result) + repr(broker) + repr(broker._options)


@pytest.mark.usefixtures("own")
async def test_a_token_from_the_environment(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("POSTROOM_NATS_TOKEN", "s3cr3t")
    with running("authorization { token: s3cr3t }", user="s3cr3t") as server:
        broker = await opened(client(f"nats://127.0.0.1:{server.port}"))

        assert await outcome(broker, message("a", topic=TOPIC)) == [None]


@pytest.mark.usefixtures("own")
async def test_an_account_without_jetstream_is_unavailable(client: Client) -> None:
    config = "accounts { A: { users: [{ user: ann, password: pw }] } }"
    with running(config, user="ann:pw") as server:
        broker = client(server.url)
        await broker.open()

        [result] = await outcome(broker, message("a", topic=TOPIC))

        assert isinstance(result, BrokerUnavailable)
        assert "JetStream" in result.reason


async def test_a_message_on_which_the_server_closes_leaves_its_error_reply(
    server: NatsServer, client: Client
) -> None:
    """Its limit was lowered after we had connected."""
    broker = await opened(client(server.url))
    large = message("large", topic=TOPIC, payload=b"x" * 500_000)
    assert await outcome(broker, message("first", topic=TOPIC)) == [None]
    server.reload("max_payload: 100000")
    await asyncio.sleep(0.5)

    results = await outcome(broker, large)

    [result] = results
    assert isinstance(result, OutcomeUnknown)
    assert result.error_reply is not None
    assert "maximum payload" in result.error_reply
    assert not result.timed_out
    [again] = await outcome(broker, large)
    assert "the server takes" in str(again)
    assert await outcome(broker, message("next", topic=TOPIC)) == [None]


# TLS


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    with certificates() as made:
        yield made


def _tls(folder: Path, more: str = "") -> str:
    return f"""tls {{
        cert_file: {folder}/server.pem, key_file: {folder}/server.key
        ca_file: {folder}/ca.pem, {more}
    }}"""


@pytest.mark.usefixtures("own")
@pytest.mark.parametrize("more", ["", "handshake_first: true"])
async def test_over_tls(client: Client, folder: Path, more: str) -> None:
    with running(_tls(folder, more)) as server:
        broker = client(
            f"tls://127.0.0.1:{server.port}", cacertfile=f"{folder}/ca.pem", tls_first=bool(more)
        )
        await opened(broker)

        assert await outcome(broker, message("a", topic=TOPIC)) == [None]


@pytest.mark.usefixtures("own")
async def test_a_certificate_stands_for_a_name(client: Client, folder: Path) -> None:
    config = (
        _tls(folder, "verify_and_map: true")
        + """
        authorization { users = [{ user: "CN=client" }] }"""
    )
    files = {"certfile": f"{folder}/client.pem", "keyfile": f"{folder}/client.key"}
    with running(config) as server:
        url, ca = f"tls://127.0.0.1:{server.port}", f"{folder}/ca.pem"
        stranger = client(url, cacertfile=ca)
        await stranger.open()
        assert kinds(await outcome(stranger, message("a", topic=TOPIC))) == [BrokerUnavailable]

        broker = await opened(client(url, cacertfile=ca, **files))

        assert await outcome(broker, message("a", topic=TOPIC)) == [None]


@pytest.mark.usefixtures("own")
async def test_a_server_that_cannot_show_who_it_is_gets_nothing(
    client: Client, folder: Path
) -> None:
    with running(_tls(folder)) as server:
        broker = client(f"tls://127.0.0.1:{server.port}")
        await broker.open()

        [result] = await outcome(broker, message("a", topic=TOPIC))

        assert isinstance(result, BrokerUnavailable)
        assert "certificate" in result.reason
        believing = await opened(client(f"tls://127.0.0.1:{server.port}", verify=False))
        assert await outcome(believing, message("a", topic=TOPIC)) == [None]


async def test_no_password_goes_to_a_server_that_offers_no_tls(
    server: NatsServer, client: Client
) -> None:
    broker = client(f"tls://ann:s3cr3t@127.0.0.1:{server.port}")
    await broker.open()

    [result] = await outcome(broker, message("a", topic=TOPIC))

    assert isinstance(result, BrokerUnavailable)
    assert "offers no TLS" in result.reason
