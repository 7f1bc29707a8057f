"""What an error of PostgreSQL means for the caller, told by its SQLSTATE and never by its text."""

import asyncpg

from postroom.connections.sqlstates import missing, sqlstate
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
_CURES = {
    _READ_ONLY: "it is read-only: a standby, or a primary that was demoted",
    "40001": "it keeps refusing a transaction that others contend with",
    "40P01": "it keeps finding a deadlock",
    "3D000": "the database does not exist: create it, or correct the address",
    "53100": "its disk is full: free some space",
    "53200": "it has no memory left",
    "53300": "it has no connection left: raise max_connections, or use a pooler",
    "55P03": "a lock was held for too long: look for a transaction that stays open",
    "57014": "a statement took too long and was cancelled",
    "57P01": "it is shutting down, or somebody ended the connection",
    "57P02": "it has crashed and recovers",
    "57P03": "it is starting up or shutting down",
    "57P05": "it ended a connection that was idle for too long",
    "25P03": "it ended a transaction that was idle for too long: the process was stopped",
    "25P04": "it ended a transaction that took too long",
}
_UNAVAILABLE = ("08", "53", "57P", "58")


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
    if state in _CURES:
        return StoreUnavailable(f"{place}: {_CURES[state]} ({state}: {error})")
    if state.startswith(_UNAVAILABLE):
        return StoreUnavailable(f"{place}: {error} ({state})")
    if state:
        return StoreError(f"{place}: {error} ({state})")
    if isinstance(error, TimeoutError):
        return StoreUnavailable(f"{place}: no answer in time; is the server up and reachable?")
    if isinstance(error, ValueError) and isinstance(error, asyncpg.InterfaceError):
        return StoreError(f"{place}: {error}")
    return StoreUnavailable(f"{place}: {error or type(error).__name__}")
