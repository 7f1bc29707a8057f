"""Find the real servers that tests need, or start them.

    python tests/servers.py pytest tests/stores      # start what is missing, run, end it again

For each server an environment variable comes first, then the default port, then what is
installed is started on a free port. Under plain pytest nothing is started: a test whose server is
missing is skipped with a loud word, and fails where CI is true.
"""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from postroom._redact import redacted
from postroom.lab.servers import kafka, nats, rabbitmq, redis
from postroom.lab.servers.postgresql import PostgresqlServer, installed

_VARIABLE = "POSTROOM_TEST_POSTGRESQL"
_DEFAULT = "postgresql://postgres@127.0.0.1:5432/postgres"
_RABBITMQ = "POSTROOM_TEST_RABBITMQ"
_RABBITMQ_DEFAULT = "amqp://guest:guest@127.0.0.1:5672/?management=15672"
_KAFKA = "POSTROOM_TEST_KAFKA"
_KAFKA_DEFAULT = "kafka://127.0.0.1:9092"
_NATS = "POSTROOM_TEST_NATS"
_NATS_DEFAULT = "nats://127.0.0.1:4222"
_REDIS = "POSTROOM_TEST_REDIS"
_REDIS_DEFAULT = "redis://127.0.0.1:6379/0"


@dataclass(frozen=True, slots=True)
class Server:
    """A server that answers."""

    name: str
    url: str


def postgresql_servers() -> list[Server]:
    """Return the PostgreSQL servers that answer now, by version."""
    urls = os.environ.get(_VARIABLE, _DEFAULT).split()
    found = {}
    for url in urls:
        if (version := asyncio.run(_version(url))) is not None:
            found[f"postgresql-{version}"] = url
    return [Server(name, found[name]) for name in sorted(found)]


def rabbitmq_servers() -> list[Server]:
    """Return the RabbitMQ server of the tests, which may still be starting; empty without one.

    Its management plugin is needed, for virtual hosts of the tests' own.
    """
    given = os.environ.get(_RABBITMQ)
    if given:
        return [Server("rabbitmq", given)]
    return [Server("rabbitmq", _RABBITMQ_DEFAULT)] if _answers(_RABBITMQ_DEFAULT) else []


def kafka_servers() -> list[Server]:
    """Return the Kafka of the tests, which may still be starting; empty without one."""
    given = os.environ.get(_KAFKA)
    if given:
        return [Server("kafka", given)]
    return [Server("kafka", _KAFKA_DEFAULT)] if kafka.answers("127.0.0.1", 9092) else []


def nats_servers() -> list[Server]:
    """Return the NATS server of the tests; empty without one."""
    given = os.environ.get(_NATS)
    if given:
        return [Server("nats", given)]
    return [Server("nats", _NATS_DEFAULT)] if nats.answers("127.0.0.1", 4222) else []


def redis_servers() -> list[Server]:
    """Return the Redis and Valkey servers that answer now, by version."""
    found = {}
    for url in os.environ.get(_REDIS, _REDIS_DEFAULT).split():
        if (name := redis.version(url)) is not None:
            found[name] = url
    return [Server(name, found[name]) for name in sorted(found)]


def needed(
    servers: list[Server], what: str, variable: str = _VARIABLE, *, cure: str = ""
) -> list[object]:
    """Return the servers as parameters of a fixture; a skip that says what to do if none."""
    if servers:
        return [pytest.param(server, id=server.name) for server in servers]
    cure = cure or f"run `make test`, or set {variable} to an address"
    why = f"no {what} server answers: {cure}"
    if os.environ.get("CI") == "true":
        raise pytest.UsageError(why)
    sys.stderr.write(f"\nSKIPPED, LOUDLY: {why}\n")
    return [pytest.param(None, id=f"no-{what}", marks=pytest.mark.skip(reason=why))]


async def _version(url: str) -> str | None:
    import asyncpg  # noqa: PLC0415 - a driver that only these tests need

    try:
        connection = await asyncpg.connect(url, timeout=5)
    except (OSError, asyncpg.PostgresError, TimeoutError):
        return None
    try:
        number = int(await connection.fetchval("show server_version_num"))
    finally:
        await connection.close()
    return str(number // 10_000)


def _answers(url: str) -> bool:
    try:
        rabbitmq.ask(url, "GET", "/overview")
    except OSError:
        return False
    return True


@contextmanager
def _any(found: list[Server], kind: Any, begin: Callable[[Any], None]) -> Iterator[str]:
    """Give the address of the one that is there, or of one that is begun and removed again."""
    if found or kind.installed() is None:
        yield found[0].url if found else ""
        return
    server = kind.any_server()
    try:
        begin(server)
        yield server.url
    finally:
        server.remove()


@contextmanager
def _redis() -> Iterator[str]:
    """Give the addresses of a Redis and of a Valkey, started if need be."""
    given = os.environ.get(_REDIS)
    if given:
        yield given
        return
    with ExitStack() as stack:
        urls = {server.name.partition("-")[0]: server.url for server in redis_servers()}
        for name, program in redis.installed().items():
            if name not in urls:
                server = redis.RedisServer(program)
                stack.callback(server.remove)
                server.start()
                urls[name] = server.url
        yield " ".join(urls[name] for name in sorted(urls))


@contextmanager
def _postgresql() -> Iterator[str]:
    """Give the addresses of PostgreSQL servers of every version there is, started if need be."""
    given = os.environ.get(_VARIABLE)
    if given:
        yield given
        return
    with ExitStack() as stack:
        urls = {}
        if (version := asyncio.run(_version(_DEFAULT))) is not None:
            urls[version] = _DEFAULT
        for folder in installed():
            major = _major(folder)
            if major in urls:
                continue
            server = PostgresqlServer(folder)
            stack.callback(server.remove)
            server.start()
            urls[major] = server.url
        yield " ".join(urls[version] for version in sorted(urls))


def _major(folder: Path) -> str:
    said = subprocess.run(
        [folder / "postgres", "--version"], capture_output=True, text=True, check=True
    )
    return said.stdout.split()[2].partition(".")[0]


def main() -> int:
    """Run the command with the servers up; return its exit code."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    # Those that take seconds to come up are begun first, and nobody waits for them here.
    with (
        _any(kafka_servers(), kafka, kafka.KafkaServer.begin) as log,
        _any(rabbitmq_servers(), rabbitmq, rabbitmq.RabbitmqServer.begin) as rabbit,
        _any(nats_servers(), nats, nats.NatsServer.start) as jetstream,
        _redis() as streams,
        _postgresql() as urls,
    ):
        sys.stderr.write(f"PostgreSQL: {urls or 'none'}\nRabbitMQ: {redacted(rabbit) or 'none'}\n")
        sys.stderr.write(f"Kafka: {redacted(log) or 'none'}\n")
        sys.stderr.write(f"NATS: {redacted(jetstream) or 'none'}\n")
        every = (
            (_VARIABLE, urls),
            (_RABBITMQ, rabbit),
            (_KAFKA, log),
            (_NATS, jetstream),
            (_REDIS, streams),
        )
        sys.stderr.write(f"Redis, Valkey: {redacted(streams) or 'none'}\n")
        found = {name: url for name, url in every if url}
        environment = {**os.environ, **found}
        return subprocess.run(sys.argv[1:], env=environment, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
