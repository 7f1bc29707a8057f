"""A connection that is there when it is needed: made on demand, and again after it was lost."""

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Generic, Protocol, TypeVar

from postroom.errors import BrokerUnavailable


class Connection(Protocol):
    """What a driver connects by."""

    @property
    def ended(self) -> object | None:
        """How it has ended; None while it can be used."""
        ...

    async def close(self) -> None:
        """Disconnect in good order; the caller limits the time."""
        ...

    def abort(self, reason: str) -> None:
        """End it at once."""
        ...


C = TypeVar("C", bound=Connection)


class OnDemand(Generic[C]):
    """One connection at a time; whoever needs it while there is none makes it."""

    def __init__(self, connect: Callable[[], Awaitable[C]], *, patience: timedelta) -> None:
        """Connect by that; a good-bye takes no longer than `patience`."""
        self._connect = connect
        self._patience = patience
        self._turn = asyncio.Lock()
        self._closed = False
        self.current: C | None = None
        """The last one that was made."""

    async def connection(self) -> C:
        """Return the connection, made if need be. Raises BrokerUnavailable."""
        async with self._turn:
            if self._closed:
                raise BrokerUnavailable("the broker was closed")
            if self.current is None or self.current.ended is not None:
                self.current = None
                self.current = await self._connect()
            return self.current

    async def close(self) -> None:
        """Disconnect, for good."""
        self._closed = True
        connection, self.current = self.current, None
        if connection is not None:
            try:
                async with asyncio.timeout(self._patience.total_seconds()):
                    await connection.close()
            except TimeoutError:
                connection.abort("the broker did not answer the good-bye")
