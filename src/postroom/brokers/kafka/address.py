"""Where a Kafka is, who we are there, and how the wire is protected."""

import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote

from postroom.brokers.places import servers_of
from postroom.brokers.tls import Tls

USERNAME = "POSTROOM_KAFKA_USERNAME"
PASSWORD = "POSTROOM_KAFKA_PASSWORD"  # noqa: S105 - the name of a variable
MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
_PORT = 9092
_SHAPE = (
    "not an address such as kafka://host:9092 or kafka://user:password@one:9092,two:9092 "
    "(write / in a name or password as %2F, and @ as %40)"
)

_logger = logging.getLogger("postroom.kafka.client")
"""Takes what librdkafka says by itself; quiet unless the program sets up logging."""
_logger.addHandler(logging.NullHandler())


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """The parts of a `kafka://` address."""

    servers: tuple[str, ...]
    username: str | None
    password: str | None = field(repr=False)

    @property
    def place(self) -> str:
        """What may be printed."""
        return ",".join(self.servers)


def parse(url: str, environ: Mapping[str, str] = os.environ) -> Address:
    """Take an address apart; name and password come from the environment if it has none.

    Raises ValueError, which never repeats what could be a password.
    """
    scheme, found, rest = url.partition("://")
    userinfo, at, places = rest.rpartition("@")
    places = places.removesuffix("/")
    if scheme != "kafka" or not found or not places or any(sign in places for sign in "/?#"):
        raise ValueError(_SHAPE)
    name, _, password = userinfo.partition(":")
    try:
        servers = servers_of(places, port=_PORT)
    except ValueError:
        raise ValueError(_SHAPE) from None
    return Address(
        servers=servers,
        username=unquote(name) if at else environ.get(USERNAME),
        password=unquote(password) if at else environ.get(PASSWORD),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Security(Tls):
    """How the wire is protected, and how we show who we are."""

    tls: bool = False
    sasl: str | None = None
    """The mechanism in which name and password are shown."""

    def check(self, address: Address) -> None:
        """Raise ValueError for what could not work."""
        files = (self.cacertfile, self.certfile, self.keyfile)
        if not self.tls and (any(files) or not self.verify):
            raise ValueError("certificates need the option tls=true")
        self.check_files()
        if (self.certfile is None) != (self.keyfile is None):
            raise ValueError("certfile and keyfile go together")
        if self.sasl is not None and self.sasl not in MECHANISMS:
            raise ValueError(f"sasl must be one of {', '.join(MECHANISMS)}, not {self.sasl!r}")
        if self.sasl is not None and not (address.username and address.password):
            raise ValueError(
                f"sasl needs a name and a password, in the address or in {USERNAME} and {PASSWORD}"
            )


def client_config(address: Address, security: Security) -> dict[str, Any]:
    """Return what every client of librdkafka is made with."""
    sasl = security.sasl or ("PLAIN" if address.username else None)
    protocol = f"{'SASL_' if sasl else ''}{'SSL' if security.tls else 'PLAINTEXT'}"
    config: dict[str, Any] = {
        "bootstrap.servers": address.place,
        "client.id": "postroom",
        "security.protocol": protocol.lower(),
        "logger": _logger,
        "log_level": 4,
        "allow.auto.create.topics": False,
        # A broker that comes back is seen within a second.
        "reconnect.backoff.ms": 50,
        "reconnect.backoff.max.ms": 1000,
        "socket.timeout.ms": 10_000,
        "socket.connection.setup.timeout.ms": 5_000,
        "socket.nagle.disable": True,
        "socket.keepalive.enable": True,
    }
    if sasl:
        config |= {
            "sasl.mechanism": sasl,
            "sasl.username": address.username or "",
            "sasl.password": address.password or "",
        }
    if security.tls:
        config["enable.ssl.certificate.verification"] = security.verify
        if not security.verify:
            config["ssl.endpoint.identification.algorithm"] = "none"
        files = {
            "ssl.ca.location": security.cacertfile,
            "ssl.certificate.location": security.certfile,
            "ssl.key.location": security.keyfile,
        }
        config |= {name: path for name, path in files.items() if path is not None}
    return config
