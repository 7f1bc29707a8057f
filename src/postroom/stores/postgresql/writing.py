"""The statements that run in the caller's transaction."""

from collections.abc import Mapping, Sequence

from postroom.statement import Statement
from postroom.store import Addressed
from postroom.stores.rows import inbox_row, new_row

_ARRAYS = {
    "ids": "id",
    "routes": "route",
    "lanes": "lane",
    "versions": "version",
    "deliver_ats": "deliver_at",
    "expires_ats": "expires_at",
    "keys": "key",
    "types": "type",
    "topics": "topic",
    "content_types": "content_type",
    "headers": "headers",
    "payloads": "payload",
}
"""Each parameter of the statement for many rows, and the column that it fills."""


def insert(sql: Mapping[str, str], messages: Sequence[Addressed], now: int | None) -> Statement:
    """Return one statement for all rows; the database decides which of them are scheduled."""
    rows = [new_row(message, 0) for message in messages]
    if len(rows) == 1 and now is None and rows[0]["deliver_at"] is None:
        return Statement(sql["insert-one"], rows, "insert")
    if not rows:
        return Statement(sql["insert-many"], [], "insert")
    many = {name: [row[column] for row in rows] for name, column in _ARRAYS.items()}
    return Statement(sql["insert-many"], [{**many, "now": now}], "insert")


def mark(sql: Mapping[str, str], consumer: str, message_id: str, now: int | None) -> Statement:
    """Return the statement for the inbox."""
    row = inbox_row(consumer, message_id, 0)
    shown = str(row["message_id"]).replace("\0", "\N{REPLACEMENT CHARACTER}")
    return Statement(sql["mark"], [{**row, "message_id": shown, "now": now}], "mark")
