"""Connections of the standard library's sqlite3."""

import os
import sqlite3
import threading
import time
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any, Protocol

from postroom.errors import NoTransaction
from postroom.statement import Statement

BATCH = "postroom_batch"
"""The savepoint that makes the rows of one statement all or nothing."""

NOT_BEGUN = (
    "the sqlite3 connection is not in a transaction, so the message would be committed alone; "
    'begin one with connection.execute("BEGIN IMMEDIATE") before the first write, or (Python '
    "3.12) connect with autocommit=False"
)
DEFAULT_TIMEOUT = 5.0
"""Seconds that `sqlite3.connect` waits for a lock unless told otherwise."""
_PAUSE = 0.001
CLOSED = "the connection is closed; put the message before closing it"


class Cursor(Protocol):
    """What an execution returns."""

    @property
    def rowcount(self) -> int:
        """How many rows were affected."""
        ...


class SqliteConnection(Protocol):
    """An open `sqlite3.Connection`."""

    @property
    def in_transaction(self) -> bool:
        """Whether a transaction is open."""
        ...

    def execute(self, sql: str, parameters: Any = ..., /) -> Cursor:
        """Run a statement."""
        ...

    def executemany(self, sql: str, parameters: Any, /) -> Cursor:
        """Run a statement once for each set of parameters."""
        ...


def run(connection: SqliteConnection, statement: Statement) -> int:
    """Run the statement; sqlite3 understands `:names` itself."""
    rows = statement.rows
    if len(rows) == 1:
        return connection.execute(statement.sql, rows[0]).rowcount
    if not rows:
        return 0
    connection.execute(f"SAVEPOINT {BATCH}")
    try:
        affected = connection.executemany(statement.sql, rows).rowcount
    except BaseException:
        # A full disk, for one, has rolled the whole transaction back already.
        if connection.in_transaction:
            connection.execute(f"ROLLBACK TO {BATCH}")
            connection.execute(f"RELEASE {BATCH}")
        raise
    connection.execute(f"RELEASE {BATCH}")
    return affected


def begin_writing(connection: sqlite3.Connection, *, patience: float) -> None:
    """Run BEGIN IMMEDIATE, waiting so many seconds for the write lock.

    SQLite's own wait sleeps up to 100 ms between two tries: beside a writer that hardly pauses
    it takes seconds until a try falls into a pause. This one tries about every millisecond.
    """
    deadline = time.monotonic() + patience
    connection.execute("PRAGMA busy_timeout = 0")
    try:
        while True:
            try:
                connection.execute("BEGIN IMMEDIATE")
            except sqlite3.OperationalError as error:
                if not _is_busy(error) or time.monotonic() >= deadline:
                    raise
            else:
                return
            time.sleep(_PAUSE)
    finally:
        connection.execute(f"PRAGMA busy_timeout = {int(patience * 1000)}")


def _is_busy(error: sqlite3.Error) -> bool:
    return getattr(error, "sqlite_errorcode", 0) & 0xFF == sqlite3.SQLITE_BUSY


def require(connection: SqliteConnection) -> None:
    """Raise `NoTransaction` unless a transaction is open.

    Where the caller opened it by a bare SAVEPOINT, the RELEASE of that savepoint is, to SQLite,
    the commit of the transaction: message and business data share it.
    """
    try:
        begun = connection.in_transaction
    except sqlite3.ProgrammingError as error:
        raise NoTransaction(CLOSED) from error
    if not begun:
        raise NoTransaction(NOT_BEGUN)


class SqliteTransactions:
    """Opens transactions on one database file; keeps the connections for the next ones."""

    def __init__(self, path: str | PathLike[str], **arguments: Any) -> None:
        self._path = path
        self._arguments = arguments
        self._idle: list[_Kept] = []
        self._place: _Place = None
        self._patience = max(float(arguments.get("timeout", DEFAULT_TIMEOUT)), 0.0)
        self._turn = threading.Lock()
        self._owner = os.getpid(), 0
        """The process and the thread whose turn it is."""
        # Also at the end of the program: Python 3.13 warns of each connection left open.
        weakref.finalize(self, _close_all, self._idle)

    @contextmanager
    def __call__(self) -> Iterator[sqlite3.Connection]:
        """Begin with BEGIN IMMEDIATE; commit at the end of the block, roll back on an error."""
        # SQLite lets one write at a time, and whoever waits there sleeps up to 100 ms between
        # two tries. Threads of one process wait here, however long the one before them takes:
        # a slow handler is no outage. Whoever begins twice in one thread is told by SQLite.
        me = os.getpid(), threading.get_ident()
        if self._owner[0] != me[0]:
            self._turn, self._owner = threading.Lock(), (me[0], 0)
        queued = self._owner != me
        if queued:
            self._turn.acquire()
            self._owner = me
        try:
            with self._transaction() as connection:
                yield connection
        finally:
            if queued:
                self._owner = (me[0], 0)
                self._turn.release()

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        kept = self._take()
        connection = kept.connection
        healthy = False
        try:
            begin_writing(connection, patience=self._patience)
            try:
                yield connection
                connection.execute("COMMIT")
                healthy = True
            except BaseException as error:
                healthy = _rolled_back(connection) and not isinstance(error, sqlite3.Error)
                raise
        finally:
            if healthy:
                self._idle.append(kept)
            else:
                connection.close()

    def close(self) -> None:
        """Close the connections that nobody uses; more are opened when needed."""
        _close_all(self._idle)

    def _take(self) -> "_Kept":
        """Return a kept connection to the file that is there now, or open one."""
        place = _place_of(self._path)
        if place is None and self._place is not None:
            raise _gone(self._path)
        while self._idle:
            kept = self._idle.pop()
            if kept.pid != os.getpid():
                # Opened before a fork: to use or even to close it here could harm the parent's.
                _FOREIGN.append(kept.connection)
            elif kept.place == place:
                return kept
            else:
                kept.connection.close()
        # One thread at a time uses a connection, not always the one that opened it.
        connection = sqlite3.connect(
            self._path, isolation_level=None, check_same_thread=False, **self._arguments
        )
        self._place = _place_of(self._path)
        return _Kept(connection, os.getpid(), self._place)


_Place = tuple[int, int] | None
"""Device and number of a file; None where the address is no file."""

_FOREIGN: list[sqlite3.Connection] = []


@dataclass(frozen=True, slots=True)
class _Kept:
    connection: sqlite3.Connection
    pid: int
    place: _Place


def _place_of(path: str | PathLike[str]) -> _Place:
    """Tell one file from another that took its place."""
    try:
        found = Path(path).stat()
    except (OSError, ValueError):
        return None
    return found.st_dev, found.st_ino


def _gone(path: str | PathLike[str]) -> sqlite3.OperationalError:
    error = sqlite3.OperationalError(f"the database file {path} is gone; it was there before")
    error.sqlite_errorcode = sqlite3.SQLITE_CANTOPEN
    error.sqlite_errorname = "SQLITE_CANTOPEN"
    return error


def _rolled_back(connection: sqlite3.Connection) -> bool:
    """Roll back if need be; return whether the connection can be used on."""
    try:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
    except sqlite3.Error:
        return False
    return True


def _close_all(kept: list[_Kept]) -> None:
    while kept:
        kept.pop().connection.close()


def sqlite3_transactions(path: str | PathLike[str], **arguments: Any) -> SqliteTransactions:
    """Return a function that opens a transaction on the database file, for use with `with`.

    Each `with begin() as connection:` commits at the end and rolls back on an error. It begins
    with BEGIN IMMEDIATE, so that two writers wait for each other at the beginning and not in
    the middle. Connections are kept for the next transaction, of any thread; `close()` closes
    them. `arguments` go to `sqlite3.connect`.
    """
    return SqliteTransactions(path, **arguments)
