"""The open file: who runs work on it, who watches it for commits, what its errors mean."""

import asyncio
import os
import sqlite3
import threading
from collections.abc import Awaitable, Callable
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import TypeVar

from postroom.errors import SchemaMismatch, StoreError, StoreUnavailable
from postroom.stores.sqlite.errors import code_of, needs_reconnect, translate
from postroom.stores.sqlite.thread import ConnectionThread
from postroom.stores.sqlite.work import Work

_POLL = 0.002
_POLLS_PER_CHECK = 100
"""After so many polls the watcher looks whether another file took the place of its own."""
_VERSION = "pragma data_version"

T = TypeVar("T")


class File:
    """One thread for statements, and one that looks for the commits of others."""

    def __init__(
        self,
        path: Path,
        busy: timedelta,
        work: Callable[[sqlite3.Connection], Work],
        check: Callable[[Work], None],
    ) -> None:
        """Name the file; `work` wraps a connection, `check` raises where the schema is wrong."""
        self._path = path
        self._busy = busy
        self._work = work
        self._check = check
        self._checked = False
        self._worker: ConnectionThread | None = None
        self._watcher: ConnectionThread | None = None
        self._closing = threading.Event()
        self._seen: int | None = None
        self._watched: int | None = None
        self._pid = os.getpid()
        self._known = False

    async def open(self) -> None:
        """Start the threads and connect; a file that does not exist yet is no error."""
        self._abandon_if_forked()
        if self._worker is not None:
            return
        self._closing = threading.Event()
        self._known = False
        self._worker = ConnectionThread("postroom-sqlite", self._path, self._reconnect)
        self._watcher = ConnectionThread("postroom-sqlite-watch", self._path, self._connect)
        try:
            with suppress(SchemaMismatch):
                self._seen = await self._version()
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        """Let the running work end, disconnect, and end the threads; idempotent."""
        self._abandon_if_forked()
        self._closing.set()
        threads = [thread for thread in (self._worker, self._watcher) if thread is not None]
        self._worker = self._watcher = None
        for thread in threads:
            await thread.close()

    @property
    def number(self) -> int:
        """Which file this is of those that took each other's place; for work on the thread."""
        return 0 if self._worker is None else self._worker.files

    def create(self) -> None:
        """Make an empty file where there is none; blocks."""
        if self._path.exists():
            return
        try:
            os.close(os.open(self._path, os.O_CREAT | os.O_RDWR, 0o666))
        except OSError as error:
            raise StoreUnavailable(
                f"cannot create {self._path}: {error.strerror}; "
                "make the directory and check its permissions"
            ) from error

    async def run(self, work: Callable[[Work], T], *, checked: bool = True) -> T:
        """Return what `work` returns; errors of SQLite come translated."""
        thread = self._opened(self._worker)

        def guarded(connection: sqlite3.Connection) -> T:
            unit = self._work(connection)
            try:
                if checked and not self._checked:
                    self._check(unit)
                    self._checked = True
                return work(unit)
            except sqlite3.Error as error:
                if needs_reconnect(error):
                    thread.drop()
                    self._seen = None
                raise self._explained(error, unit if checked else None) from error

        return await thread.run(guarded)

    async def changed(self, sleep: Callable[[], Awaitable[None]]) -> None:
        """Return when another connection has committed since the last call, or `sleep` is over.

        The watcher sees every commit, ours too; the connection that made ours does not count
        them, so it decides.
        """
        if self._watched is None:
            await self._watch(threading.Event(), once=True)
        sleeping = asyncio.ensure_future(sleep())
        try:
            while not sleeping.done() and not self._closing.is_set():
                version = await self._version()
                if version != self._seen:
                    self._seen = version
                    return
                await self._watch_until(sleeping)
        finally:
            sleeping.cancel()
            await asyncio.gather(sleeping, return_exceptions=True)

    async def _watch_until(self, sleeping: "asyncio.Future[None]") -> None:
        enough = threading.Event()
        watching = asyncio.ensure_future(self._watch(enough))
        try:
            await asyncio.wait({watching, sleeping}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            enough.set()
            (failure,) = await asyncio.gather(watching, return_exceptions=True)
        if isinstance(failure, BaseException):
            raise failure

    async def _watch(self, enough: threading.Event, *, once: bool = False) -> None:
        thread, closing = self._opened(self._watcher), self._closing

        def poll(connection: sqlite3.Connection) -> None:
            polls = 0
            try:
                while not closing.is_set():
                    (version,) = connection.execute(_VERSION).fetchone()
                    if once or version != self._watched:
                        self._watched = version
                        return
                    if enough.wait(_POLL):
                        return
                    polls += 1
                    if polls % _POLLS_PER_CHECK == 0 and thread.replaced:
                        return
            except sqlite3.Error as error:
                thread.drop()
                raise translate(error, self._path, self._busy) from error

        await thread.run(poll)

    async def _version(self) -> int:
        return await self.run(
            lambda work: int(work.connection.execute(_VERSION).fetchone()[0]), checked=False
        )

    def _opened(self, thread: ConnectionThread | None) -> ConnectionThread:
        if thread is None:
            raise StoreError("the store is not open: await store.open() first")
        if self._pid != os.getpid():
            raise StoreError("the store was opened before the fork: open it in the child, too")
        return thread

    def _abandon_if_forked(self) -> None:
        """Forget what the parent of this process opened: its threads did not come along."""
        if self._pid == os.getpid():
            return
        for thread in (self._worker, self._watcher):
            if thread is not None:
                thread.abandon()
        self._worker = self._watcher = None
        self._seen = self._watched = None
        self._pid = os.getpid()

    def _reconnect(self) -> sqlite3.Connection:
        self._checked = False
        self._seen = None
        return self._connect()

    def _connect(self) -> sqlite3.Connection:
        if not self._path.parent.is_dir():
            raise StoreUnavailable(f"the directory {self._path.parent} does not exist: make it")
        if not self._path.exists():
            if self._known:
                raise StoreUnavailable(f"the database {self._path} was there and is gone")
            raise SchemaMismatch(f"there is no database at {self._path} yet: run `postroom init`")
        try:
            connection = sqlite3.connect(
                f"{self._path.as_uri()}?mode=rw",
                uri=True,
                timeout=self._busy.total_seconds(),
                isolation_level=None,
            )
            connection.execute("pragma synchronous = full")
            self._known = True
        except sqlite3.Error as error:
            raise translate(error, self._path, self._busy) from error
        return connection

    def _explained(self, error: sqlite3.Error, unit: Work | None) -> StoreError:
        """Return what to raise; a plain SQL error is mostly a table that is not there."""
        if unit is not None and code_of(error) == sqlite3.SQLITE_ERROR:
            self._checked = False
            try:
                with suppress(sqlite3.Error):
                    self._check(unit)
            except SchemaMismatch as mismatch:
                return mismatch
        return translate(error, self._path, self._busy)
