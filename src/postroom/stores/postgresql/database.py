"""The connections to the database: short transactions with deadlines, and what errors mean."""

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

import asyncpg

from postroom._redact import redacted
from postroom._tasks import to_its_end
from postroom.errors import SchemaMismatch, StoreError
from postroom.stores.postgresql.errors import CLIENT_ERRORS, again, lost, schema_at_fault, translate
from postroom.stores.postgresql.work import Work

T = TypeVar("T")
Doing = Callable[[Work], Awaitable[T]]

_TRIES = 5
"""Of a transaction that met another (a deadlock, a serialization failure)."""
_MILLISECOND = timedelta(milliseconds=1)
_ARRAYS = (
    "select cast($1 as bigint[]), cast($2 as smallint[]), cast($3 as text[]),"
    " cast($4 as bytea[]), cast($5 as boolean[]), cast($6 as integer[])"
)
"""Every array that the queries send."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """How long the store waits, so that nothing ever hangs."""

    connect: timedelta = timedelta(seconds=5)
    """For a connection."""
    statement: timedelta = timedelta(seconds=5)
    """For one statement of a relay; keep it below half of the lease."""
    slow: timedelta = timedelta(seconds=60)
    """For one statement of a person (counting, searching, pruning, migrating)."""


class Database:
    """A few connections, each used for one short transaction at a time.

    Nothing stays behind in a session, so any pooler may stand between. Statements are not
    prepared by name, and each is planned for the table as it is now.
    """

    def __init__(
        self,
        dsn: str,
        sql: Mapping[str, str],
        *,
        size: int,
        patience: Patience,
        now: Callable[[], int | None],
    ) -> None:
        """Name the server; nothing is opened yet."""
        self.place = redacted(dsn)
        self._dsn = dsn
        self._sql = sql
        self._size = size
        self._patience = patience
        self._now = now
        self._pool: asyncpg.Pool | None = None
        self.on_lost: Callable[[], None] = lambda: None
        """Called when a connection ended: what was learned through it may be of another server."""
        self.check: Doing[None] = _unchecked
        """Raises SchemaMismatch where the tables are not those that this version needs."""
        self._checked = False

    async def open(self) -> None:
        """Connect; idempotent."""
        if self._pool is not None:
            return
        self._checked = False
        pool = asyncpg.create_pool(
            min_size=0,
            max_size=self._size,
            init=self._connected,
            reset=_leave_as_it_is,
            **self._arguments(),
        )
        try:
            await pool
            async with pool.acquire(timeout=self._patience.connect.total_seconds()):
                self._pool = pool
        except CLIENT_ERRORS as error:
            pool.terminate()
            raise translate(error, self.place) from error

    async def close(self) -> None:
        """Let running work end, and disconnect; idempotent."""
        pool, self._pool = self._pool, None
        if pool is None:
            return
        try:
            async with asyncio.timeout(self._patience.statement.total_seconds()):
                await pool.close()
        except (TimeoutError, *CLIENT_ERRORS):
            pool.terminate()

    async def connect(self) -> Any:
        """Return a connection outside the pool."""
        return await asyncpg.connect(**self._arguments())

    async def connect_for_work(self) -> Any:
        """Return a connection outside the pool, ready for the same work as those in it."""
        connection = await self.connect()
        await self._connected(connection)
        return connection

    @property
    def checked(self) -> bool:
        """Whether the tables were found to be those that this version needs."""
        return self._checked

    @property
    def patience(self) -> timedelta:
        """How long one statement may take."""
        return self._patience.statement

    async def read(self, work: Doing[T], *, slow: bool = False, checked: bool = True) -> T:
        """Return what `work` returns; it sees each statement's own state and changes nothing."""
        if checked:
            await self._ensure()
        return await self._run("begin-read", work, slow=slow)

    async def write(self, work: Doing[T], *, slow: bool = False, checked: bool = True) -> T:
        """Return what `work` returns once it is committed.

        A cancelled caller waits for the end: the work is done whole or not at all. Work that met
        another transaction is run again from its beginning.
        """
        if checked:
            await self._ensure()
        return await to_its_end(self._run("begin-write", work, slow=slow))

    async def _ensure(self) -> None:
        if self._pool is not None and not self._checked:
            await self._run("begin-read", self.check, slow=False)
            self._checked = True

    async def _run(self, begin: str, work: Doing[T], *, slow: bool) -> T:
        patience = self._patience.slow if slow else self._patience.statement
        for left in reversed(range(_TRIES)):
            try:
                return await self._transaction(begin, work, patience)
            except _NotBegun as error:
                if not left:
                    raise translate(error.cause, self.place) from error.cause
            except CLIENT_ERRORS as error:
                if again(error) and left:
                    await asyncio.sleep(random.uniform(0.001, 0.02))  # noqa: S311
                    continue
                raise await self.explained(error) from error
        raise AssertionError("unreachable")

    async def _transaction(self, begin: str, work: Doing[T], patience: timedelta) -> T:
        seconds = patience.total_seconds() + 1
        async with self._begun(self._begin(begin, patience), seconds) as connection:
            result = await work(Work(connection, self._sql, self._now(), seconds))
            await connection.execute("commit", timeout=seconds)
            return result

    @asynccontextmanager
    async def _begun(self, begin: str, seconds: float) -> AsyncIterator[Any]:
        """Give a connection with a transaction; end it, or the connection, on any error."""
        pool = self._open_pool()
        async with pool.acquire(timeout=self._patience.connect.total_seconds()) as connection:
            try:
                await self._start(connection, begin, seconds)
                yield connection
            except Exception as error:
                if isinstance(error, _NotBegun) or (
                    isinstance(error, CLIENT_ERRORS) and lost(error)
                ):
                    await self._give_up(pool, connection)
                elif not await _rolled_back(connection, seconds):
                    _end(connection)
                raise
            except BaseException:
                _end(connection)
                raise

    async def _start(self, connection: Any, begin: str, seconds: float) -> None:
        """Begin; a connection that has died since its last use is not the caller's concern."""
        try:
            await connection.execute(begin, timeout=seconds)
        except TimeoutError:
            raise
        except CLIENT_ERRORS as error:
            if lost(error):
                raise _NotBegun(error) from error
            raise

    def require_open(self) -> None:
        """Raise StoreError unless it is open."""
        self._open_pool()

    def _open_pool(self) -> Any:
        if self._pool is None:
            raise StoreError("the store is not open: await store.open() first")
        return self._pool

    async def _give_up(self, pool: Any, connection: Any) -> None:
        """End this connection, and the others as soon as nobody uses them."""
        _end(connection)
        with suppress(*CLIENT_ERRORS):
            await pool.expire_connections()

    async def _connected(self, connection: Any) -> None:
        # Before it first sends an array, asyncpg looks up its type and turns jit off meanwhile. In
        # a transaction where jit is off already it would stay off in the session, outside any
        # transaction behind a pooler in the session of somebody else.
        try:
            await connection.execute("begin")
            await connection.fetch(_ARRAYS, *[None] * _ARRAYS.count("$"))
            await connection.execute("commit")
        except BaseException:
            # Or asyncpg closes it, and waits for the server to answer that without a limit.
            _end(connection)
            raise
        connection.add_termination_listener(lambda _connection: self.on_lost())

    async def explained(self, error: BaseException) -> StoreError:
        """Return what the error means; looks at the tables where they may be at fault."""
        if schema_at_fault(error):
            self._checked = False
            try:
                await self._run("begin-read", self.check, slow=False)
            except SchemaMismatch as mismatch:
                return mismatch
        return translate(error, self.place)

    def _begin(self, name: str, patience: timedelta) -> str:
        statement = patience // _MILLISECOND
        short = self._patience.statement // _MILLISECOND
        return self._sql[name].format(statement=statement, lock=short // 2, idle=short)

    def _arguments(self) -> dict[str, Any]:
        return {
            "dsn": self._dsn,
            "timeout": self._patience.connect.total_seconds(),
            # For what asyncpg sends by itself: LISTEN, or the request to cancel a statement.
            "command_timeout": self._patience.statement.total_seconds() + 1,
            "statement_cache_size": 0,
        }


class _NotBegun(Exception):
    """Nothing was done: the connection was dead before the transaction began."""

    def __init__(self, cause: BaseException) -> None:
        super().__init__(str(cause))
        self.cause = cause


async def _unchecked(_work: Work) -> None:
    """Take the tables as they are."""


async def _leave_as_it_is(_connection: Any) -> None:
    """Do nothing when a connection goes back: nothing is ever left in a session."""


def _end(connection: Any) -> None:
    """End the connection; one that the server has ended is back in the pool already."""
    with suppress(asyncpg.InterfaceError):
        connection.terminate()


async def _rolled_back(connection: Any, seconds: float) -> bool:
    try:
        await connection.execute("rollback", timeout=seconds)
    except CLIENT_ERRORS:
        return False
    return True
