"""Postroom: puts a store, a broker and the steps together, and runs them."""

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from secrets import token_hex
from types import TracebackType
from typing import Self

from postroom.broker import Broker
from postroom.consumer import Consumer
from postroom.desk import Desk
from postroom.drivers import open_broker, open_store
from postroom.events import Observer
from postroom.outbox import Outbox, SyncOutbox
from postroom.relay import Relay
from postroom.route import Routes
from postroom.settings import Settings
from postroom.store import Store


class Postroom:
    """All parts of one process, made from one `Settings`.

    Nothing connects before `async with`; the outboxes work without it, because they use the
    caller's own connection. Signals are left to the program.

        async with Postroom.from_settings() as postroom:
            async with postroom.running_relay():
                ...
    """

    def __init__(
        self,
        settings: Settings | None = None,
        *,
        store: Store | None = None,
        broker: Broker | None = None,
        observers: Iterable[Observer] = (),
        actor: str = "",
    ) -> None:
        """Take the drivers that the settings name, unless they are given ready made.

        `actor` is the name under which the desk writes down what people change.
        """
        self.settings = settings or Settings()
        self.observers = tuple(observers)
        self.routes = Routes(self.settings.routes)
        self.store: Store = store or open_store(self.settings.store)
        self.broker: Broker = broker or open_broker(self.settings.broker)
        limits = self.settings.limits
        self.outbox = Outbox(self.store, routes=self.routes, limits=limits)
        self.sync_outbox = SyncOutbox(self.store, routes=self.routes, limits=limits)
        self.desk = Desk(self.store, actor=actor, observers=self.observers)
        self._opened = AsyncExitStack()

    @classmethod
    def from_settings(
        cls, path: Path | str | None = None, *, observers: Iterable[Observer] = ()
    ) -> Self:
        """Read `postroom.toml` and the environment as `Settings.load` does."""
        return cls(Settings.load(path), observers=observers)

    async def __aenter__(self) -> Self:
        """Open the store and the broker; they belong to this object from now on."""
        async with AsyncExitStack() as opened:
            await self.store.open()
            opened.push_async_callback(self.store.close)
            await self.broker.open()
            opened.push_async_callback(self.broker.close)
            self._opened = opened.pop_all()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Close both."""
        await self._opened.aclose()

    def relay(self, *, name: str | None = None) -> Relay:
        """Return a relay for all routes, with the options of the settings.

        A random part is added to `name`: two relays of one name would believe in the same lease.
        """
        return Relay(
            self.store,
            self.broker,
            routes=self.routes,
            options=self.settings.relay,
            observers=self.observers,
            name=None if name is None else f"{name}-{token_hex(4)}",
        )

    async def run_relay(self, stop: asyncio.Event | None = None) -> None:
        """Relay until `stop` is set, or for ever; gives the lanes back at the end."""
        await self.relay().run(stop or asyncio.Event())

    async def run_consumer(self, consumer: Consumer, stop: asyncio.Event | None = None) -> None:
        """Consume from the broker until `stop` is set, or for ever."""
        await consumer.run(self.broker, stop or asyncio.Event())

    @asynccontextmanager
    async def running_relay(self) -> AsyncIterator[Relay]:
        """Relay in the background of a program that does something else, such as a web app.

        The relay ends cleanly when the block does. If it fails before, its error is raised at
        the end of the block; until then the messages wait in the outbox for another relay.

            @asynccontextmanager
            async def lifespan(app):
                async with Postroom.from_settings() as postroom, postroom.running_relay():
                    yield
        """
        stop = asyncio.Event()
        relay = self.relay()
        task = asyncio.create_task(relay.run(stop), name="postroom relay")
        try:
            yield relay
        finally:
            stop.set()
            await task
