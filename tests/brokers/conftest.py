"""What the tests of the brokers share."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from postroom.brokers.kafka import KafkaBroker
from postroom.lab.servers.kafka import installed
from tests import kafka, nats
from tests.brokers.log import SESSION, Client
from tests.rabbitmq import Ground, ground
from tests.servers import Server, kafka_servers, nats_servers, needed, rabbitmq_servers

_CURE = "these tests kill one of their own, which `make servers` fetches (with Java and Maven)"
_OWN = [Server("kafka", "")] if installed() else []


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Where the embedded broker of this test lives."""
    return tmp_path / "broker.db"


@pytest.fixture(
    scope="session",
    params=needed(rabbitmq_servers(), "RabbitMQ", "POSTROOM_TEST_RABBITMQ"),
)
def rabbit(request: pytest.FixtureRequest) -> Iterator[Ground]:
    """A virtual host of this run's own."""
    server: Server = request.param
    with ground(server.url) as made:
        yield made


@pytest.fixture(scope="session", params=needed(kafka_servers(), "Kafka", "POSTROOM_TEST_KAFKA"))
def kafka_url(request: pytest.FixtureRequest) -> str:
    """The address of a Kafka that answers."""
    server: Server = request.param
    kafka.wait(server.url)
    return server.url


@pytest.fixture(scope="session", params=needed(nats_servers(), "NATS", "POSTROOM_TEST_NATS"))
def nats_url(request: pytest.FixtureRequest) -> str:
    """The address of a NATS server."""
    server: Server = request.param
    return server.url


@pytest.fixture
def log(kafka_url: str) -> kafka.Ground:
    """Names of this test's own in a Kafka."""
    return kafka.ground(kafka_url)


@pytest.fixture
async def kafka_client(log: kafka.Ground) -> AsyncIterator[Client]:
    """Makes clients of the Kafka with groups of the test's own, which are closed after it."""
    made: list[KafkaBroker] = []

    def make(url: str = log.url, **options: Any) -> KafkaBroker:
        given = {"group_prefix": log.prefix, "session_timeout": SESSION, **options}
        made.append(KafkaBroker(url, **given))
        return made[-1]

    yield make
    for broker in made:
        await broker.close()


@pytest.fixture(scope="session", params=needed(_OWN, "Kafka", cure=_CURE))
def own_kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[kafka.OwnKafka]:
    """A Kafka that these tests may kill."""
    with kafka.own(tmp_path_factory.mktemp("certificates")) as made:
        yield made


async def jetstream(nats_url: str) -> AsyncIterator[nats.Ground]:
    """Names of this test's own in a NATS server."""
    made = nats.ground(nats_url)
    yield made
    await made.remove()
