"""Ground of its own in a Kafka, for one test: names that nobody else uses."""

import time
from dataclasses import dataclass
from uuid import uuid4

from postroom.lab.servers.kafka import answers

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
