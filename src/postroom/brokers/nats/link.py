"""The connections of one broker object: for publishing, and for all else."""

import asyncio
from collections.abc import Awaitable, Callable

from postroom.brokers.link import OnDemand
from postroom.brokers.nats.api import APPLY, Api
from postroom.brokers.nats.connection import Connection, Options, open_connection
from postroom.brokers.nats.publishing import Publishing
from postroom.brokers.nats.refusals import Answers
from postroom.errors import BrokerUnavailable


class Link(OnDemand[Connection]):
    """A connection to JetStream."""

    def __init__(self, options: Options, name: str) -> None:
        """Connect by these options, under a name that operators see."""
        super().__init__(lambda: open_connection(options, name), patience=options.connect_timeout)
        self._options = options

    async def api(self) -> Api:
        """Return what asks JetStream. Raises BrokerUnavailable."""
        patience = self._options.connect_timeout.total_seconds()
        return Api(await self.connection(), timeout=patience)


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
