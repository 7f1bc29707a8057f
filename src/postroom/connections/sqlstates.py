"""What the five letters of an SQLSTATE say about whose fault an error is."""

_FAILED = "25P02"
_CONFLICTS = {
    "40001": "the transaction came in the way of another and was rolled back",
    "40P01": "the transaction waited for another in a circle and was rolled back",
    "55P03": "a lock was not given in time: look for a transaction that stays open",
}
_OUTAGES = {
    **_CONFLICTS,
    "25006": "the database is read-only: a standby, or a primary that was demoted",
    "28000": "the database refused the credentials",
    "28P01": "the database refused the credentials",
    "3D000": "the database does not exist: create it, or correct the address",
    "53000": "the database has no resources left",
    "53100": "the disk of the database is full: free some space",
    "53300": "the database takes no more connections: raise max_connections, or use a pooler",
    "57P01": "the database is shutting down, or somebody ended the connection",
    "57P02": "the database crashed and recovers",
    "57P03": "the database is starting up or shutting down",
    "57P04": "the database was dropped",
    "57P05": "the connection was idle for too long, and the database ended it",
}
_FAMILIES = {
    "08": "the connection to the database failed or was lost",
    "57P": "the database is not in service",
    "58": "the system or the disk of the database failed",
}
_MISSING = {"42P01", "42703", "3F000"}


def sqlstate(error: BaseException) -> str | None:
    """Return the SQLSTATE of a database's error, of whichever client library."""
    for name in ("sqlstate", "pgcode"):
        code = getattr(error, name, None)
        if isinstance(code, str) and len(code) == len(_FAILED):
            return code
    return None


def away(code: str) -> str | None:
    """Say why the code means that the database cannot be used now; None if it does not."""
    if code in _OUTAGES:
        return _OUTAGES[code]
    return next((words for family, words in _FAMILIES.items() if code.startswith(family)), None)


def conflicting(code: str | None) -> bool:
    """Say whether the transaction failed because of another one; the same may pass next time."""
    return code in _CONFLICTS


def failed(code: str | None) -> bool:
    """Say whether the statement did not run because one before it had failed."""
    return code == _FAILED


def missing(code: str | None) -> bool:
    """Say whether a table, a column or a schema is not there."""
    return code in _MISSING
