"""The RabbitMQ driver and a server of the tests' own: killed, frozen, out of memory, and on TLS."""

import asyncio
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

from postroom.broker import Delivery
from postroom.brokers.rabbitmq import RabbitmqBroker
from postroom.errors import BrokerError, BrokerUnavailable, OutcomeUnknown
from postroom.lab.servers.rabbitmq import RabbitmqServer, any_server, installed
from tests.brokers.rabbit import TOPIC, message, outcome
from tests.certificates import certificates as own_certificates
from tests.servers import Server, needed

pytestmark = [pytest.mark.crash, pytest.mark.timeout(120)]

OWN = needed([Server("own", "rabbitmq")] if installed() else [], "RabbitMQ")
SHORT = timedelta(seconds=1)
Client = Callable[..., RabbitmqBroker]


@pytest.fixture(scope="module")
def certificates() -> Iterator[Path]:
    """A folder with an authority, a server's certificate and a client's."""
    with own_certificates() as folder:
        yield folder


@pytest.fixture(scope="module", params=OWN)
def server(certificates: Path) -> Iterator[RabbitmqServer]:
    """A server that only these tests use; with TLS on a second port."""
    server = any_server(certificates=certificates)
    try:
        server.start()
        yield server
    finally:
        server.remove()


@pytest.fixture
async def client(server: RabbitmqServer, request: pytest.FixtureRequest) -> AsyncIterator[Client]:
    """Makes clients of the server, which are closed after the test."""
    made: list[RabbitmqBroker] = []
    exchange = f"test-{abs(hash(request.node.name))}"

    def make(url: str = server.url.partition("?")[0], **options: Any) -> RabbitmqBroker:
        options = {"exchange": exchange, "heartbeat": timedelta(seconds=1), **options}
        made.append(RabbitmqBroker(url, **options))
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


async def back(broker: RabbitmqBroker) -> None:
    """Wait until a publish has a chance again."""
    async with asyncio.timeout(30):
        while True:
            with suppress(BrokerUnavailable):
                return await broker.ping()
            await asyncio.sleep(0.1)


async def received(broker: RabbitmqBroker, enough: int) -> list[str]:
    """Receive and acknowledge until so many different ones are here and nothing more comes."""
    names: list[str] = []
    async with broker.subscribe([TOPIC], group="billing", prefetch=500) as box:
        try:
            while True:
                async with asyncio.timeout(10 if len(set(names)) < enough else 0.5):
                    delivery = await anext(box)
                names.append(delivery.message.id)
                await delivery.ack()
        except TimeoutError:
            return names


async def test_what_was_confirmed_before_the_server_was_killed_is_there_afterwards(
    server: RabbitmqServer, broker: RabbitmqBroker
) -> None:
    """In the middle of a batch; nothing raises, and no message is blamed.

    The failure lab asks the same of a planned stop, with a shop around it.
    """
    confirmed: list[str] = []
    errors: list[BrokerError] = []

    async def publish() -> None:
        for number in range(10_000):
            batch = [message(f"{number}-{each}") for each in range(50)]
            results = await outcome(broker, *batch, timeout=timedelta(seconds=3))
            confirmed.extend(
                each.id for each, error in zip(batch, results, strict=True) if error is None
            )
            errors.extend(error for error in results if error is not None)
            if errors:
                return

    # A server that is killed forgets a queue that was declared a moment before.
    await asyncio.to_thread(server.flush)
    publishing = asyncio.create_task(publish())
    await asyncio.sleep(0.7)
    await asyncio.to_thread(server.kill)
    await publishing
    assert errors
    for error in errors:
        assert isinstance(error, OutcomeUnknown | BrokerUnavailable), error
        assert getattr(error, "error_reply", None) is None
    [gone] = await outcome(broker, message("gone"))
    assert isinstance(gone, BrokerUnavailable)

    await asyncio.to_thread(server.start)
    await back(broker)

    # A queue that has no leader yet confirms nothing, and may never confirm what came then.
    async with asyncio.timeout(40):
        while await outcome(broker, message("afterwards"), timeout=SHORT * 2) != [None]:
            await asyncio.sleep(0.1)
    wanted = {*confirmed, "afterwards"}
    assert wanted <= set(await received(broker, len(wanted)))


async def test_a_frozen_server_is_unknown_in_time_and_ends_the_subscription(
    server: RabbitmqServer, broker: RabbitmqBroker
) -> None:
    await outcome(broker, message("before"))
    loop = asyncio.get_running_loop()
    async with broker.subscribe([TOPIC], group="billing", prefetch=1) as box:
        await (await anext(box)).ack()
        server.signal(signal.SIGSTOP)
        try:
            begun = loop.time()
            [result] = await outcome(broker, message("a"), timeout=SHORT)
            assert isinstance(result, OutcomeUnknown)
            assert result.timed_out
            assert loop.time() - begun < SHORT.total_seconds()
            [result] = await outcome(broker, message("a"), timeout=SHORT)
            assert isinstance(result, BrokerUnavailable)
            async with asyncio.timeout(8):
                with pytest.raises(BrokerUnavailable, match="no sign of life"):
                    await anext(box)
        finally:
            server.signal(signal.SIGCONT)

    await back(broker)
    assert await outcome(broker, message("a")) == [None]


async def test_a_server_that_is_short_of_memory_is_unavailable(
    server: RabbitmqServer, broker: RabbitmqBroker, client: Client
) -> None:
    """It blocks those who publish; consumers go on, and nobody waits for long."""
    await outcome(broker, message("a"), message("b"))
    server.control("set_vm_memory_high_watermark", "absolute", "1MB")
    try:
        async with asyncio.timeout(10):  # until the alarm is raised
            while not isinstance((await outcome(broker, message("c")))[0], BrokerError):
                await asyncio.sleep(0.1)
        loop = asyncio.get_running_loop()
        begun = loop.time()
        [result] = await outcome(broker, message("d"))
        with pytest.raises(BrokerUnavailable, match="takes no messages"):
            await broker.ping()
        assert loop.time() - begun < 1
        assert isinstance(result, BrokerUnavailable)

        fresh = client()
        await fresh.open()
        with pytest.raises(BrokerUnavailable, match="takes no messages"):
            await fresh.ping()
        async with fresh.subscribe([TOPIC], group="billing", prefetch=1) as box:
            delivery = await anext(box)
            with pytest.raises(BrokerUnavailable):
                await delivery.retry(SHORT, "not yet")
            await delivery.ack()
            assert (await anext(box)).message.id == "b"
    finally:
        server.control("set_vm_memory_high_watermark", "0.7")

    await back(broker)
    assert await outcome(broker, message("e")) == [None]


_FROZEN = dedent("""
    import asyncio, sys
    from datetime import timedelta
    from postroom.brokers.rabbitmq import RabbitmqBroker

    async def main():
        broker = RabbitmqBroker(
            sys.argv[1], exchange=sys.argv[2], heartbeat=timedelta(seconds=1)
        )
        await broker.open()
        async with broker.subscribe(["x"], group="billing", prefetch=1) as box:
            delivery = await anext(box)
            print("held", flush=True)
            await asyncio.sleep(3)
            try:
                await delivery.ack()
            except Exception as error:
                print(type(error).__name__, flush=True)

    asyncio.run(main())
""")


@pytest.fixture
def frozen(server: RabbitmqServer, broker: RabbitmqBroker) -> Iterator["subprocess.Popen[str]"]:
    """A process that holds a message and answers it three seconds later."""
    child = subprocess.Popen(
        [sys.executable, "-c", _FROZEN, server.url.partition("?")[0], broker._names.exchange],
        stdout=subprocess.PIPE,
        text=True,
    )
    with child:
        yield child
        child.send_signal(signal.SIGCONT)
        child.wait(20)


async def test_what_a_frozen_process_had_comes_to_another(
    broker: RabbitmqBroker, frozen: "subprocess.Popen[str]"
) -> None:
    """The server misses its heartbeats; when it thaws, its late answer is refused."""
    assert frozen.stdout is not None
    await outcome(broker, message("a"))
    assert await asyncio.to_thread(frozen.stdout.readline) == "held\n"
    frozen.send_signal(signal.SIGSTOP)

    async with broker.subscribe([TOPIC], group="billing", prefetch=1) as box:
        async with asyncio.timeout(15):
            again: Delivery = await anext(box)
        assert (again.message.id, again.redelivered, again.attempt) == ("a", True, 1)
        await again.ack()

    frozen.send_signal(signal.SIGCONT)
    assert await asyncio.to_thread(frozen.stdout.readline) == "DeliveryLost\n"


# TLS


def secure(server: RabbitmqServer, user: str = "guest:guest@") -> str:
    """Return the address of the port with TLS."""
    return server.tls_url.replace("://", f"://{user}")


async def test_a_server_with_a_known_authority_is_believed(
    server: RabbitmqServer, client: Client, broker: RabbitmqBroker, certificates: Path
) -> None:
    safe = client(secure(server), cacertfile=str(certificates / "ca.pem"))
    await safe.open()

    assert await outcome(safe, message("a")) == [None]
    del broker


async def test_an_unknown_authority_is_refused_unless_nobody_looks(
    server: RabbitmqServer, client: Client, broker: RabbitmqBroker
) -> None:
    careful, careless = client(secure(server)), client(secure(server), verify=False)
    await careful.open()
    await careless.open()

    [result] = await outcome(careful, message("a"))
    assert isinstance(result, BrokerUnavailable)
    assert "CERTIFICATE_VERIFY_FAILED" in result.reason
    assert await outcome(careless, message("a")) == [None]
    del broker


async def test_a_certificate_may_stand_for_the_password(
    server: RabbitmqServer, client: Client, broker: RabbitmqBroker, certificates: Path
) -> None:
    server.control("add_user", "client", "unused")
    server.control("set_permissions", "client", ".*", ".*", ".*")
    known = client(
        secure(server, ""),
        cacertfile=str(certificates / "ca.pem"),
        certfile=str(certificates / "client.pem"),
        keyfile=str(certificates / "client.key"),
        external=True,
    )
    await known.open()

    assert await outcome(known, message("a")) == [None]
    del broker
