"""Where a RabbitMQ is, who we are there, and how the wire is protected."""

import os
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import unquote, urlsplit

USERNAME = "POSTROOM_RABBITMQ_USERNAME"
PASSWORD = "POSTROOM_RABBITMQ_PASSWORD"  # noqa: S105 - the name of a variable
_PORTS = {"amqp": 5672, "amqps": 5671}
_SHAPE = (
    "not an address such as amqp://user:password@host:5672/vhost "
    "(write / in a name or password as %2F, and @ as %40)"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tls:
    """How the server is checked, and how we show who we are."""

    cacertfile: str | None = None
    """Certificates to trust instead of the system's."""
    certfile: str | None = None
    keyfile: str | None = None
    verify: bool = True
    """Whether the server's certificate must be valid for its name."""

    def context(self) -> ssl.SSLContext:
        """Return it as Python's `ssl` takes it; raises ValueError for files that cannot be used."""
        for path in (self.cacertfile, self.certfile, self.keyfile):
            if path is not None and not Path(path).is_file():
                raise ValueError(f"{path}: no such file")
        try:
            context = ssl.create_default_context(cafile=self.cacertfile)
            if self.certfile is not None:
                context.load_cert_chain(self.certfile, self.keyfile)
        except (ssl.SSLError, OSError) as error:
            raise ValueError(f"certificate or key cannot be used: {error}") from error
        if not self.verify:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        return context


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
