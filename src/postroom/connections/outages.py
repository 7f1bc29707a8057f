"""Tell an outage of the caller's database from a fault of what ran on it, by codes alone."""

import sqlite3
from typing import Any

from postroom.errors import StoreUnavailable

_SQLITE = {
    sqlite3.SQLITE_PERM: "access to the database file is denied",
    sqlite3.SQLITE_BUSY: "the database is locked by another connection",
    sqlite3.SQLITE_LOCKED: "a table is locked by another statement",
    sqlite3.SQLITE_READONLY: "the database is read-only",
    sqlite3.SQLITE_IOERR: "the disk failed",
    sqlite3.SQLITE_CORRUPT: "the database file is damaged",
    sqlite3.SQLITE_FULL: "the disk is full",
    sqlite3.SQLITE_CANTOPEN: "the database file cannot be opened",
    sqlite3.SQLITE_PROTOCOL: "the database file could not be locked",
    sqlite3.SQLITE_NOTADB: "the file is not a database",
}


def outage(error: BaseException) -> str | None:
    """Say why this error means that the database is down, locked or read-only.

    None where the database did its work and the error is the fault of what was asked of it.
    Follows the causes that an error was raised `from`.
    """
    seen: set[int] = set()
    cause: BaseException | None = error
    while cause is not None and id(cause) not in seen:
        seen.add(id(cause))
        if reason := _reason(cause):
            return reason
        cause = cause.__cause__
    return None


def explain(error: Exception) -> None:
    """Add a note to the error of a database that has no tables of Postroom, or older ones."""
    original = getattr(error, "orig", None) or error
    if getattr(original, "sqlite_errorcode", None) == sqlite3.SQLITE_ERROR:
        error.add_note(
            "The tables of Postroom may be missing in this database, or be of another version: "
            "run `postroom init`, or `await store.migrate()`."
        )


def _reason(error: BaseException) -> str | None:
    if isinstance(error, StoreUnavailable):
        return error.reason
    if isinstance(error, sqlite3.Error):
        code = getattr(error, "sqlite_errorcode", None)
        return None if code is None else _SQLITE.get(code & 0xFF)
    if any(base.__module__ == "sqlalchemy.exc" for base in type(error).__mro__):
        return _sqlalchemy(error)
    return None


def _sqlalchemy(error: Any) -> str | None:
    if getattr(error, "connection_invalidated", False):
        return "the connection to the database was lost"
    original = getattr(error, "orig", None)
    if isinstance(original, BaseException):
        return _reason(original)
    if type(error).__name__ == "TimeoutError":
        return "no connection of the pool became free in time"
    return None
