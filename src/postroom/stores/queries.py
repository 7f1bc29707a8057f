"""Named queries and numbered migrations, kept as `.sql` files beside each store."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files

_DEFAULT = "postroom_"
_PREFIX = re.compile(r"[a-z_][a-z0-9_]*")
_NAME = re.compile(r"^-- name: (\S+)$", re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Migration:
    """One numbered step of the schema."""

    version: int
    name: str
    sql: str


def check_prefix(prefix: str) -> str:
    """Return the table prefix, or raise ValueError if it could not stand in SQL as it is."""
    if not _PREFIX.fullmatch(prefix):
        raise ValueError(f"table prefix {prefix!r} must match {_PREFIX.pattern}")
    return prefix


def load_queries(package: str, prefix: str) -> Mapping[str, str]:
    """Return the queries of a package's `queries.sql` by name, for tables of this prefix."""
    text = files(package).joinpath("queries.sql").read_text("utf-8")
    _, *parts = _NAME.split(text.replace(_DEFAULT, check_prefix(prefix)))
    return {
        name: body.strip().removesuffix(";")
        for name, body in zip(parts[::2], parts[1::2], strict=True)
    }


def load_migrations(package: str, prefix: str) -> tuple[Migration, ...]:
    """Return the migrations of a package in order, for tables of this prefix."""
    found = sorted(
        (entry.name, entry.read_text("utf-8"))
        for entry in files(package).joinpath("migrations").iterdir()
        if entry.name.endswith(".sql")
    )
    return tuple(
        Migration(
            version=int(name.partition("_")[0]),
            name=name.removesuffix(".sql"),
            sql=text.replace(_DEFAULT, check_prefix(prefix)),
        )
        for name, text in found
    )
