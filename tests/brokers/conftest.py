"""What the tests of the brokers share."""

from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from postroom.brokers.kafka import KafkaBroker
from postroom.brokers.redis import RedisBroker
from postroom.lab.servers import redis
from postroom.lab.servers.kafka import installed
from tests import kafka, nats
from tests.brokers.log import SESSION
from tests.brokers.log import Client as KafkaClient
from tests.brokers.streams import forget
from tests.rabbitmq import Ground, ground
from tests.servers import (
    Server,
    kafka_servers,
    nats_servers,
    needed,
    rabbitmq_servers,
    redis_servers,
)

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


@pytest.fixture(scope="session", params=needed(redis_servers(), "Redis", "POSTROOM_TEST_REDIS"))
def redis_url(request: pytest.FixtureRequest) -> str:
    """The address of a Redis or a Valkey."""
    server: Server = request.param
    return server.url


@pytest.fixture
def log(kafka_url: str) -> kafka.Ground:
    """Names of this test's own in a Kafka."""
    return kafka.ground(kafka_url)


@pytest.fixture
async def kafka_client(log: kafka.Ground) -> AsyncIterator[KafkaClient]:
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


@pytest.fixture
async def jetstream(nats_url: str) -> AsyncIterator[nats.Ground]:
    """Names of this test's own in a NATS server."""
    made = nats.ground(nats_url)
    yield made
    await made.remove()


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
