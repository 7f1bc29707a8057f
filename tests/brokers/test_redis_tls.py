"""A Redis behind TLS: who is believed, and on which side."""

import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from postroom.brokers.redis import RedisBroker
from postroom.errors import BrokerUnavailable
from postroom.lab.servers import redis
from tests.brokers.streams import message, outcome

Client = Callable[..., RedisBroker]


@pytest.fixture
def secured(tmp_path: Path) -> Iterator[redis.RedisServer]:
    """A server with TLS on a second port; its certificate is its own authority."""
    program = redis.installed().get("redis")
    if program is None:  # Valkey from the wheel is built without TLS
        pytest.skip("no Redis server is installed: `make servers` does it on Debian")
    command = (
        "openssl req -x509 -newkey rsa:2048 -nodes -days 2 -keyout server.key -out server.pem "
        "-subj /CN=tests -addext subjectAltName=IP:127.0.0.1"
    )
    subprocess.run(command.split(), cwd=tmp_path, check=True, capture_output=True)
    (tmp_path / "ca.pem").write_bytes((tmp_path / "server.pem").read_bytes())
    server = redis.RedisServer(program, certificates=tmp_path)
    try:
        server.start()
        yield server
    finally:
        server.remove()


async def test_a_server_is_believed_by_its_authority_or_where_nobody_looks(
    secured: redis.RedisServer, client: Client, tmp_path: Path
) -> None:
    url = f"rediss://127.0.0.1:{secured.tls_port}"
    careful = client(url, missing_stream="create")
    careless = client(url, missing_stream="create", verify=False)
    knowing = client(url, missing_stream="create", cacertfile=str(tmp_path / "ca.pem"))
    for broker in (careful, careless, knowing):
        await broker.open()

    [result] = await outcome(careful, message("a"))

    assert isinstance(result, BrokerUnavailable)
    assert "CERTIFICATE_VERIFY_FAILED" in result.reason
    assert await outcome(careless, message("b")) == [None]
    assert await outcome(knowing, message("c")) == [None]


async def test_a_name_that_is_not_in_the_certificate_is_refused(
    secured: redis.RedisServer, client: Client, tmp_path: Path
) -> None:
    broker = client(f"rediss://localhost:{secured.tls_port}", cacertfile=str(tmp_path / "ca.pem"))
    await broker.open()

    [result] = await outcome(broker, message("a"))

    assert isinstance(result, BrokerUnavailable)
    assert "CERTIFICATE_VERIFY_FAILED" in result.reason
