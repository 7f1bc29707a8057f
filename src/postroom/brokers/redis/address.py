"""Where a Redis is, who we are there, and how the wire is protected."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import unquote, urlsplit

USERNAME = "POSTROOM_REDIS_USERNAME"
PASSWORD = "POSTROOM_REDIS_PASSWORD"  # noqa: S105 - the name of a variable
_PORT = 6379
_SHAPE = (
    "not an address such as redis://user:password@host:6379/0 "
    "(write / in a name or password as %2F, and @ as %40; 0 is the number of a database)"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """The parts of a `redis://` address."""

    host: str
    port: int
    database: int
    username: str | None
    password: str | None = field(repr=False)
    secure: bool

    @property
    def place(self) -> str:
        """What may be printed."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}/{self.database}"


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
    database = parts.path[1:] or "0"
    if parts.scheme not in {"redis", "rediss"} or not parts.hostname:
        raise ValueError(_SHAPE)
    if not database.isascii() or not database.isdigit():
        raise ValueError(_SHAPE)
    if parts.query or parts.fragment:
        raise ValueError("options are given by name here, not in the address")
    named = parts.username is not None
    return Address(
        host=parts.hostname,
        port=port or _PORT,
        database=int(database),
        username=unquote(parts.username or "") or None if named else environ.get(USERNAME),
        password=unquote(parts.password or "") or None if named else environ.get(PASSWORD),
        secure=parts.scheme == "rediss",
    )
