"""Where a RabbitMQ is, and who we are there."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import unquote, urlsplit

USERNAME = "POSTROOM_RABBITMQ_USERNAME"
PASSWORD = "POSTROOM_RABBITMQ_PASSWORD"  # noqa: S105 - the name of a variable
_PORTS = {"amqp": 5672, "amqps": 5671}
_SHAPE = (
    "not an address such as amqp://user:password@host:5672/vhost "
    "(write / in a name or password as %2F, and @ as %40)"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """The parts of an `amqp://` address."""

    host: str
    port: int
    vhost: str
    username: str
    password: str = field(repr=False)
    secure: bool

    @property
    def place(self) -> str:
        """What may be printed."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"


def parse(url: str, environ: Mapping[str, str] = os.environ) -> Address:
    """Take an address apart; name and password come from the environment if it has none.

    Raises ValueError, which never repeats what could be a password.
    """
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        # Python's own words may hold a piece of the password.
        raise ValueError(_SHAPE) from None
    if parts.scheme not in _PORTS or not parts.hostname or "/" in parts.path[1:]:
        raise ValueError(_SHAPE)
    if parts.query or parts.fragment:
        raise ValueError("options are given by name here, not in the address")
    named = parts.username is not None
    return Address(
        host=parts.hostname,
        port=port or _PORTS[parts.scheme],
        vhost=unquote(parts.path[1:]) or "/",
        username=unquote(parts.username or "") if named else environ.get(USERNAME, "guest"),
        password=unquote(parts.password or "") if named else environ.get(PASSWORD, "guest"),
        secure=parts.scheme == "amqps",
    )
