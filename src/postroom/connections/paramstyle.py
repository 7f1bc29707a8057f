"""Translate `:names` into the parameter style of a client library."""

import re
from collections.abc import Callable, Sequence
from functools import lru_cache
from operator import itemgetter
from typing import Any

from postroom.statement import Row, Statement

# What must stay as it is comes first: string literals, quoted names, comments, casts.
_TOKENS = re.compile(
    r"""
    (?P<kept>
        '(?:[^']|'')*' | "(?:[^"]|"")*" | `[^`]*`
      | --[^\n]* | /\*.*?\*/
      | ::
    )
  | (?<!\w):(?P<name>[A-Za-z_]\w*)
  | (?P<percent>%)
    """,
    re.VERBOSE | re.DOTALL,
)

STYLES = ("named", "pyformat", "numeric", "numeric_dollar", "qmark", "format")


def bind(statement: Statement, style: str) -> tuple[str, Sequence[Any]]:
    """Return the statement's SQL and rows in the style (PEP 249, or `numeric_dollar`)."""
    if style == "named":
        return statement.sql, [_as_dict(row) for row in statement.rows]
    sql, names = translate(statement.sql, style)
    if style == "pyformat":
        return sql, [_as_dict(row) for row in statement.rows]
    values = _taking(names)
    return sql, [values(row) for row in statement.rows]


@lru_cache(maxsize=256)
def translate(sql: str, style: str) -> tuple[str, tuple[str, ...]]:
    """Return the SQL in the style, and the names in the order in which values must be given."""
    names: list[str] = []

    def replace(match: re.Match[str]) -> str:
        name = match["name"]
        if name is None:
            text = match[0]
            return text.replace("%", "%%") if style in ("format", "pyformat") else text
        return _place(names, name, style)

    return _TOKENS.sub(replace, sql), tuple(names)


@lru_cache(maxsize=256)
def _taking(names: tuple[str, ...]) -> Callable[[Row], tuple[Any, ...]]:
    """Return what takes these values out of a row, in their order."""
    if len(names) > 1:
        return itemgetter(*names)
    return lambda row: tuple(row[name] for name in names)


def _place(names: list[str], name: str, style: str) -> str:
    if style == "named":
        return f":{name}"
    if style == "pyformat":
        return f"%({name})s"
    if style in ("numeric", "numeric_dollar"):
        if name not in names:
            names.append(name)
        return f"{'$' if style == 'numeric_dollar' else ':'}{names.index(name) + 1}"
    names.append(name)
    if style == "qmark":
        return "?"
    if style == "format":
        return "%s"
    raise ValueError(f"unknown parameter style {style!r}")


def _as_dict(row: Row) -> dict[str, Any]:
    return row if isinstance(row, dict) else dict(row)
