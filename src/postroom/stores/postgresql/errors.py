"""What an error of PostgreSQL means for the caller, told by its SQLSTATE and never by its text."""

import asyncpg

from postroom.connections.sqlstates import away, missing, sqlstate
from postroom.errors import StoreError, StoreUnavailable

CLIENT_ERRORS = (
    asyncpg.PostgresError,
    asyncpg.InterfaceError,
    # Raised by the first use of a connection that the server has ended meanwhile.
    asyncpg.InternalClientError,
    OSError,
    EOFError,
    TimeoutError,
)
"""Whatever asyncpg raises."""

_AGAIN = {"40001", "40P01"}
_READ_ONLY = "25006"
_OURS = {
    "53200": "it has no memory left",
    "53400": "a limit of its configuration was reached",
    "57014": "a statement took too long and was cancelled",
    "25P03": "it ended a transaction that was idle for too long: the process was stopped",
    "25P04": "it ended a transaction that took too long",
}
"""Outages for the store, whose transactions are short; in a handler they may be its own doing."""


def again(error: BaseException) -> bool:
    """Whether the same transaction may well succeed if it is run again at once."""
    return sqlstate(error) in _AGAIN


def lost(error: BaseException) -> bool:
    """Whether connections to this server should be given up: it has gone, or was demoted."""
    state = sqlstate(error) or ""
    if not state:
        return True
    return state == _READ_ONLY or state.startswith(("08", "57P", "25P0"))


def schema_at_fault(error: BaseException) -> bool:
    """Whether something of our tables is not there."""
    return missing(sqlstate(error))


def translate(error: BaseException, place: str) -> StoreError:
    """Return the store's error that says what to do; the caller raises it from the cause."""
    state = sqlstate(error) or ""
    if (reason := _OURS.get(state) or away(state)) is not None:
        return StoreUnavailable(f"{place}: {reason} ({state}: {error})")
    if state:
        return StoreError(f"{place}: {error} ({state})")
    if isinstance(error, TimeoutError):
        return StoreUnavailable(f"{place}: no answer in time; is the server up and reachable?")
    if isinstance(error, ValueError) and isinstance(error, asyncpg.InterfaceError):
        return StoreError(f"{place}: {error}")
    return StoreUnavailable(f"{place}: {error or type(error).__name__}")
