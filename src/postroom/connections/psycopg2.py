"""Connections of psycopg2."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Protocol

from postroom.connections.dbapi import CLOSED
from postroom.connections.outages import FAILED
from postroom.connections.paramstyle import bind
from postroom.connections.psycopg import IN_ERROR, IN_TRANSACTION, UNKNOWN
from postroom.errors import NoTransaction
from postroom.statement import Statement

_NOT_BEGUN = (
    "the psycopg2 connection is not in a transaction; write the business data first, so that the "
    "message joins its transaction"
)
_AUTOCOMMIT = (
    "the psycopg2 connection commits every statement by itself, so the message would be committed "
    "alone; set connection.autocommit = False"
)


class Psycopg2Connection(Protocol):
    """An open `psycopg2.extensions.connection`."""

    @property
    def closed(self) -> int:
        """0 while it is open."""
        ...

    def get_transaction_status(self) -> int:
        """What libpq says of the transaction."""
        ...

    def commit(self) -> None:
        """Commit."""
        ...


class Psycopg2Pool(Protocol):
    """A `psycopg2.pool.ThreadedConnectionPool`."""

    def getconn(self) -> Any:
        """Return a free connection."""
        ...

    def putconn(self, conn: Any) -> None:
        """Take a connection back."""
        ...


def run(connection: Any, statement: Statement) -> int:
    """Run the statement once for each row; return how many rows that affected."""
    import psycopg2.extensions

    sql, rows = bind(statement, "pyformat")
    affected = 0
    # Not `connection.cursor()`: the caller may have set a kind that does more.
    with psycopg2.extensions.cursor(connection) as cursor:
        for row in rows:
            cursor.execute(sql, row)
            affected += cursor.rowcount
    return affected


def require(connection: Any) -> None:
    """Raise `NoTransaction` unless a transaction is open and has not failed."""
    status = UNKNOWN if connection.closed else connection.get_transaction_status()
    if status == UNKNOWN:
        raise NoTransaction(CLOSED)
    if status == IN_ERROR:
        raise NoTransaction(FAILED)
    if status != IN_TRANSACTION:
        raise NoTransaction(_AUTOCOMMIT if connection.autocommit else _NOT_BEGUN)


def psycopg2_transactions(pool: Psycopg2Pool) -> Callable[[], AbstractContextManager[Any]]:
    """Return a function that opens a transaction on a connection of the pool, for `with`.

    Each `with begin() as connection:` commits at the end, rolls back on an error, and gives the
    connection back. The pool raises at once where it has none left: give it as many as a consumer
    handles at once.
    """

    @contextmanager
    def begin() -> Iterator[Any]:
        connection = pool.getconn()
        try:
            with connection:
                _begin(connection)
                yield connection
                require(connection)
        finally:
            pool.putconn(connection)

    return begin


def _begin(connection: Any) -> None:
    """Have the transaction begun now; psycopg2 itself waits for the first statement."""
    with connection.cursor() as cursor:
        cursor.execute("select 1")
