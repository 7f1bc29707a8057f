"""Tills and hands on asyncpg."""

import re
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    asynccontextmanager,
    contextmanager,
    suppress,
)
from dataclasses import dataclass
from datetime import timedelta
from itertools import count
from typing import Any

import asyncpg

from postroom.connections import asyncpg_transactions
from postroom.errors import NoTransaction
from postroom.lab.database import Rows, Unusable, Violated, Write
from postroom.lab.databases.line import Line
from postroom.lab.databases.part import part
from postroom.message import Message
from postroom.outbox import Outbox
from postroom.store import Writer

LOST = (
    asyncpg.PostgresConnectionError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,
    OSError,
)
"""What asyncpg raises when the connection has gone; some of it means mistakes too."""
CONNECT = 3.0
"""Seconds that it may take to connect."""
ANSWER = 4.0
"""Seconds that a statement of a consumer may take: a dead wire says nothing for ever."""
_AT_ONCE = 8
"""Connections of a consumer: as many as it handles messages at once."""


class AsyncpgTill:
    """Takes orders on a connection of asyncpg."""

    client = "asyncpg"

    def __init__(self, address: str, begin: str, store: Writer, line: Line) -> None:
        """Connect at the first transaction; `begin` begins one."""
        self._address = address
        self._begin = begin
        self._outbox = Outbox(store)
        self._line = line
        self._connection: Any = None

    def begin(self) -> None:
        """Begin a transaction."""
        with translated():
            self._line.run(self._start())

    def commit(self) -> None:
        """Commit it."""
        with translated():
            self._line.run(self._connection.execute("COMMIT"))

    def rollback(self) -> None:
        """Undo what is not committed."""
        connection = self._connection
        if connection is None or connection.is_closed() or not connection.is_in_transaction():
            return
        with suppress(asyncpg.PostgresError, *LOST):
            self._line.run(connection.execute("ROLLBACK"))

    def savepoint(self) -> AbstractContextManager[None]:
        """Run a part of the transaction that is undone by itself when it raises."""
        return part(self.rows)

    def rows(self, sql: str, *values: object) -> Rows:
        """Run a statement; return its rows, if it has any."""
        with translated():
            rows: Rows = self._line.run(self._connection.fetch(numbered(sql), *values))
            return rows

    def put(self, event: object) -> Message:
        """Put an event into the outbox, in the transaction."""
        with translated():
            (message,) = self._line.run(self._outbox.put(self._connection, event))
            return message

    def close(self) -> None:
        """Disconnect."""
        connection, self._connection = self._connection, None
        if connection is not None:
            self._line.run(_close(connection))

    async def _start(self) -> None:
        if self._connection is None or self._connection.is_closed():
            self._connection = await connect(self._address)
        try:
            await self._connection.execute(self._begin)
        except LOST:
            self._connection.terminate()
            raise


@dataclass(frozen=True, slots=True)
class AsyncpgHands:
    """Coroutine functions on connections of an asyncpg pool."""

    begin: Callable[[], AbstractAsyncContextManager[Any]]

    client = "asyncpg"
    awaits = True

    @staticmethod
    @asynccontextmanager
    async def opened(address: str, local: str) -> AsyncIterator["AsyncpgHands"]:
        """Give hands; `local` is said at the beginning of each transaction."""
        pool = await asyncpg.create_pool(
            address,
            min_size=0,
            max_size=_AT_ONCE,
            statement_cache_size=0,
            timeout=CONNECT,
            command_timeout=ANSWER,
        )
        transactions = asyncpg_transactions(pool, patience=timedelta(seconds=CONNECT))

        @asynccontextmanager
        async def begin() -> AsyncIterator[Any]:
            async with transactions() as connection:
                await connection.execute(local)
                yield connection

        try:
            yield AsyncpgHands(begin)
        finally:
            pool.terminate()

    async def write(self, connection: Any, writes: Sequence[Write]) -> None:
        """Run the statements in the transaction."""
        for sql, values in writes:
            await connection.execute(numbered(sql), *values)


async def connect(address: str, **settings: Any) -> Any:
    """Return a connection that leaves nothing prepared in its session."""
    return await asyncpg.connect(address, timeout=CONNECT, statement_cache_size=0, **settings)


def numbered(sql: str) -> str:
    """Return the statement with `$1`, `$2`, … for its question marks."""
    numbers = count(1)
    return re.sub(r"\?", lambda _: f"${next(numbers)}", sql)


@contextmanager
def translated() -> Iterator[None]:
    """Raise what the lab knows for what asyncpg raises."""
    try:
        yield
    except asyncpg.IntegrityConstraintViolationError as error:
        raise Violated(str(error)) from error
    except asyncpg.SyntaxOrAccessError:
        raise
    except (asyncpg.PostgresError, *LOST) as error:
        raise Unusable(f"{type(error).__name__}: {error}") from error
    except NoTransaction as error:
        raise Unusable(error.reason) from error


async def _close(connection: Any) -> None:
    connection.terminate()
