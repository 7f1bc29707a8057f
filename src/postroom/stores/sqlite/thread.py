"""A thread with a connection of its own, where SQLite may block without stopping the loop."""

import asyncio
import sqlite3
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")

_ABANDONED: list[sqlite3.Connection] = []


class ConnectionThread:
    """Runs work on one connection, one piece after another, in the order it was given.

    Work that has begun goes on to its end although its caller was cancelled, so no transaction
    is ever left half done; the next piece waits for it.
    """

    def __init__(self, name: str, path: Path, connect: Callable[[], sqlite3.Connection]) -> None:
        """Name the thread; `connect` runs on it when work arrives and there is a new file."""
        self._path = path
        self._place: tuple[int, int] | None = None
        self.files = 0
        """How many files were opened, one in the place of the other; for work on the thread."""
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

    @property
    def replaced(self) -> bool:
        """Whether the file that was opened is not the one that is there now."""
        return self._connection is not None and _place_of(self._path) != self._place

    def abandon(self) -> None:
        """Forget the connection unclosed, in the child of a fork: it belongs to the parent."""
        if self._connection is not None:
            _ABANDONED.append(self._connection)
            self._connection = None

    async def close(self) -> None:
        """Wait for the work that was given, close the connection and end the thread."""
        try:
            await asyncio.wrap_future(self._executor.submit(self.drop))
        finally:
            self._executor.shutdown(wait=False)

    def _with_connection(self, work: Callable[[sqlite3.Connection], T]) -> T:
        if self.replaced:
            self.drop()
        if self._connection is None:
            self._connection = self._connect()
            place = _place_of(self._path)
            self.files += place != self._place
            self._place = place
        return work(self._connection)


def _place_of(path: Path) -> tuple[int, int] | None:
    """Tell one file from another that took its place; None where there is none."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino
