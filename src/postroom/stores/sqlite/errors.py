"""What an error of SQLite means for the caller, told by its code and never by its text."""

import sqlite3
from datetime import timedelta
from pathlib import Path

from postroom.errors import StoreError, StoreUnavailable

_CURES = {
    sqlite3.SQLITE_READONLY: "it is read-only: check the permissions of the file and its directory",
    sqlite3.SQLITE_IOERR: "reading or writing failed: check the disk",
    sqlite3.SQLITE_CANTOPEN: "it cannot be opened: check the path and the permissions",
    sqlite3.SQLITE_FULL: "the disk is full: free some space",
    sqlite3.SQLITE_PERM: "access is not permitted: check the permissions",
    sqlite3.SQLITE_PROTOCOL: "the lock protocol failed: is it on a network file system?",
    sqlite3.SQLITE_NOMEM: "there is no memory left",
}
_RECONNECT = frozenset(_CURES) - {sqlite3.SQLITE_FULL} | {
    sqlite3.SQLITE_NOTADB,
    sqlite3.SQLITE_CORRUPT,
}


def code_of(error: sqlite3.Error) -> int | None:
    """Return the primary result code, or None where Python itself raised the error."""
    code = getattr(error, "sqlite_errorcode", None)
    return None if code is None else code & 0xFF


def needs_reconnect(error: sqlite3.Error) -> bool:
    """Whether this connection can stay broken after the cause has gone."""
    return code_of(error) in _RECONNECT


def translate(error: sqlite3.Error, path: Path, busy: timedelta) -> StoreError:
    """Return the store's error that says what to do; the caller raises it from the cause."""
    code = code_of(error)
    if code in {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}:
        return StoreUnavailable(
            f"another process has held the write lock for {busy.total_seconds():g} s: {path}; "
            "look for a transaction that stays open"
        )
    if code in _CURES:
        return StoreUnavailable(f"{path}: {_CURES[code]} ({error})")
    if code == sqlite3.SQLITE_NOTADB:
        return StoreError(f"{path} is not an SQLite database; is the path right?")
    if code == sqlite3.SQLITE_CORRUPT:
        return StoreError(f"{path} is damaged: restore it from a backup ({error})")
    return StoreError(f"{path}: {error}")
