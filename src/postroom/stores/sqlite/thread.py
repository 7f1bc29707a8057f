"""A thread with a connection of its own, where SQLite may block without stopping the loop."""

import asyncio
import sqlite3
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")


class ConnectionThread:
    """Runs work on one connection, one piece after another, in the order it was given.

    Work that has begun goes on to its end although its caller was cancelled, so no transaction
    is ever left half done; the next piece waits for it.
    """

    def __init__(self, name: str, connect: Callable[[], sqlite3.Connection]) -> None:
        """Name the thread; `connect` runs on it when the first work arrives."""
        self._connect = connect
        self._connection: sqlite3.Connection | None = None
        self._executor = ThreadPoolExecutor(1, thread_name_prefix=name)

    async def run(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Return what `work` returns for the connection, connecting first where needed."""
        return await asyncio.wrap_future(self._executor.submit(self._with_connection, work))

    def drop(self) -> None:
        """Close the connection, from work on this thread: the next work opens a new one."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    async def close(self) -> None:
        """Wait for the work that was given, close the connection and end the thread."""
        try:
            await asyncio.wrap_future(self._executor.submit(self.drop))
        finally:
            self._executor.shutdown(wait=False)

    def _with_connection(self, work: Callable[[sqlite3.Connection], T]) -> T:
        if self._connection is None:
            self._connection = self._connect()
        return work(self._connection)
