"""A database of the shop in an SQLite file."""

import sqlite3
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AbstractContextManager, asynccontextmanager, closing, contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

from postroom.connections import sqlite3_transactions
from postroom.lab.database import Rows, Unusable, Violated, Write
from postroom.lab.databases.part import part
from postroom.message import Message
from postroom.outbox import SyncOutbox
from postroom.stores.sqlite import SqliteStore

PATIENCE = timedelta(seconds=1)


@dataclass(frozen=True, slots=True)
class SqliteDatabase:
    """One file; the folder is there."""

    path: Path

    numbered = "INTEGER PRIMARY KEY AUTOINCREMENT"

    @property
    def name(self) -> str:
        """What the shop calls it."""
        return self.path.stem

    def create(self, tables: str, rows: Sequence[Write] = ()) -> None:
        """Make tables, and put rows into them."""
        with closing(connect(self.path)) as connection:
            connection.execute("PRAGMA journal_mode = WAL")
            connection.executescript(tables)
            for sql, values in rows:
                connection.execute(sql, values)

    def till(self, number: int = 0) -> "SqliteTill":
        """Return a connection to take orders on."""
        del number
        return SqliteTill(self.path)

    @asynccontextmanager
    async def hands(self) -> AsyncIterator["SqliteHands"]:
        """Give a consumer's way to the database."""
        yield SqliteHands(sqlite3_transactions(self.path, timeout=PATIENCE.total_seconds()))

    def store(self, *, patience: timedelta = PATIENCE) -> SqliteStore:
        """Return the product's store in this file, not opened."""
        return SqliteStore(self.path, busy_timeout=patience)

    def at_once(self, sql: str, *values: object) -> int:
        """Run a statement in a transaction of its own; return how many rows it affected."""
        with closing(connect(self.path)) as connection:
            return connection.execute(sql, values).rowcount

    def aside(self) -> "SqliteDatabase":
        """Return another file: this one takes one writer at a time."""
        return SqliteDatabase(self.path.with_suffix(".aside.db"))

    def read(self, sql: str, *values: object) -> Rows:
        """Return the rows of a query, for the judge."""
        file = f"file:{self.path}?mode=rw"
        try:
            with closing(sqlite3.connect(file, uri=True, timeout=10)) as connection:
                connection.execute("PRAGMA query_only = ON")
                return connection.execute(sql, values).fetchall()
        except sqlite3.OperationalError as error:
            raise Unusable(f"{self.name}: {error}") from error

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep every writer out for the length of a block."""
        with closing(connect(self.path)) as connection:
            connection.execute("BEGIN EXCLUSIVE")
            yield
            connection.execute("ROLLBACK")

    def remove(self) -> None:
        """Leave the file: it goes with its folder."""

    def close(self) -> None:
        """Do nothing: nothing is kept open."""


class SqliteTill:
    """Takes orders on a connection of sqlite3; one transaction at a time in the whole file."""

    client = "sqlite3"

    def __init__(self, path: Path) -> None:
        """Open the file."""
        self._connection = connect(path)
        self._outbox = SyncOutbox(SqliteStore(path))

    def begin(self) -> None:
        """Begin a transaction that holds the file's write lock from its first moment."""
        self.rows("BEGIN IMMEDIATE")

    def commit(self) -> None:
        """Commit it."""
        self.rows("COMMIT")

    def rollback(self) -> None:
        """Undo what is not committed."""
        if self._connection.in_transaction:
            self._connection.execute("ROLLBACK")

    def savepoint(self) -> AbstractContextManager[None]:
        """Run a part of the transaction that is undone by itself when it raises."""
        return part(self.rows)

    def rows(self, sql: str, *values: object) -> Rows:
        """Run a statement; return its rows, if it has any."""
        with _translated():
            return self._connection.execute(sql, values).fetchall()

    def put(self, event: object) -> Message:
        """Put an event into the outbox, in the transaction."""
        with _translated():
            (message,) = self._outbox.put(self._connection, event)
            return message

    def close(self) -> None:
        """Disconnect."""
        self._connection.close()


@dataclass(frozen=True, slots=True)
class SqliteHands:
    """Plain functions on connections of sqlite3."""

    begin: Callable[[], AbstractContextManager[sqlite3.Connection]]

    client = "sqlite3"
    awaits = False

    def write(self, connection: sqlite3.Connection, writes: Sequence[Write]) -> None:
        """Run the statements in the transaction."""
        for sql, values in writes:
            connection.execute(sql, values)


def connect(path: Path) -> sqlite3.Connection:
    """Open a file of the shop; transactions are begun by hand."""
    connection = sqlite3.connect(path, timeout=10, isolation_level=None)
    connection.execute("PRAGMA foreign_keys = ON")
    return connection


@contextmanager
def _translated() -> Iterator[None]:
    try:
        yield
    except sqlite3.OperationalError as error:
        raise Unusable(str(error)) from error
    except sqlite3.IntegrityError as error:
        raise Violated(str(error)) from error
