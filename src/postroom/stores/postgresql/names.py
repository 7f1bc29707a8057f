"""Where the tables are: schema and prefix, quoted so that any legal name will do."""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from postroom.stores.queries import Migration, load_migrations, load_queries

_PACKAGE = "postroom.stores.postgresql"
_OBJECTS = (
    *("schema", "place", "outbox", "lane", "relay", "asleep", "wake", "inbox", "audit"),
    *("lane_number", "state", "delayed_state", "id", "route", "key"),
)
_LONGEST_NAME = "outbox_expires_at_check"
_LIMIT = 63
"""Bytes of a name; PostgreSQL cuts longer ones without a word."""
_SHARED = (
    *("now", "columns", "fence", "nudge", "due", "still-ready", "followed", "blocking"),
    "hash-of-blocker",
    "woken",
)
"""Queries that are parts of others."""
_FRAGMENT = re.compile(rf"\{{({'|'.join(_SHARED)})\}}")


@dataclass(frozen=True, slots=True)
class Names:
    """The schema (None: whatever the search path says) and the prefix of the tables."""

    schema: str | None
    prefix: str

    def __post_init__(self) -> None:
        """Refuse what PostgreSQL could not take, or would cut."""
        if len((self.prefix + _LONGEST_NAME).encode()) > _LIMIT:
            raise ValueError(
                f"table prefix {self.prefix!r} is too long for names of {_LIMIT} bytes"
            )
        if self.schema is None:
            return
        if not self.schema or "\0" in self.schema or len(self.schema.encode()) > _LIMIT:
            raise ValueError(f"schema {self.schema!r} must have 1 to {_LIMIT} bytes and no NUL")

    def quoted(self, name: str) -> str:
        """Return the table as it stands in SQL."""
        table = self.prefix + name
        return table if self.schema is None else f"{identifier(self.schema)}.{table}"

    def queries(self) -> Mapping[str, str]:
        """Return all queries by name, ready to run."""
        plain = load_queries(_PACKAGE, self.prefix)
        return {name: self._qualified(_complete(sql, plain)) for name, sql in plain.items()}

    def migrations(self) -> tuple[Migration, ...]:
        """Return all migrations in order."""
        return tuple(
            Migration(version=one.version, name=one.name, sql=self._qualified(one.sql))
            for one in load_migrations(_PACKAGE, self.prefix)
        )

    def _qualified(self, sql: str) -> str:
        if self.schema is None:
            return sql
        objects = "|".join(_OBJECTS)
        table = re.compile(rf"(?P<quote>')?(?<![\w.])(?P<table>{self.prefix}(?:{objects}))(?!\w)")
        schema = identifier(self.schema)

        def qualify(match: re.Match[str]) -> str:
            if match["quote"]:
                return "'" + schema.replace("'", "''") + "." + match["table"]
            return f"{schema}.{match['table']}"

        return table.sub(qualify, sql)


def identifier(name: str) -> str:
    """Return the name quoted."""
    return '"' + name.replace('"', '""') + '"'


def _complete(sql: str, queries: Mapping[str, str]) -> str:
    """Fill in the parts that several queries share."""
    while _FRAGMENT.search(sql):
        sql = _FRAGMENT.sub(lambda match: queries[match[1]], sql)
    return sql
