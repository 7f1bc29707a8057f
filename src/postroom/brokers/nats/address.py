"""Where a NATS server is, and who we are there."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import unquote

from postroom.brokers.places import servers_of

USERNAME = "POSTROOM_NATS_USERNAME"
PASSWORD = "POSTROOM_NATS_PASSWORD"  # noqa: S105 - the name of a variable
TOKEN = "POSTROOM_NATS_TOKEN"  # noqa: S105 - the same
_PORT = 4222
_SHAPE = (
    "not an address such as nats://host:4222 or tls://user:password@one:4222,two:4222 "
    "(write / in a name or password as %2F, and @ as %40)"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """The parts of a `nats://` or `tls://` address."""

    servers: tuple[str, ...]
    """Each as `host:port`; any one of them will do."""
    username: str | None
    password: str | None = field(repr=False)
    token: str | None = field(repr=False)
    secure: bool

    @property
    def place(self) -> str:
        """What may be printed."""
        return ",".join(self.servers)


def parse(url: str, environ: Mapping[str, str] = os.environ) -> Address:
    """Take an address apart; who we are comes from the environment if it does not say.

    A name without a password is a token. Raises ValueError, which never repeats what could be
    a password.
    """
    scheme, found, rest = url.partition("://")
    userinfo, at, places = rest.rpartition("@")
    places = places.removesuffix("/")
    if scheme not in {"nats", "tls"} or not found or not places:
        raise ValueError(_SHAPE)
    if any(sign in places for sign in "/?#"):
        raise ValueError(_SHAPE)
    name, colon, password = userinfo.partition(":")
    username, secret, token = environ.get(USERNAME), environ.get(PASSWORD), environ.get(TOKEN)
    if at and colon:
        username, secret, token = unquote(name), unquote(password), None
    elif at:
        username, secret, token = None, None, unquote(name)
    if username is not None and token is not None:
        raise ValueError(f"{USERNAME} and {TOKEN} exclude each other: set one of them")
    try:
        servers = servers_of(places, port=_PORT)
    except ValueError:
        raise ValueError(_SHAPE) from None
    return Address(
        servers=servers,
        username=username,
        password=None if username is None else secret or "",
        token=token,
        secure=scheme == "tls",
    )
