"""What the tests of the brokers share."""

from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from postroom.brokers.redis import RedisBroker
from postroom.lab.servers import redis
from tests.brokers.streams import forget
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


@pytest.fixture(
    scope="session",
    params=needed(redis_servers()[:1], "Redis", "POSTROOM_TEST_REDIS"),
)
def one_redis_url(request: pytest.FixtureRequest) -> str:
    """The address of a Redis, where one is as good as another."""
    server: Server = request.param
    return server.url


Serve = Callable[..., redis.RedisServer]
Client = Callable[..., RedisBroker]


@pytest.fixture(params=sorted(redis.installed()) or ["redis"])
def serve(request: pytest.FixtureRequest) -> Iterator[Serve]:
    """Starts servers of this test's own, with these settings."""
    program = redis.installed().get(request.param)
    if program is None:
        pytest.skip("no Redis server is installed: `make servers` does it on Debian")
    made: list[redis.RedisServer] = []

    def start(*, persistent: bool = False, **settings: str) -> redis.RedisServer:
        named = {name.replace("_", "-"): value for name, value in settings.items()}
        made.append(redis.RedisServer(program, settings=named, persistent=persistent))
        made[-1].start()
        return made[-1]

    yield start
    for server in made:
        server.remove()


@pytest.fixture
def prefix() -> str:
    """What the names of this test's keys begin with."""
    return f"test-{uuid4().hex[:12]}"


@pytest.fixture
async def client(request: pytest.FixtureRequest, prefix: str) -> AsyncIterator[Client]:
    """Makes clients, which are closed after the test; what they made is deleted."""
    made: list[RedisBroker] = []

    def make(url: str, **options: Any) -> RedisBroker:
        made.append(RedisBroker(url, **{"prefix": prefix, **options}))
        return made[-1]

    yield make
    for broker in made:
        await broker.close()
    if "redis_url" in request.fixturenames:
        forget(request.getfixturevalue("redis_url"), prefix)
