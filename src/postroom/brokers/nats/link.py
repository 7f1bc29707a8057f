"""A connection that is there when it is needed: made on demand, and again after it was lost."""

import asyncio
from collections.abc import Awaitable, Callable

from postroom.brokers.nats.api import APPLY, Api
from postroom.brokers.nats.connection import Connection, Options, open_connection
from postroom.brokers.nats.publishing import Publishing
from postroom.brokers.nats.refusals import Answers
from postroom.errors import BrokerUnavailable


class Link:
    """One connection at a time; whoever needs it while there is none makes it."""

    def __init__(self, options: Options, name: str) -> None:
        """Connect by these options, under a name that operators see."""
        self._options = options
        self._name = name
        self._turn = asyncio.Lock()
        self._closed = False
        self.current: Connection | None = None

    async def connection(self) -> Connection:
        """Return the connection, made if need be. Raises BrokerUnavailable."""
        async with self._turn:
            if self._closed:
                raise BrokerUnavailable("the broker was closed")
            if self.current is None or self.current.ended is not None:
                self.current = None
                self.current = await open_connection(self._options, self._name)
            return self.current

    async def api(self) -> Api:
        """Return what asks JetStream. Raises BrokerUnavailable."""
        patience = self._options.connect_timeout.total_seconds()
        return Api(await self.connection(), timeout=patience)

    async def close(self) -> None:
        """Disconnect."""
        self._closed = True
        connection, self.current = self.current, None
        if connection is not None:
            try:
                async with asyncio.timeout(self._options.connect_timeout.total_seconds()):
                    await connection.close()
            except TimeoutError:
                connection.abort("the server did not take the good-bye")


class PublishingLink(Link):
    """A connection for publishing only: what a batch writes holds up no acknowledgement."""

    def __init__(
        self,
        options: Options,
        name: str,
        *,
        stream: str,
        window: int,
        prepare: Callable[[Api], Awaitable[None]],
    ) -> None:
        """Publish to that stream, with so many messages in flight.

        `prepare` is called with each new connection, before anything is published.
        """
        super().__init__(options, name)
        self._stream = stream
        self._window = window
        self._prepare = prepare
        self._opening = asyncio.Lock()
        self._publishing: Publishing | None = None

    async def publishing(self) -> Publishing:
        """Return what publishes, on a stream that is there. Raises BrokerUnavailable."""
        connection = await self.connection()
        async with self._opening:
            found = self._publishing
            if found is None or found.connection is not connection:
                api = await self.api()
                await self._prepare(api)
                await self.look(api)
                found = Publishing(connection, Answers(self._stream), window=self._window)
                self._publishing = found
            return found

    async def probe(self) -> None:
        """Return once a publish has a chance. Raises BrokerUnavailable."""
        await self.publishing()
        await self.look(await self.api())

    async def look(self, api: Api) -> list[str]:
        """Return the subjects of the stream. Raises BrokerUnavailable where it is missing."""
        found = await api.stream(self._stream)
        if found is None:
            raise BrokerUnavailable(f"the stream {self._stream!r} does not exist; {APPLY}")
        return list(found["config"].get("subjects") or [])
