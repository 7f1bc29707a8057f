"""The broker's file: opening and checking it, transactions, and what its errors mean."""

import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib.resources import files
from pathlib import Path

from postroom.errors import BrokerUnavailable, OutcomeUnknown

APPLICATION_ID = 0x506F7374
"""Marks the file as ours in its header, so that no other database is taken for a broker."""
SCHEMA_VERSION = 1

_PRIMARY = 0xFF  # extended codes carry the primary one in their low byte
_REASONS = {
    sqlite3.SQLITE_BUSY: "another process has it locked",
    sqlite3.SQLITE_LOCKED: "another connection has it locked",
    sqlite3.SQLITE_PROTOCOL: "another process has it locked",
    sqlite3.SQLITE_READONLY: "it is read-only",
    sqlite3.SQLITE_PERM: "access is not permitted",
    sqlite3.SQLITE_AUTH: "access is not permitted",
    sqlite3.SQLITE_CANTOPEN: "it cannot be opened; is its directory there, and may we write to it?",
    sqlite3.SQLITE_FULL: "the disk is full",
    sqlite3.SQLITE_IOERR: "the disk reports an error",
    sqlite3.SQLITE_NOTADB: "it is not a SQLite database",
    sqlite3.SQLITE_CORRUPT: "it is damaged",
}
_BUSY = frozenset({sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_PROTOCOL})
_UNDONE_AT_COMMIT = _BUSY | {sqlite3.SQLITE_FULL, sqlite3.SQLITE_READONLY}
_FIRST_PAUSE = 0.000_2
_LONGEST_PAUSE = 0.004


class LockTimeout(BrokerUnavailable):
    """Another connection held the write lock until the deadline."""


class BrokerFile:
    """One connection to the file, for one thread; opened when needed and after every failure."""

    def __init__(self, path: Path) -> None:
        """Remember the path; nothing is touched yet."""
        self.path = path
        self._connection: sqlite3.Connection | None = None
        self._identity: tuple[int, int] | None = None
        self._durable: bool | None = None

    @contextmanager
    def transaction(self, *, durable: bool, deadline: float) -> Iterator[sqlite3.Connection]:
        """Run the body in a write transaction; its commit is on the disk if `durable`.

        Raises BrokerUnavailable where nothing was changed (LockTimeout after the deadline, a
        moment of `time.monotonic`), OutcomeUnknown where the commit itself failed strangely.
        """
        with self._translated():
            connection = self._opened(deadline)
            self._set_durable(connection, durable=durable)
            self._begin(connection, deadline)
            try:
                yield connection
            except BaseException:
                _roll_back(connection)
                raise
        self._commit(connection)

    @contextmanager
    def reading(self, *, deadline: float) -> Iterator[sqlite3.Connection]:
        """Run the body outside of a transaction: each statement sees the newest state."""
        with self._translated():
            yield self._opened(deadline)

    def close(self) -> None:
        """Close the connection; the next use opens a new one."""
        connection, self._connection = self._connection, None
        if connection is not None:
            with suppress(sqlite3.Error):
                connection.close()

    def _opened(self, deadline: float) -> sqlite3.Connection:
        if self._connection is not None and self._identity == identity(self.path):
            return self._connection
        self.close()
        connection = sqlite3.connect(self.path, timeout=0, isolation_level=None)
        try:
            patience = max(int((deadline - time.monotonic()) * 1000), 0)
            connection.execute(f"PRAGMA busy_timeout = {patience}")
            _prepare(connection, self.path)
            connection.execute("PRAGMA busy_timeout = 0")
        except BaseException:
            connection.close()
            raise
        self._connection, self._identity = connection, identity(self.path)
        self._durable = None
        return connection

    def _set_durable(self, connection: sqlite3.Connection, *, durable: bool) -> None:
        # A commit that is lost with the power only repeats a message, unless it is a publish:
        # so only that one waits for the disk. Neither mode can damage the file.
        if self._durable is not durable:
            connection.execute(f"PRAGMA synchronous = {'FULL' if durable else 'NORMAL'}")
            self._durable = durable

    def _begin(self, connection: sqlite3.Connection, deadline: float) -> None:
        # SQLite's own busy handler sleeps up to 100 ms at a time; a message should not.
        pause = _FIRST_PAUSE
        while True:
            try:
                connection.execute("BEGIN IMMEDIATE")
            except sqlite3.OperationalError as error:
                if primary_code(error) not in _BUSY or time.monotonic() >= deadline:
                    raise
            else:
                return
            time.sleep(pause)
            pause = min(pause * 1.5, _LONGEST_PAUSE)

    def _commit(self, connection: sqlite3.Connection) -> None:
        try:
            connection.execute("COMMIT")
        except sqlite3.Error as error:
            _roll_back(connection)
            if primary_code(error) in _UNDONE_AT_COMMIT:
                raise self._unavailable(error) from error
            self.close()
            raise OutcomeUnknown(f"{self.path}: {explain(error)}, at the commit") from error

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            if primary_code(error) is None:
                raise  # a mistake in how sqlite3 is used, not the state of the file
            raise self._unavailable(error) from error

    def _unavailable(self, error: sqlite3.Error) -> BrokerUnavailable:
        reason = f"{self.path}: {explain(error)}"
        if primary_code(error) in _BUSY:
            return LockTimeout(reason)
        self.close()  # a connection opened while the file was read-only stays so
        return BrokerUnavailable(reason)


def primary_code(error: sqlite3.Error) -> int | None:
    """Return SQLite's primary result code, None for errors of the Python module."""
    code: int | None = getattr(error, "sqlite_errorcode", None)
    return None if code is None else code & _PRIMARY


def explain(error: sqlite3.Error) -> str:
    """Say in words what a result code means."""
    name = getattr(error, "sqlite_errorname", type(error).__name__)
    return f"{_REASONS.get(primary_code(error) or 0, 'SQLite reports an error')} ({name})"


def identity(path: Path) -> tuple[int, int] | None:
    """Tell one file from another that took its place; None where there is none."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino


def _roll_back(connection: sqlite3.Connection) -> None:
    with suppress(sqlite3.Error):
        if connection.in_transaction:
            connection.execute("ROLLBACK")


def _prepare(connection: sqlite3.Connection, path: Path) -> None:
    """Create the tables in a new file; refuse one that is not, or not yet, ours."""
    if _looked_at_once(connection, path):
        connection.execute("PRAGMA journal_mode = WAL")
        return
    mode = connection.execute("PRAGMA journal_mode = WAL").fetchone()[0]
    if mode != "wal":
        raise BrokerUnavailable(f"{path}: no write-ahead log here; use a local, writable disk")
    connection.execute("BEGIN IMMEDIATE")
    try:
        if not _is_current(connection, path):  # another process may have been faster
            _create(connection)
        connection.execute("COMMIT")
    except BaseException:
        _roll_back(connection)
        raise


def _looked_at_once(connection: sqlite3.Connection, path: Path) -> bool:
    """Ask in one read transaction: between two questions another process may create the file."""
    connection.execute("BEGIN")
    try:
        return _is_current(connection, path)
    finally:
        _roll_back(connection)


def _is_current(connection: sqlite3.Connection, path: Path) -> bool:
    application = connection.execute("PRAGMA application_id").fetchone()[0]
    version = connection.execute("PRAGMA user_version").fetchone()[0]
    if application == APPLICATION_ID:
        if version > SCHEMA_VERSION:
            raise BrokerUnavailable(
                f"{path}: written by a newer Postroom (broker file version {version}, this one "
                f"knows {SCHEMA_VERSION}); upgrade this installation"
            )
        return True
    tables = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
    if application or version or tables:
        raise BrokerUnavailable(
            f"{path}: belongs to another program; the embedded broker needs a file of its own"
        )
    return False


def _create(connection: sqlite3.Connection) -> None:
    statement = ""
    text = (files("postroom.brokers.sqlite") / "schema.sql").read_text("utf-8")
    for line in text.splitlines(keepends=True):
        statement += line
        if sqlite3.complete_statement(statement):
            connection.execute(statement)
            statement = ""
    connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
    connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
