"""No password is printed, logged or written: not when all goes well, and not in any error."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit
from uuid import uuid4

import psycopg
import pytest

from postroom.lab.servers import nats
from postroom.lab.servers.postgresql import free_port
from postroom.message import Message
from postroom.outbox import SyncOutbox
from postroom.stores.postgresql import PostgresqlStore
from tests import rabbitmq
from tests.brokers import streams
from tests.programs.shop import Ended, Shop
from tests.servers import Server, needed, postgresql_servers, rabbitmq_servers, redis_servers

SECRET = "s3cr3t-Pa55"  # noqa: S105 - what must be found nowhere
SOON = "300ms"


@dataclass(frozen=True, slots=True)
class Secretive:
    """A server that knows a user with the secret for a password."""

    url: str
    encrypted: str
    """The scheme of its addresses with TLS."""

    @property
    def wrongs(self) -> dict[str, str]:
        """Return addresses with the secret in them that lead nowhere, each in another way."""
        parts = urlsplit(self.url)
        server = f"{parts.hostname}:{parts.port}"
        return {
            "refused": self.url.replace(SECRET, f"not-{SECRET}"),
            "nobody listens": self.url.replace(server, f"127.0.0.1:{free_port()}"),
            "no TLS there": self.url.replace(f"{parts.scheme}:", f"{self.encrypted}:", 1),
            "unknown option": f"{self.url}?passwort={SECRET}",
            "no such driver": self.url.replace(f"{parts.scheme}:", "unknown:", 1),
            "unreadable": self.url.replace(SECRET, f"{SECRET}/?#["),
        }


@contextmanager
def _rabbitmq(server: Server) -> Iterator[Secretive]:
    user = f"postroom-{uuid4().hex[:8]}"
    with rabbitmq.ground(server.url) as place:
        place.api("PUT", f"/users/{user}", {"password": SECRET, "tags": ""})
        everything = {"configure": ".*", "write": ".*", "read": ".*"}
        place.api("PUT", f"/permissions/{place.vhost}/{user}", everything)
        parts = urlsplit(place.url)
        try:
            yield Secretive(
                f"amqp://{user}:{SECRET}@{parts.hostname}:{parts.port}{parts.path}", "amqps"
            )
        finally:
            place.api("DELETE", f"/users/{user}")


@contextmanager
def _nats(server: Server) -> Iterator[Secretive]:
    del server  # users are in the configuration, so it takes a server of the test's own
    user = f'authorization {{ users: [{{ user: ann, password: "{SECRET}" }}] }}'
    own = nats.any_server(config=user, user=f"ann:{SECRET}")
    try:
        own.start()
        yield Secretive(own.url, "tls")
    finally:
        own.remove()


@contextmanager
def _redis(server: Server) -> Iterator[Secretive]:
    user, database = f"postroom-{uuid4().hex[:8]}", 15
    streams.do(server.url, ("ACL", "SETUSER", user, "on", f">{SECRET}", "+@all", "~*"))
    parts = urlsplit(server.url)
    place = f"{parts.hostname}:{parts.port}/{database}"
    try:
        yield Secretive(f"redis://{user}:{SECRET}@{place}", "rediss")
    finally:
        streams.forget(f"redis://{place}", "postroom")
        streams.do(server.url, ("ACL", "DELUSER", user))


Making = Callable[[Server], AbstractContextManager[Secretive]]
BROKERS: list[tuple[str, list[Any], Making]] = [
    ("rabbitmq", needed(rabbitmq_servers(), "RabbitMQ", "POSTROOM_TEST_RABBITMQ"), _rabbitmq),
    ("nats", needed([Server("own", "nats")] if nats.installed() else [], "NATS"), _nats),
    ("redis", needed(redis_servers(), "Redis", "POSTROOM_TEST_REDIS"), _redis),
]


@pytest.fixture(
    params=[
        pytest.param((make, *server.values), id=name, marks=server.marks)
        for name, servers, make in BROKERS
        for server in servers[:1]
    ]
)
def broker(request: pytest.FixtureRequest) -> Iterator[Secretive]:
    make, server = request.param
    with make(server) as found:
        yield found


@pytest.fixture(params=needed(postgresql_servers()[-1:], "PostgreSQL"))
def store(request: pytest.FixtureRequest) -> Iterator[Secretive]:
    """A database and a role of its own, whose password is the secret."""
    parts = urlsplit(request.param.url)
    name = f"postroom_{uuid4().hex[:8]}"
    with psycopg.connect(request.param.url, autocommit=True) as connection:
        connection.execute(f"create role {name} login password '{SECRET}'".encode())
        connection.execute(f"create database {name} owner {name}".encode())
        try:
            yield Secretive(
                f"postgresql://{name}:{SECRET}@{parts.hostname}:{parts.port}/{name}",
                "postgresql+tls",
            )
        finally:
            connection.execute(f"drop database {name} with (force)".encode())
            connection.execute(f"drop role {name}".encode())


def told(shop: Shop, *ended: Ended) -> str:
    """Return all that was printed, and all that is in the files of the working directory."""
    files = [path.read_text(errors="replace") for path in shop.path.rglob("*") if path.is_file()]
    return "\n".join([*(one.out + one.err for one in ended), *files])


def test_what_goes_well_tells_no_secret(
    empty_shop: Shop, store: Secretive, broker: Secretive
) -> None:
    shop = empty_shop
    environ = {
        "POSTROOM_STORE": store.url,
        "POSTROOM_BROKER": broker.url,
        "POSTROOM_LOG__LEVEL": "debug",
    }
    group = ("--group", "a=shop.order-placed")
    ended = [shop.cli("topology", *group, **environ)]
    ended += [shop.cli("topology", "--apply", *group, **environ), shop.cli("init", **environ)]
    with psycopg.connect(store.url) as connection, connection.transaction():
        SyncOutbox(PostgresqlStore(store.url)).put(connection, *(_order(n) for n in range(3)))
    process = shop.process(
        "relay", "--until-empty", "--timeout", "20s", "--json", stdin=None, **environ
    )
    out, err = process.communicate(timeout=40)
    ended.append(Ended(process.returncode, out, err))
    for command in ("status", "dead list", "held list", "audit"):
        ended += [
            shop.cli(*command.split(), **environ),
            shop.cli(*command.split(), "--json", **environ),
        ]

    assert [one.code for one in ended] == [0] * len(ended), told(shop, *ended)
    assert '"sent": 3' in out
    assert SECRET not in told(shop, *ended)


def test_no_error_of_the_broker_tells_a_secret(
    empty_shop: Shop, store: Secretive, broker: Secretive
) -> None:
    assert empty_shop.cli("init", POSTROOM_STORE=store.url).code == 0
    for address in broker.wrongs.values():
        _fails(empty_shop, store.url, address)


def test_no_error_of_the_store_tells_a_secret(
    empty_shop: Shop, store: Secretive, broker: Secretive
) -> None:
    for wrong, address in store.wrongs.items():
        if wrong != "refused":  # A server that trusts asks for no password.
            _fails(empty_shop, address, broker.url)


def _fails(shop: Shop, store: str, broker: str) -> None:
    """Try what people try first; each way out says something, and not the secret."""
    environ = {"POSTROOM_STORE": store, "POSTROOM_BROKER": broker, "POSTROOM_LOG__LEVEL": "debug"}
    relay = ("relay", "--until-empty", "--timeout", SOON)
    ended = [shop.cli(*args, **environ) for args in (relay, ("status",), ("init",))]
    ended.append(shop.cli("topology", "--apply", "--group", "a=b", **environ))

    assert any(one.code for one in ended), broker
    assert all(one.err or one.out for one in ended)
    assert SECRET not in told(shop, *ended)


def _order(number: int) -> Message:
    return Message(type="shop.order-placed", key=str(number), payload=b"{}")
