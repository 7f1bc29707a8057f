"""Wait for commits: a hint that saves waiting for the next poll, and nothing else."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Any

from postroom.errors import StoreUnavailable
from postroom.stores.postgresql.database import Database
from postroom.stores.postgresql.errors import CLIENT_ERRORS
from postroom.stores.postgresql.work import Work

SLEEP = 4.0
"""Seconds for which one word that we sleep holds; while it does, writers notify."""
ASK = 1.0
"""Seconds between two signs of life of the listening connection."""
REST = 0.01
"""Seconds from a word that woke us until we say again that we sleep.

The commits of a busy time share one word: each that has to give it pays for that.
"""
ANSWER = 2.0
"""Seconds for the answer; a connection whose packets are dropped says nothing for ever."""
_ASKED = 3
"""Times that a pooler is given the chance to show itself."""
_ECHO = "echo"
_LONGEST_PAUSE = 30.0
_POOLED = "%s is reached through a transaction pooler: there are no wake-ups, only polling"
_log = logging.getLogger(__name__)


class Listener:
    """A connection of its own, outside the pool, that hears when somebody commits.

    It mends itself. Behind a transaction pooler nothing can be heard: then it says so once, and
    waiting is nothing but the time-out.
    """

    def __init__(self, database: Database, work: Callable[[Any, float], Work]) -> None:
        """Listen to that database; `work` wraps the connection."""
        self._database = database
        self._work = work
        self._connection: Any = None
        self._sleep: Callable[[], Awaitable[Sequence[Any]]] = _nothing
        """Says that we sleep, on that connection."""
        self._channel = ""
        self._heard = asyncio.Event()
        self._echoed = asyncio.Event()
        self._asked_at = 0.0
        self._taken = False
        """Whether our word was taken back, and nobody has looked since it was given again."""
        self._rested_at = 0.0
        self._deaf = False
        self._closed = False
        self._pause = 1.0
        self._try_at = 0.0

    @property
    def deaf(self) -> bool:
        """Whether a pooler stands between, so that nothing is heard."""
        return self._deaf

    @property
    def hears(self) -> bool:
        """Whether it listens, on a connection that works."""
        return self._connection is not None

    async def wait(self, sleep: Callable[[], Awaitable[None]]) -> None:
        """Return when somebody has committed since the last call, or `sleep` is over.

        It returns at once where something may have been missed: writers notify only after they
        could see that we sleep. Whoever wakes us takes our word back. The caller looks at once,
        without waiting until it is given again; the next call gives it, and asks for another look:
        what is committed after that one is heard.
        """
        sleeping = asyncio.ensure_future(sleep())
        hearing = asyncio.ensure_future(self._heard.wait())
        try:
            while not (self._closed or sleeping.done()):
                if self._heard.is_set():
                    self._heard.clear()
                    self._taken = True
                    self._rested_at = time.monotonic() + REST
                    break
                if await self._missed():
                    break
                await asyncio.wait(
                    {sleeping, hearing}, timeout=ASK, return_when=asyncio.FIRST_COMPLETED
                )
        finally:
            for task in (sleeping, hearing):
                task.cancel()
            await asyncio.gather(sleeping, hearing, return_exceptions=True)

    def close(self) -> None:
        """End the connection, and every wait; for good."""
        self._closed = True
        self._drop()
        self._heard.set()

    async def _missed(self) -> bool:
        """Say that we sleep; return whether something may have been committed unheard."""
        if self._deaf:
            return False
        owed = self._taken
        if self._connection is None:
            if time.monotonic() < self._try_at or not await self._listen():
                return False
            owed = True
        elif not owed and time.monotonic() < self._asked_at + ASK:
            return False
        if self._taken:
            await asyncio.sleep(max(self._rested_at - time.monotonic(), 0))
        # Also where another relay has given its word: what was committed before that was not heard.
        owed = await self._ask() or owed
        self._taken = False
        return owed

    async def _ask(self) -> bool:
        """Renew the word that we sleep; return whether it had run out."""
        self._asked_at = time.monotonic()
        try:
            async with asyncio.timeout(ANSWER):
                rows = await self._sleep()
        except CLIENT_ERRORS:
            self._drop()
            return True
        except BaseException:
            self._drop()
            raise
        return bool(rows) and not rows[0][1]

    async def _listen(self) -> bool:
        """Open the connection; return whether it hears anything."""
        try:
            connection = await self._database.connect()
        except CLIENT_ERRORS:
            self._wait_longer()
            return False
        try:
            self._deaf = not await self._hears(connection)
            if not self._deaf:
                # Prepared, because it stands between a commit and the look for its messages.
                self._sleep = await self._work(connection, ANSWER).prepare_with(
                    "sleep", length=int(SLEEP * 1_000_000)
                )
        except (StoreUnavailable, *CLIENT_ERRORS):
            connection.terminate()
            self._wait_longer()
            return False
        except BaseException:
            connection.terminate()
            raise
        self._pause = 1.0
        if self._deaf:
            connection.terminate()
            _log.warning(_POOLED, self._database.place)
            return False
        self._connection = connection
        return True

    async def _hears(self, connection: Any) -> bool:
        """Listen, and return whether what others say arrives: not so behind a pooler."""
        work = self._work(connection, ANSWER)
        backend = await work.value("backend")
        direct = backend == connection.get_server_pid()
        if not direct and await self._shared(backend):
            return False
        self._channel = await work.value("channel")
        connection.add_termination_listener(self._ended)
        await connection.add_listener(self._channel, self._notified)
        return direct or await self._echoes()

    async def _shared(self, backend: int) -> bool:
        """Return whether the server's process of our connection works for another one too."""

        async def ask(work: Work) -> bool:
            return bool(await work.value("backend") == backend)

        return any([await self._database.read(ask) for _ in range(_ASKED)])

    async def _echoes(self) -> bool:
        """Return whether a word said through another connection arrives."""
        self._echoed.clear()

        async def say(work: Work) -> None:
            await work.value("notify", channel=self._channel, word=_ECHO)

        await self._database.write(say)
        with suppress(TimeoutError):
            async with asyncio.timeout(ANSWER):
                await self._echoed.wait()
        return self._echoed.is_set()

    def _notified(self, _connection: Any, _pid: int, _channel: str, word: str) -> None:
        (self._echoed if word == _ECHO else self._heard).set()

    def _ended(self, connection: Any) -> None:
        if connection is self._connection:
            self._connection = None
            self._heard.set()

    def _drop(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.terminate()

    def _wait_longer(self) -> None:
        self._try_at = time.monotonic() + self._pause
        self._pause = min(self._pause * 2, _LONGEST_PAUSE)


async def _nothing() -> Sequence[Any]:
    """Say nothing: there is no connection yet."""
    return ()
