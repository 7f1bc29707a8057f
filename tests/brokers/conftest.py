"""What the tests of the brokers share."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from tests import nats
from tests.rabbitmq import Ground, ground
from tests.servers import Server, nats_servers, needed, rabbitmq_servers


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


@pytest.fixture(scope="session", params=needed(nats_servers(), "NATS", "POSTROOM_TEST_NATS"))
def nats_url(request: pytest.FixtureRequest) -> str:
    """The address of a NATS server."""
    server: Server = request.param
    return server.url


@pytest.fixture
async def jetstream(nats_url: str) -> AsyncIterator[nats.Ground]:
    """Names of this test's own in a NATS server."""
    made = nats.ground(nats_url)
    yield made
    await made.remove()
