"""Tell an outage of the caller's database from a fault of what ran on it, by codes alone."""

import sqlite3
from collections.abc import Iterator
from typing import Any

from postroom.connections.paramstyle import STYLES, translate
from postroom.connections.sqlstates import away, conflicting, failed, missing, sqlstate
from postroom.errors import NoTransaction, StoreUnavailable
from postroom.statement import Statement

FAILED = (
    "an earlier statement of the transaction failed, and the database ignores whatever follows; "
    "roll it back, or back to a savepoint, and put the message then"
)

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
_LOST = "the connection to the database was lost"
_NOT_REACHED = "the database could not be reached"
_CLOSED = "the pool of connections is closed"
_NO_CONNECTION = "no connection of the pool became free in time"
_RECONNECT = "8s2b"
"""SQLAlchemy's code of an error that an invalidated connection raises until it is rolled back."""


def outage(error: BaseException) -> str | None:
    """Say why this error means that the database is down, locked or read-only.

    So does a transaction that was rolled back because of another one (`conflict`): it is nobody's
    fault. None where the database did its work and the error is the fault of what was asked of
    it. Follows the causes that an error was raised `from`.
    """
    for cause in _causes(error):
        if reason := _reason(cause):
            return reason
    return None


def conflict(error: BaseException) -> bool:
    """Say whether the transaction failed because of another one, as in a deadlock.

    The whole transaction, run again, may pass. Follows the causes that an error was raised `from`.
    """
    return any(conflicting(sqlstate(_original(cause))) for cause in _causes(error))


def explain(error: Exception, statement: Statement) -> None:
    """Add what to do to the error of a statement of ours.

    SQLAlchemy may have flushed the caller's own objects before it: their errors stay as they are.
    Raises NoTransaction where the statement was ignored because the transaction had failed.
    """
    original = _original(error)
    code = sqlstate(original)
    if failed(code):
        raise NoTransaction(FAILED) from error
    at_fault = getattr(original, "sqlite_errorcode", None) == sqlite3.SQLITE_ERROR or missing(code)
    if at_fault and _is_ours(getattr(error, "statement", None), statement):
        error.add_note(
            "The tables of Postroom may be missing in this database, or be of another version: "
            "run `postroom init`, or `await store.migrate()`."
        )


def _is_ours(failed_sql: object, statement: Statement) -> bool:
    """Whether the SQL that SQLAlchemy names is the statement, in whichever style; True for none."""
    if not isinstance(failed_sql, str):
        return True
    return any(failed_sql == translate(statement.sql, style)[0] for style in STYLES)


def _causes(error: BaseException) -> Iterator[BaseException]:
    """Go through the error and what caused it."""
    seen: set[int] = set()
    cause: BaseException | None = error
    while cause is not None and id(cause) not in seen:
        seen.add(id(cause))
        yield cause
        # A client that complains about a closed connection does so on top of what closed it.
        cause = cause.__cause__ or (cause.__context__ if _is(cause, "InterfaceError") else None)


def _original(error: BaseException) -> BaseException:
    """Return the driver's error that SQLAlchemy has wrapped, or the error itself."""
    original = getattr(error, "orig", None)
    return original if isinstance(original, BaseException) else error


def _reason(error: BaseException) -> str | None:
    if isinstance(error, StoreUnavailable):
        return error.reason
    if isinstance(error, sqlite3.Error):
        code = getattr(error, "sqlite_errorcode", None)
        return None if code is None else _SQLITE.get(code & 0xFF)
    if (state := sqlstate(error)) is not None:
        return away(state)
    return _without_code(error)


def _without_code(error: BaseException) -> str | None:
    """Judge what the client libraries raise on their own account."""
    if _from("sqlalchemy.exc", error):
        return _sqlalchemy(error)
    if _from("psycopg_pool", error) and _is(error, "PoolClosed"):
        return _CLOSED
    if _from("psycopg_pool", error) or _from("psycopg2.pool", error):
        return _NO_CONNECTION
    if _from("psycopg", error) or _from("psycopg2", error):
        return _psycopg(error)
    return _asyncpg(error)


def _sqlalchemy(error: Any) -> str | None:
    original = getattr(error, "orig", None)
    if isinstance(original, BaseException):
        if (state := sqlstate(original)) is not None:
            return away(state)
        if error.connection_invalidated:
            return _LOST
        return _reason(original)
    if getattr(error, "code", None) == _RECONNECT:
        return _LOST
    return _NO_CONNECTION if _is(error, "TimeoutError") else None


def _psycopg(error: BaseException) -> str | None:
    # What comes without a code does not come from the server, but from the way to it.
    if _is(error, "OperationalError") or type(error).__name__ == "DatabaseError":
        return _LOST
    return None


def _asyncpg(error: BaseException) -> str | None:
    """Judge what asyncpg lets through as it came from the system: by the place it came from."""
    if _from("asyncpg", error) and _is(error, "InternalClientError"):
        # The server said that it ends the session, and asyncpg has not seen the end of it yet.
        return _LOST
    if not isinstance(error, OSError):
        return None
    places = {"asyncpg.connect_utils"} if isinstance(error, TimeoutError) else {"asyncpg"}
    trace = error.__traceback__
    while trace is not None:
        module = str(trace.tb_frame.f_globals.get("__name__"))
        if module in places or module.partition(".")[0] in places:
            return _NOT_REACHED
        trace = trace.tb_next
    return None


def _from(module: str, error: BaseException) -> bool:
    return any(
        base.__module__ == module or base.__module__.startswith(f"{module}.")
        for base in type(error).__mro__
    )


def _is(error: BaseException, name: str) -> bool:
    return any(base.__name__ == name for base in type(error).__mro__)
