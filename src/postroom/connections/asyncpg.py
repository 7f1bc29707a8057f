"""Connections of asyncpg, single or from a pool."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Generator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Protocol
from weakref import WeakKeyDictionary

from postroom.connections.dbapi import CLOSED
from postroom.connections.paramstyle import bind
from postroom.errors import NoTransaction, StoreUnavailable
from postroom.statement import Statement

if TYPE_CHECKING:
    import asyncpg

_NOT_BEGUN = (
    "the asyncpg connection is not in a transaction, so the message would be committed alone; "
    "use `async with connection.transaction():`"
)
_PATIENCE = timedelta(seconds=30)
_FAREWELL = 5.0
"""Seconds that a rollback may take before the connection is taken for lost."""


class AsyncpgConnection(Protocol):
    """An open `asyncpg.Connection`, also one that `pool.acquire()` has given."""

    def is_in_transaction(self) -> bool:
        """Whether a transaction is open."""
        ...

    def is_closed(self) -> bool:
        """Whether the connection was closed or lost."""
        ...

    def execute(self, query: str, *args: Any) -> Awaitable[str]:
        """Run a statement; returns its command tag."""
        ...


class AsyncpgPool(Protocol):
    """An `asyncpg.Pool`."""

    def __await__(self) -> Generator[Any, Any, Any]:
        """Open it; one that was open or closed already stays as it is."""
        ...

    def acquire(self, *, timeout: float | None = None) -> Awaitable[Any]:
        """Return a connection once one is free."""
        ...

    def release(self, connection: Any, *, timeout: float | None = None) -> Awaitable[None]:
        """Take a connection back."""
        ...


async def run(connection: AsyncpgConnection, statement: Statement) -> int:
    """Run the statement once for each row; return how many rows that affected."""
    sql, rows = bind(statement, "numeric_dollar")
    if len(rows) == 1:
        return _affected(await connection.execute(sql, *rows[0]))
    tags = [await connection.execute(sql, *row) for row in rows]
    return sum(_affected(tag) for tag in tags)


async def require(connection: AsyncpgConnection) -> None:
    """Raise `NoTransaction` unless a transaction is open.

    One that has failed cannot be told from one that has not, before a statement is tried.
    """
    try:
        # One that was terminated cannot even be asked whether a transaction is open.
        closed = connection.is_closed()
        begun = not closed and connection.is_in_transaction()
    except Exception as error:
        # Here, because an import takes longer than both questions.
        from asyncpg import InterfaceError

        if not isinstance(error, InterfaceError):
            raise
        raise NoTransaction(
            "the connection was given back to its pool, or lost; put the message before that"
        ) from error
    if closed:
        raise NoTransaction(CLOSED)
    if not begun:
        raise NoTransaction(_NOT_BEGUN)


def asyncpg_transactions(
    pool: AsyncpgPool | Callable[[], AsyncpgPool],
    *,
    patience: timedelta = _PATIENCE,
    **options: Any,
) -> "Callable[[], AbstractAsyncContextManager[asyncpg.Connection]]":
    """Return a function that opens a transaction on a connection of the pool, for `async with`.

    Each `async with begin() as connection:` commits at the end, rolls back on an error, and gives
    the connection back. It raises StoreUnavailable where the pool has no connection to give for
    so long (`patience`), or the connection was lost. `options` go to `connection.transaction`,
    such as `isolation="serializable"`.

    A pool that nobody has opened yet is opened by the first transaction. `pool` may also be a
    function that makes one, such as `lambda: asyncpg.create_pool(...)`: it is called on the event
    loop that uses the pool, which a module that is imported before does not have.
    """
    pools = _Pools(pool)

    @asynccontextmanager
    async def begin() -> AsyncIterator[Any]:
        opened = await pools.opened()
        connection = await _acquired(opened, patience)
        try:
            async with _transaction(connection, options):
                yield connection
        finally:
            await _released(opened, connection)

    return begin


class _Pools:
    """The pool, open: the one given, or one of each event loop by the function given."""

    def __init__(self, pool: AsyncpgPool | Callable[[], AsyncpgPool]) -> None:
        self._pool = pool
        self._turns: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Lock]
        self._turns = WeakKeyDictionary()
        self._opened: WeakKeyDictionary[asyncio.AbstractEventLoop, AsyncpgPool]
        self._opened = WeakKeyDictionary()

    async def opened(self) -> AsyncpgPool:
        loop = asyncio.get_running_loop()
        if (found := self._opened.get(loop)) is not None:
            return found
        async with self._turns.setdefault(loop, asyncio.Lock()):
            if (found := self._opened.get(loop)) is None:
                found = self._pool() if callable(self._pool) else self._pool
                await _open(found, loop)
                self._opened[loop] = found
            return found


async def _open(pool: Any, loop: asyncio.AbstractEventLoop) -> None:
    """Open a pool that nobody has opened, without a connection yet.

    asyncpg would close it for good where the first connection fails, and keep it on the loop that
    was there when it was made; its only way to say otherwise is at its making.
    """
    if not getattr(pool, "_initialized", True) and not getattr(pool, "_initializing", False):
        for name, value in (("_initsize", 0), ("_loop", loop)):
            if hasattr(pool, name):
                setattr(pool, name, value)
    from asyncpg import InterfaceError

    if hasattr(pool, "__await__"):
        try:
            await pool
        except InterfaceError as error:
            raise StoreUnavailable(f"the pool gives no connection: {error}") from error


async def _acquired(pool: AsyncpgPool, patience: timedelta) -> Any:
    from asyncpg import InterfaceError

    try:
        return await pool.acquire(timeout=patience.total_seconds())
    except TimeoutError as error:
        raise StoreUnavailable(
            f"the pool gave no connection within {patience.total_seconds():g} s"
        ) from error
    except (OSError, InterfaceError) as error:
        raise StoreUnavailable(f"the pool gives no connection: {error}") from error


async def _released(pool: AsyncpgPool, connection: Any) -> None:
    from asyncpg import InterfaceError, InternalClientError, PostgresError

    # The transaction is over; what a lost connection says at its end changes nothing.
    with suppress(OSError, InterfaceError, InternalClientError, PostgresError):
        await pool.release(connection, timeout=_FAREWELL)


@asynccontextmanager
async def _transaction(connection: Any, options: dict[str, Any]) -> AsyncIterator[None]:
    from asyncpg import InterfaceError, InternalClientError

    transaction = connection.transaction(**options)
    await transaction.start()
    try:
        yield
    except BaseException as error:
        alive = await _rolled_back(connection, transaction)
        own = InterfaceError | InternalClientError | TimeoutError | NoTransaction
        if not alive and isinstance(error, own):
            raise StoreUnavailable("the connection to the database was lost") from error
        raise
    await transaction.commit()


async def _rolled_back(connection: Any, transaction: Any) -> bool:
    """Roll back, and return whether the connection was there to do it."""
    from asyncpg import InterfaceError, InternalClientError, PostgresError

    try:
        if connection.is_closed():
            return False
        async with asyncio.timeout(_FAREWELL):
            await transaction.rollback()
    except (OSError, InterfaceError, InternalClientError, PostgresError):
        # A pool takes a connection that was lost out of its proxy, which then refuses everything.
        with suppress(InterfaceError):
            connection.terminate()
        return False
    return True


def _affected(tag: str) -> int:
    """Return the number at the end of a command tag, such as `INSERT 0 3`."""
    count = tag.rpartition(" ")[2]
    return int(count) if count.isdigit() else 0
