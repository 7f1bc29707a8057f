"""Connections of psycopg 3, sync and async."""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    asynccontextmanager,
    contextmanager,
)
from typing import Any, Protocol, TypeVar, cast, overload

from postroom.connections.dbapi import CLOSED
from postroom.connections.outages import FAILED
from postroom.connections.paramstyle import bind
from postroom.errors import NoTransaction, StoreUnavailable
from postroom.statement import Statement

IN_TRANSACTION = 2
IN_ERROR = 3
UNKNOWN = 4
"""What libpq says of a connection's transaction."""

_NOT_BEGUN = (
    "the psycopg connection is not in a transaction; use `{}with connection.transaction():`, or "
    "write the business data first, so that the message joins its transaction"
)
_LOST = "the connection to the database was lost"


class PsycopgConnection(Protocol):
    """An open `psycopg.Connection`, with rows of any kind."""

    @property
    def pgconn(self) -> Any:
        """The connection of libpq."""
        ...

    def pipeline(self) -> AbstractContextManager[Any]:
        """Send statements without waiting for the one before."""
        ...

    def commit(self) -> None:
        """Commit; tells it from its async counterpart."""
        ...


class AsyncPsycopgConnection(Protocol):
    """An open `psycopg.AsyncConnection`, with rows of any kind."""

    @property
    def pgconn(self) -> Any:
        """The connection of libpq."""
        ...

    def pipeline(self) -> AbstractAsyncContextManager[Any]:
        """Send statements without waiting for the one before."""
        ...

    def commit(self) -> Awaitable[None]:
        """Commit; tells it from its sync counterpart."""
        ...


C = TypeVar("C", bound=PsycopgConnection)
A = TypeVar("A", bound=AsyncPsycopgConnection)
C_co = TypeVar("C_co", bound=PsycopgConnection, covariant=True)
A_co = TypeVar("A_co", bound=AsyncPsycopgConnection, covariant=True)


class PsycopgPool(Protocol[C_co]):
    """A `psycopg_pool.ConnectionPool`, or anything else that lends connections."""

    def connection(self) -> AbstractContextManager[C_co]:
        """Lend a connection for a block."""
        ...


class AsyncPsycopgPool(Protocol[A_co]):
    """A `psycopg_pool.AsyncConnectionPool`, or anything else that lends connections."""

    def connection(self) -> AbstractAsyncContextManager[A_co]:
        """Lend a connection for a block."""
        ...


def run(connection: Any, statement: Statement) -> int:
    """Run the statement, also inside a pipeline; return how many rows that affected."""
    import psycopg

    if not statement.rows:
        return 0
    sql, rows = bind(statement, "pyformat")
    # Not `connection.cursor()`: the caller may have set another kind, with other placeholders.
    cursor = psycopg.Cursor(connection)
    if len(rows) == 1:
        cursor.execute(cast("Any", sql), rows[0])
    else:
        cursor.executemany(cast("Any", sql), rows)
    _settle(connection)
    return cursor.rowcount


async def run_async(connection: Any, statement: Statement) -> int:
    """Run the statement, also inside a pipeline; return how many rows that affected."""
    import psycopg

    if not statement.rows:
        return 0
    sql, rows = bind(statement, "pyformat")
    cursor = psycopg.AsyncCursor(connection)
    if len(rows) == 1:
        await cursor.execute(cast("Any", sql), rows[0])
    else:
        await cursor.executemany(cast("Any", sql), rows)
    await _settle_async(connection)
    return cursor.rowcount


def require(connection: PsycopgConnection) -> None:
    """Raise `NoTransaction` unless a transaction is open and has not failed."""
    _settle(connection)
    _check(connection.pgconn, "")


async def require_async(connection: AsyncPsycopgConnection) -> None:
    """Raise `NoTransaction` unless a transaction is open and has not failed."""
    await _settle_async(connection)
    _check(connection.pgconn, "async ")


@overload
def psycopg_transactions(
    pool: PsycopgPool[C],
) -> Callable[[], AbstractContextManager[C]]: ...


@overload
def psycopg_transactions(
    pool: AsyncPsycopgPool[A],
) -> Callable[[], AbstractAsyncContextManager[A]]: ...


def psycopg_transactions(pool: Any) -> Callable[[], Any]:
    """Return a function that opens a transaction on a connection of the pool.

    Each `with begin() as connection:` (`async with`, if the pool is an asynchronous one) commits
    at the end, rolls back on an error, and gives the connection back. When one was lost, the
    pool is told to look for others that were lost with it, instead of lending them one by one. A
    pool that nobody has opened yet (`open=False`) is opened by the first transaction.
    """

    def begin() -> Any:
        lent = pool.connection()
        return _awaited(pool, lent) if hasattr(lent, "__aenter__") else _plain(pool, lent)

    return begin


@contextmanager
def _plain(pool: Any, lent: AbstractContextManager[Any]) -> Iterator[Any]:
    connection: Any = None
    if getattr(pool, "closed", False) is True:
        # Opens one that never was; one that was raises PoolClosed.
        pool.open()
    try:
        with lent as connection, connection.transaction():
            try:
                yield connection
                require(connection)
            except NoTransaction as error:
                if connection.broken:
                    raise StoreUnavailable(_LOST) from error
                raise
    finally:
        if connection is not None and connection.broken and hasattr(pool, "check"):
            pool.check()


@asynccontextmanager
async def _awaited(pool: Any, lent: AbstractAsyncContextManager[Any]) -> AsyncIterator[Any]:
    connection: Any = None
    if getattr(pool, "closed", False) is True:
        await pool.open()
    try:
        async with lent as connection, connection.transaction():
            try:
                yield connection
                await require_async(connection)
            except NoTransaction as error:
                if connection.broken:
                    raise StoreUnavailable(_LOST) from error
                raise
    finally:
        if connection is not None and connection.broken and hasattr(pool, "check"):
            await pool.check()


def _settle(connection: PsycopgConnection) -> None:
    """Wait for what a pipeline has sent: until then neither state nor counts are known."""
    if connection.pgconn.pipeline_status:
        with connection.pipeline():
            pass


async def _settle_async(connection: AsyncPsycopgConnection) -> None:
    if connection.pgconn.pipeline_status:
        async with connection.pipeline():
            pass


def _check(pgconn: Any, awaiting: str) -> None:
    status = pgconn.transaction_status
    if status == UNKNOWN:
        raise NoTransaction(CLOSED)
    if status == IN_ERROR:
        raise NoTransaction(FAILED)
    if status != IN_TRANSACTION:
        raise NoTransaction(_NOT_BEGUN.format(awaiting))
