"""Ground of its own in a Kafka, for one test: names that nobody else uses."""

import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

from postroom.lab.servers.kafka import KafkaServer, answers, any_server
from postroom.lab.servers.proxy import Proxy

_PATIENCE = 60.0


@dataclass(frozen=True, slots=True)
class Ground:
    """A server, and a prefix for what a test makes there."""

    url: str
    prefix: str

    @property
    def servers(self) -> str:
        """Where it is, as the client library takes it."""
        return self.url.partition("://")[2].partition("?")[0]


def ground(url: str) -> Ground:
    """Return names of its own."""
    return Ground(url, f"t-{uuid4().hex[:10]}-")


def wait(url: str) -> None:
    """Return when the server answers."""
    host, _, port = url.partition("://")[2].partition("?")[0].partition(",")[0].rpartition(":")
    until = time.monotonic() + _PATIENCE
    while not answers(host, int(port)):
        if time.monotonic() > until:
            raise TimeoutError(f"no Kafka answers at {host}:{port}")
        time.sleep(0.2)


@dataclass(frozen=True, slots=True)
class OwnKafka:
    """A server that a test may kill and freeze, with a wire to it that can be cut."""

    server: KafkaServer
    proxy: Proxy
    certificates: Path | None
    """Where ca.pem is, which its port with TLS is signed by; None without openssl."""

    @property
    def servers(self) -> str:
        """Where it is, as the client library takes it."""
        return f"127.0.0.1:{self.server.port}"

    @property
    def url(self) -> str:
        """Its address."""
        return self.server.url

    @property
    def proxied(self) -> str:
        """Its address behind the proxy."""
        return f"kafka://127.0.0.1:{self.proxy.port}"


@contextmanager
def own(folder: Path) -> Iterator[OwnKafka]:
    """Start one; the folder takes its certificates."""
    certificates = folder if shutil.which("openssl") else None
    if certificates is not None:
        _certify(certificates)
    server = any_server(certificates=certificates)
    with Proxy("127.0.0.1", server.proxied_port) as proxy:
        server.advertise(proxy.port)
        try:
            server.start()
            yield OwnKafka(server, proxy, certificates)
        finally:
            server.remove()


def _certify(folder: Path) -> None:
    """Make an authority and a server's certificate for 127.0.0.1."""
    made = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"]
    ca = [*made, "-keyout", "ca.key", "-out", "ca.pem", "-subj", "/CN=test authority"]
    server = [
        *(*made, "-keyout", "server.key", "-out", "server.pem", "-subj", "/CN=127.0.0.1"),
        *("-CA", "ca.pem", "-CAkey", "ca.key", "-addext", "subjectAltName=IP:127.0.0.1"),
        *("-addext", "basicConstraints=CA:FALSE"),
    ]
    for command in (ca, server):
        subprocess.run(command, cwd=folder, check=True, capture_output=True)
