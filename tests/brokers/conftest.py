"""What the tests of the brokers share."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import kafka
from tests.rabbitmq import Ground, ground
from tests.servers import Server, kafka_servers, needed, rabbitmq_servers


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


@pytest.fixture
def log(kafka_url: str) -> kafka.Ground:
    """Names of this test's own in a Kafka."""
    return kafka.ground(kafka_url)
