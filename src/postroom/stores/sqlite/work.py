"""One piece of work: a connection, the queries for it, and the time."""

import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from postroom._clock import Clock, to_micros
from postroom.connections.dbapi import begin_writing


@dataclass(frozen=True, slots=True)
class Work:
    """What the functions of this store are given to do their part on the store's thread."""

    connection: sqlite3.Connection
    sql: Mapping[str, str]
    clock: Clock
    patience: float
    """Seconds to wait for the write lock."""

    def now(self) -> int:
        """Return the time in microseconds, as the tables keep it."""
        return to_micros(self.clock.now())

    def rows(self, query: str, **values: object) -> list[Any]:
        """Return the rows of the named query."""
        return self.connection.execute(self.sql[query], values).fetchall()

    def value(self, query: str, **values: object) -> Any:
        """Return the first column of the first row of the named query, or None."""
        row = self.connection.execute(self.sql[query], values).fetchone()
        return None if row is None else row[0]

    def change(self, query: str, **values: object) -> int:
        """Run the named change; return how many rows it affected."""
        return self.connection.execute(self.sql[query], values).rowcount

    def change_each(
        self, query: str, values: Iterable[Sequence[object] | Mapping[str, object]]
    ) -> int:
        """Run the named change once for each; return how many rows were affected in all."""
        return max(self.connection.executemany(self.sql[query], values).rowcount, 0)

    @contextmanager
    def reading(self) -> Iterator[None]:
        """See one state of the database in all queries of the block."""
        self.connection.execute("begin")
        try:
            yield
        finally:
            self.connection.rollback()

    @contextmanager
    def writing(self, *, undo: bool = False, durable: bool = True) -> Iterator[None]:
        """Hold the write lock from the first statement on; `undo` rolls back at the end.

        Without `durable` the commit does not wait for the disk, and so nobody waits for the lock
        meanwhile; a power cut may undo it, the end of a process never does.

        A transaction that begins with a read and writes later fails at once when another
        process wrote in between: the busy time-out cannot help it.
        """
        self.connection.execute(f"pragma synchronous = {'full' if durable else 'normal'}")
        begin_writing(self.connection, patience=self.patience)
        try:
            yield
            if not undo:
                self.connection.commit()
        finally:
            if self.connection.in_transaction:
                self.connection.rollback()
