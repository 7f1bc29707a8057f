"""A connection on which the read is prepared, where no pooler stands between.

A relay that sleeps is woken for a message or two. Then parsing and planning the read, beginning
and committing take longer than running it. Here all that is left is one round trip.
"""

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from typing import Any, TypeVar

from postroom.connections.sqlstates import sqlstate
from postroom.stores.postgresql.database import Database, Doing
from postroom.stores.postgresql.errors import CLIENT_ERRORS
from postroom.stores.postgresql.work import Work

T = TypeVar("T")

QUERY = "read"
PAUSE = 10.0
"""Seconds between two tries to open it."""
_CANCELLED = "57014"
_MILLISECOND = timedelta(milliseconds=1)
_Wrap = Callable[[Any, float, dict[str, Any]], Work]


class Reader:
    """A connection of its own, outside the pool, with settings of its own.

    They stay in the session, and so does the prepared read; so it is used only if the session is
    ours alone. Whatever goes wrong with it, the pool takes its place.
    """

    def __init__(self, database: Database, wrap: _Wrap) -> None:
        """Read from that database; `wrap` makes a piece of work of connection and statements."""
        self._database = database
        self._wrap = wrap
        self._connection: Any = None
        self._statements: dict[str, Any] = {}
        self._turn = asyncio.Lock()
        self._try_at = 0.0
        self._closed = False

    @property
    def ready(self) -> bool:
        """Whether the next read goes through it."""
        return self._connection is not None

    async def read(self, doing: Doing[T]) -> T:
        """Return what `doing` returns, which runs the one query."""
        connection = self._connection
        if connection is None or self._turn.locked() or not self._database.checked:
            return await self._database.read(doing)
        async with self._turn:
            try:
                seconds = self._database.patience.total_seconds() + 1
                return await doing(self._wrap(connection, seconds, self._statements))
            except CLIENT_ERRORS as error:
                self.drop()
                if isinstance(error, TimeoutError) or sqlstate(error) == _CANCELLED:
                    # Another try would take as long again.
                    raise await self._database.explained(error) from error
            except BaseException:
                self.drop()
                raise
        return await self._database.read(doing)

    async def open(self) -> None:
        """Open it if that is possible and worth another try."""
        if self.ready or self._closed or time.monotonic() < self._try_at:
            return
        self._try_at = time.monotonic() + PAUSE
        connection = None
        try:
            connection = await self._database.connect_for_work()
            work = self._wrap(connection, self._database.patience.total_seconds(), {})
            if await work.value("backend") != connection.get_server_pid():
                # A pooler; it will not go away.
                self._closed = True
                return
            await work.rows("own-session", timeout=str(self._database.patience // _MILLISECOND))
            self._statements = {QUERY: await work.prepare(QUERY)}
            self._connection, connection = connection, None
        except CLIENT_ERRORS:
            return
        finally:
            if connection is not None:
                connection.terminate()

    def drop(self) -> None:
        """End the connection; another one is opened at some time."""
        connection, self._connection = self._connection, None
        if connection is not None:
            with suppress(*CLIENT_ERRORS):
                connection.terminate()

    def close(self) -> None:
        """End the connection for good."""
        self._closed = True
        self.drop()
