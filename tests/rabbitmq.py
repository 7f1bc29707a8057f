"""A virtual host of its own in a RabbitMQ, for one run of the tests."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from uuid import uuid4

from postroom.lab.servers.rabbitmq import ask, make_vhost, remove_vhost

_PATIENCE = 60.0


@dataclass(frozen=True, slots=True)
class Ground:
    """A virtual host; removed, with everything in it, when the run is over."""

    server: str
    """The address of the server, with where its management plugin listens."""
    vhost: str
    url: str

    def api(self, method: str, path: str, body: object = None) -> object:
        """Ask the management plugin; `{vhost}` in the path is this one."""
        return ask(self.server, method, path.replace("{vhost}", self.vhost), body)


@contextmanager
def ground(server: str) -> Iterator[Ground]:
    """Give a virtual host of its own, once the server is up."""
    until_up(server)
    vhost = f"postroom-{uuid4().hex[:12]}"
    url = make_vhost(server, vhost)
    try:
        yield Ground(server, vhost, url)
    finally:
        remove_vhost(server, vhost)


def until_up(server: str) -> None:
    """Return when the management plugin answers: the server may still be starting."""
    until = time.monotonic() + _PATIENCE
    while True:
        try:
            ask(server, "GET", "/overview")
        except OSError:
            if time.monotonic() > until:
                raise
            time.sleep(0.2)
        else:
            return
