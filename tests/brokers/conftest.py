"""What the tests of the brokers share."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.rabbitmq import Ground, ground
from tests.servers import Server, needed, rabbitmq_servers, redis_servers


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


@pytest.fixture(
    scope="session",
    params=needed(redis_servers(), "Redis", "POSTROOM_TEST_REDIS"),
)
def redis_url(request: pytest.FixtureRequest) -> str:
    """The address of a Redis or a Valkey."""
    server: Server = request.param
    return server.url
