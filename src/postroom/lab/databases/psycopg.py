"""Tills and hands on psycopg 3."""

from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import (
    AbstractContextManager,
    asynccontextmanager,
    contextmanager,
    suppress,
)
from dataclasses import dataclass
from typing import Any, cast

import psycopg
from psycopg_pool import ConnectionPool

from postroom.connections import psycopg_transactions
from postroom.errors import NoTransaction
from postroom.lab.database import Rows, Unusable, Violated, Write
from postroom.lab.databases.part import part
from postroom.message import Message
from postroom.outbox import SyncOutbox
from postroom.store import Writer

CONNECT = 3
"""Seconds that it may take to connect."""
_AT_ONCE = 8


class PsycopgTill:
    """Takes orders on a connection of psycopg."""

    client = "psycopg"

    def __init__(self, address: str, begin: str, store: Writer) -> None:
        """Connect at the first transaction; `begin` begins one."""
        self._address = address
        self._begin = begin
        self._outbox = SyncOutbox(store)
        self._open: psycopg.Connection | None = None

    def begin(self) -> None:
        """Begin a transaction."""
        with _translated():
            if self._open is None or self._open.closed:
                self._open = psycopg.connect(
                    self._address, autocommit=True, connect_timeout=CONNECT, prepare_threshold=None
                )
            _run(self._open, self._begin)

    def commit(self) -> None:
        """Commit it."""
        self.rows("COMMIT")

    def rollback(self) -> None:
        """Undo what is not committed."""
        connection = self._open
        if connection is not None and not connection.closed:
            with suppress(psycopg.Error):
                connection.rollback()

    def savepoint(self) -> AbstractContextManager[None]:
        """Run a part of the transaction that is undone by itself when it raises."""
        return part(self.rows)

    def rows(self, sql: str, *values: object) -> Rows:
        """Run a statement; return its rows, if it has any."""
        with _translated():
            return _run(self._connection, sql, values)

    def put(self, event: object) -> Message:
        """Put an event into the outbox, in the transaction."""
        with _translated():
            (message,) = self._outbox.put(self._connection, event)
            return message

    def close(self) -> None:
        """Disconnect."""
        if self._open is not None:
            self._open.close()

    @property
    def _connection(self) -> psycopg.Connection:
        if self._open is None:
            raise Unusable("not connected yet")
        return self._open


@dataclass(frozen=True, slots=True)
class PsycopgHands:
    """Plain functions on connections of a psycopg pool."""

    begin: Callable[[], AbstractContextManager[psycopg.Connection]]

    client = "psycopg"
    awaits = False

    def write(self, connection: psycopg.Connection, writes: Sequence[Write]) -> None:
        """Run the statements in the transaction."""
        for sql, values in writes:
            _run(connection, sql, values)


@asynccontextmanager
async def psycopg_hands(address: str, local: str) -> AsyncIterator[PsycopgHands]:
    """Give hands; `local` is said at the beginning of each transaction."""
    pool = ConnectionPool(
        address,
        min_size=1,
        max_size=_AT_ONCE,
        timeout=CONNECT,
        kwargs={"prepare_threshold": None, "connect_timeout": CONNECT},
        open=True,
    )
    transactions = psycopg_transactions(pool)

    @contextmanager
    def begin() -> Iterator[psycopg.Connection]:
        with transactions() as connection:
            _run(connection, local)
            yield connection

    try:
        yield PsycopgHands(begin)
    finally:
        pool.close(timeout=CONNECT)


def _run(connection: psycopg.Connection, sql: str, values: Sequence[object] = ()) -> Rows:
    # Without values it may be several statements.
    text = cast("Any", sql.replace("?", "%s"))
    cursor = connection.execute(text, values) if values else connection.execute(text)
    return cursor.fetchall() if cursor.description else []


@contextmanager
def _translated() -> Iterator[None]:
    try:
        yield
    except psycopg.IntegrityError as error:
        raise Violated(str(error)) from error
    except (psycopg.OperationalError, psycopg.InterfaceError, psycopg.InternalError) as error:
        raise Unusable(f"{type(error).__name__}: {error}") from error
    except NoTransaction as error:
        raise Unusable(error.reason) from error
