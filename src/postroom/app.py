"""Postroom: puts a store, a broker and the steps together, and runs them."""

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from secrets import token_hex
from types import TracebackType
from typing import Self

from postroom._signals import stopped_by_signals
from postroom._tasks import task_group
from postroom.broker import Broker
from postroom.consumer import Consumer
from postroom.desk import Desk
from postroom.drivers import broker_of, store_of
from postroom.events import Observer
from postroom.observe.logs import LogObserver
from postroom.outbox import Outbox, SyncOutbox
from postroom.relay import Relay
from postroom.route import Routes
from postroom.settings import Settings
from postroom.store import Store


class Postroom:
    """All parts of one process, made from one `Settings`.

    Nothing connects before `async with`; the outboxes work without it, because they use the
    caller's own connection. Signals are left to the program, except by `serve`.

        async with Postroom.from_settings() as postroom:
            await postroom.serve(billing)
    """

    def __init__(
        self,
        settings: Settings | None = None,
        *,
        store: Store | None = None,
        broker: Broker | None = None,
        observers: Iterable[Observer] | None = None,
        actor: str = "",
    ) -> None:
        """Take the drivers that the settings name, unless they are given ready made.

        Unless observers are given, what happens is logged to the logger `postroom`; Python shows
        its warnings and errors by default. `actor` is the name under which the desk writes down
        what people change.
        """
        self.settings = settings or Settings()
        self.observers = (LogObserver(),) if observers is None else tuple(observers)
        self.routes = Routes(self.settings.routes)
        self.store: Store = store or store_of(self.settings)
        self.broker: Broker = broker or broker_of(self.settings)
        limits = self.settings.limits
        self.outbox = Outbox(self.store, routes=self.routes, limits=limits)
        self.sync_outbox = SyncOutbox(self.store, routes=self.routes, limits=limits)
        self.desk = Desk(self.store, actor=actor, observers=self.observers)
        self._opened = AsyncExitStack()

    @classmethod
    def from_settings(
        cls, path: Path | str | None = None, *, observers: Iterable[Observer] | None = None
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
        """Consume from the broker until `stop` is set, or for ever.

        The consumer follows the routes of the settings, unless it was made with its own.
        """
        consumer.follow(self.routes)
        consumer.observe(*self.observers)
        await consumer.run(self.broker, stop or asyncio.Event())

    async def serve(self, *consumers: Consumer) -> None:
        """Run a relay and these consumers until SIGTERM or Ctrl-C, and end them in order.

        A second signal within a second says the same, because some senders signal the process and
        its group; a later one has its usual effect. If one of them fails, the others are ended
        and its error is raised.
        """
        stop = asyncio.Event()
        with stopped_by_signals(stop):
            async with task_group() as group:
                group.create_task(self.run_relay(stop))
                for consumer in consumers:
                    group.create_task(self.run_consumer(consumer, stop))

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
