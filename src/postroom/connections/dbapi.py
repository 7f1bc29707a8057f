"""Connections of the standard library's sqlite3."""

import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from os import PathLike
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
        connection.execute(f"ROLLBACK TO {BATCH}")
        connection.execute(f"RELEASE {BATCH}")
        raise
    connection.execute(f"RELEASE {BATCH}")
    return affected


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


def sqlite3_transactions(
    path: str | PathLike[str], **arguments: Any
) -> Callable[[], AbstractContextManager[sqlite3.Connection]]:
    """Return a function that opens a transaction on the database file, for use with `with`.

    Each `with begin() as connection:` commits at the end and rolls back on an error. It begins
    with BEGIN IMMEDIATE, so that two writers wait for each other at the beginning and not in
    the middle. Connections are kept, one per thread, and closed with their thread.
    `arguments` go to `sqlite3.connect`.
    """
    kept = threading.local()

    @contextmanager
    def begin() -> Iterator[sqlite3.Connection]:
        connection = getattr(kept, "connection", None)
        if connection is None or connection.in_transaction:
            connection = sqlite3.connect(path, isolation_level=None, **arguments)
            kept.connection = connection
        connection.execute("BEGIN IMMEDIATE")
        try:
            yield connection
            connection.execute("COMMIT")
        except BaseException:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            raise

    return begin
