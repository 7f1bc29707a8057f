"""SQLAlchemy's Connection and Session, and their async counterparts."""

import sqlite3
import sys
from typing import Any, TypeVar

from sqlalchemy import Connection, Engine, event
from sqlalchemy.exc import InvalidRequestError, UnboundExecutionError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, AsyncSession, async_scoped_session
from sqlalchemy.orm import Session, scoped_session

from postroom.connections.outages import FAILED
from postroom.connections.paramstyle import bind
from postroom.connections.psycopg import IN_ERROR, IN_TRANSACTION
from postroom.errors import NoTransaction, PutRefused
from postroom.statement import Statement

Caller = Connection | Session | scoped_session[Any]
AsyncCaller = AsyncConnection | AsyncSession | async_scoped_session[Any]
EngineType = TypeVar("EngineType", bound=Engine | AsyncEngine)

_SAVEPOINT = (
    "the message would be inside a savepoint of an SQLite engine that does not emit BEGIN: "
    "releasing the savepoint commits at once, and a later rollback cannot undo it. Call "
    "postroom.connections.sqlalchemy.begin_immediately(engine) once, after creating the engine"
    " (or, on Python 3.12, create it with connect_args={'autocommit': False})"
)
_AUTOCOMMIT = (
    "the connection is in AUTOCOMMIT mode, so the message would be committed alone; use a "
    "connection with a real isolation level"
)

_PSYCOPG2_BEGUN = 2
"""`psycopg2.extensions.STATUS_BEGIN`."""
_ENDED = (
    "the transaction was ended by SQL, past SQLAlchemy, so the message would be committed alone; "
    "end it with commit() or rollback() of the session or the connection, and begin another"
)


def run(caller: Caller, statement: Statement) -> int:
    """Run the statement in the caller's transaction.

    A session with `autoflush` is flushed first, as before a query: the message's row then comes
    after the rows of the business data, which is what keeps the order of a key right when two
    transactions contend for it. `with session.no_autoflush:` leaves pending objects alone.
    """
    if not statement.rows:
        return 0
    caller = _unscoped(caller)
    if isinstance(caller, Session) and caller.autoflush and not getattr(caller, "_flushing", False):
        caller.flush()
    connection = _connection(caller)
    if len(statement.rows) == 1:
        return _execute(connection, statement)
    if _begins_late(connection):
        connection.exec_driver_sql("BEGIN")
    with connection.begin_nested():
        return _execute(connection, statement)


def require(caller: Caller) -> None:
    """Raise `NoTransaction`, with the cure, unless a transaction is open that can be joined."""
    connection = _connection(_unscoped(caller))
    transaction = connection.get_nested_transaction() or connection.get_transaction()
    if transaction is None:
        raise NoTransaction(
            "the connection has no open transaction; use `with engine.begin() as connection:` "
            "or call connection.begin() before the first write"
        )
    if not transaction.is_active or connection.invalidated:
        raise NoTransaction("the transaction has ended or failed; roll it back and begin another")
    if connection.get_execution_options().get("isolation_level") == "AUTOCOMMIT":
        raise NoTransaction(_AUTOCOMMIT)
    if connection.dialect.name == "sqlite":
        _require_sqlite(connection)
    elif connection.dialect.name == "postgresql":
        _require_postgresql(connection)


async def run_async(caller: AsyncCaller, statement: Statement) -> int:
    """Run the statement in the caller's transaction, as `run` does."""
    return await _joined(caller).run_sync(run, statement)


async def require_async(caller: AsyncCaller) -> None:
    """Raise `NoTransaction`, with the cure, unless a transaction is open that can be joined."""
    await _joined(caller).run_sync(require)


def begin_immediately(engine: EngineType) -> EngineType:
    """Make every transaction of an SQLite engine begin with BEGIN IMMEDIATE; return the engine.

    Without this the driver begins late, before the first write: a savepoint that was opened
    earlier is committed when it is released, and two writers that have both read can never both
    go on. Call it once, before the engine is used.
    """
    target = engine.sync_engine if isinstance(engine, AsyncEngine) else engine

    @event.listens_for(target, "begin")
    def begin(connection: Connection) -> None:
        if connection.get_execution_options().get("isolation_level") == "AUTOCOMMIT":
            return
        driver: Any = connection.connection.dbapi_connection
        if driver.isolation_level is not None:
            driver.isolation_level = None
        if not _in_transaction(connection):
            connection.exec_driver_sql("BEGIN IMMEDIATE")

    return engine


def _execute(connection: Connection, statement: Statement) -> int:
    # The SQLite drivers read `:names` themselves, whatever style the dialect prefers.
    style = "named" if connection.dialect.name == "sqlite" else connection.dialect.paramstyle
    sql, rows = bind(statement, style)
    result = connection.exec_driver_sql(sql, rows, execution_options={"preserve_rowcount": True})
    return result.rowcount


def _unscoped(caller: Caller) -> Connection | Session:
    if isinstance(caller, scoped_session):
        session: Session = caller()
        return session
    return caller


def _connection(caller: Connection | Session) -> Connection:
    if isinstance(caller, Connection):
        if caller.closed:
            raise NoTransaction("the connection is closed; put the message before closing it")
        return caller
    if not caller.in_transaction():
        raise NoTransaction(
            "the session has no open transaction (it is new, committed, rolled back or closed); "
            "add the business data first, or use `with session.begin():`"
        )
    try:
        return caller.connection()
    except UnboundExecutionError as error:
        raise PutRefused(
            "the session has more than one engine; pass the connection of the business data: "
            "session.connection(bind_arguments={'mapper': YourModel})"
        ) from error
    except InvalidRequestError as error:
        raise NoTransaction(
            "the session's transaction has failed or ended; roll it back and begin another"
        ) from error


def _joined(caller: AsyncCaller) -> AsyncConnection | AsyncSession:
    if isinstance(caller, async_scoped_session):
        session: AsyncSession = caller()
        return session
    return caller


def _require_sqlite(connection: Connection) -> None:
    driver: Any = connection.connection.driver_connection
    autocommit = _autocommit(connection)
    if autocommit is False:
        return
    nested = connection.in_nested_transaction()
    if autocommit is not True and driver.isolation_level is not None:
        # The driver begins before the first write, so a savepoint may have come first.
        if nested:
            raise NoTransaction(_SAVEPOINT)
        return
    if not driver.in_transaction:
        raise NoTransaction(_AUTOCOMMIT)
    if nested and not connection.dispatch.begin:
        raise NoTransaction(_SAVEPOINT)


def _require_postgresql(connection: Connection) -> None:
    driver: Any = connection.connection.driver_connection
    adapted: Any = connection.connection.dbapi_connection
    status = _status(driver)
    # A driver that does not commit by itself begins before the first statement.
    if adapted.autocommit and status != IN_TRANSACTION:
        raise NoTransaction(_AUTOCOMMIT)
    if status == IN_ERROR:
        raise NoTransaction(FAILED)
    if status != IN_TRANSACTION and _has_begun(driver, adapted):
        # Past the driver, which will not begin again: whatever follows would stay for good.
        raise NoTransaction(_ENDED)


def _has_begun(driver: Any, adapted: Any) -> bool:
    """Say whether the driver believes that it has begun a transaction, where one can ask it."""
    if hasattr(driver, "get_transaction_status"):
        return bool(driver.status == _PSYCOPG2_BEGUN)
    return getattr(adapted, "_transaction", None) is not None


def _status(driver: Any) -> int | None:
    """Return what libpq, or asyncpg, says of the transaction; None where neither is there."""
    if hasattr(driver, "pgconn"):
        return int(driver.pgconn.transaction_status)
    if hasattr(driver, "get_transaction_status"):
        return int(driver.get_transaction_status())
    if hasattr(driver, "is_in_transaction"):
        return IN_TRANSACTION if driver.is_in_transaction() else None
    return None


def _begins_late(connection: Connection) -> bool:
    return connection.dialect.name == "sqlite" and not _in_transaction(connection)


def _in_transaction(connection: Connection) -> bool:
    driver: Any = connection.connection.driver_connection
    return bool(driver.in_transaction)


def _autocommit(connection: Connection) -> bool | None:
    """Return the driver's `autocommit` (Python 3.12), or None in its legacy mode."""
    if sys.version_info < (3, 12):
        return None
    driver: Any = connection.connection.driver_connection
    if isinstance(driver, sqlite3.Connection):
        mode = getattr(driver, "autocommit", None)
    else:
        adapted: Any = connection.connection.dbapi_connection
        # aiosqlite does not show it, and it may be read on the connection's own thread only.
        mode = adapted.run_async(_read_autocommit)
    return mode if isinstance(mode, bool) else None


async def _read_autocommit(driver: Any) -> object:
    return await driver._execute(lambda: getattr(driver._conn, "autocommit", None))  # noqa: SLF001
