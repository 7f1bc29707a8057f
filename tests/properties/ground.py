"""The grounds on which the machine runs: a kind of store, and how its callers use it."""

import sqlite3
import tempfile
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from datetime import timedelta
from pathlib import Path
from typing import Any, Protocol

import psycopg

from postroom.connections import sqlite3_transactions
from postroom.store import Store
from postroom.stores.memory import MemoryStore
from postroom.stores.postgresql import PostgresqlStore
from postroom.stores.postgresql.database import Patience
from postroom.stores.postgresql.marks import Marks
from postroom.stores.postgresql.sweeping import Budget, Progress
from postroom.stores.sqlite import SqliteStore
from postroom.testing.clock import ManualClock
from tests.postgresql import ground


class Ground(Protocol):
    """A kind of store, and how callers use it."""

    store: Store

    def begin(self) -> AbstractContextManager[Any]:
        """Open a transaction of a caller's: commit at the end, roll back on an error."""
        ...

    def savepoint(self, connection: Any) -> AbstractContextManager[None]:
        """Open a savepoint in it: keep it at the end, roll back to it on an error."""
        ...

    def lock(self) -> None:
        """Let a stranger take the database's write lock, where there is one."""
        ...

    def unlock(self) -> None:
        """Let the stranger go."""
        ...

    def close(self) -> None:
        """Leave nothing behind."""
        ...


class MemoryGround:
    """Callers hold a `MemoryTransaction`; nobody can lock anybody out."""

    def __init__(self, clock: ManualClock) -> None:
        self._memory = MemoryStore(clock=clock, release_chunk=2)
        self.store: Store = self._memory
        self.begin = self._memory.begin

    @contextmanager
    def savepoint(self, connection: Any) -> Iterator[None]:
        """Undo the block on an error."""
        with connection.savepoint():
            yield

    def lock(self) -> None:
        """Do nothing."""

    def unlock(self) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Do nothing."""


class SqliteGround:
    """Callers hold a `sqlite3.Connection`; a stranger may hold the write lock."""

    def __init__(self, clock: ManualClock) -> None:
        self._folder = tempfile.TemporaryDirectory()
        path = Path(self._folder.name) / "outbox.db"
        self.store: Store = SqliteStore(path, clock=clock, busy_timeout=timedelta(milliseconds=20))
        self.begin = sqlite3_transactions(path)
        self._stranger = sqlite3.connect(path, isolation_level=None, timeout=0)

    def savepoint(self, connection: Any) -> AbstractContextManager[None]:
        """Undo the block on an error."""
        return _savepoint(connection)

    def lock(self) -> None:
        """Take the write lock, unless somebody else has it."""
        if not self._stranger.in_transaction:
            with suppress(sqlite3.OperationalError):
                self._stranger.execute("begin immediate")

    def unlock(self) -> None:
        """Roll the stranger back."""
        if self._stranger.in_transaction:
            self._stranger.execute("rollback")

    def close(self) -> None:
        """Delete the file."""
        self._stranger.close()
        self._folder.cleanup()


_PATIENCE = timedelta(seconds=20)
"""A machine that is busy with other things is no outage."""
_LOCK_PATIENCE = "500ms"


class PostgresqlGround:
    """Callers hold a `psycopg.Connection`; a stranger may let nobody else write."""

    def __init__(self, url: str, clock: ManualClock) -> None:
        self._left = ExitStack()
        place = self._left.enter_context(ground(url))
        self._stranger = place.watcher
        self._locked = False
        store = PostgresqlStore(
            url, schema=place.schema, clock=clock, patience=Patience(statement=_PATIENCE)
        )
        queries = store._database._sql
        begin = queries["begin-write"].replace("{lock}", f"'{_LOCK_PATIENCE}'")
        store._sql = store._database._sql = {**queries, "begin-write": begin}
        store._marks = Marks(clock.elapsed)
        store._progress = Progress(keys=Budget(clock.elapsed), below=Budget(clock.elapsed))
        self.store: Store = store
        connection = self._left.enter_context(psycopg.connect(url, autocommit=True))
        self._caller: psycopg.Connection[Any] = connection

    @contextmanager
    def begin(self) -> Iterator[Any]:
        """Open a transaction of a caller's."""
        with self._caller.transaction():
            yield self._caller

    def savepoint(self, connection: Any) -> AbstractContextManager[None]:
        """Undo the block on an error."""
        return _savepoint(connection)

    def lock(self) -> None:
        """Keep everybody from writing, unless somebody does just now."""
        if not self._locked:
            self._stranger.execute("begin")
            try:
                self._stranger.execute(
                    "lock table postroom_outbox, postroom_lane, postroom_relay"
                    " in share row exclusive mode nowait"
                )
            except psycopg.errors.LockNotAvailable:
                self._stranger.execute("rollback")
            else:
                self._locked = True

    def unlock(self) -> None:
        """Roll the stranger back."""
        if self._locked:
            self._stranger.execute("rollback")
            self._locked = False

    def close(self) -> None:
        """Drop the schema."""
        self._left.close()


@contextmanager
def _savepoint(connection: Any) -> Iterator[None]:
    connection.execute("savepoint inner_one")
    try:
        yield
    except BaseException:
        connection.execute("rollback to savepoint inner_one")
        connection.execute("release savepoint inner_one")
        raise
    connection.execute("release savepoint inner_one")
