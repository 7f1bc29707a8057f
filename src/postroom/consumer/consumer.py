"""The consumer: take, apply, acknowledge."""

import asyncio
from collections.abc import Callable, Iterable
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from datetime import timedelta
from typing import Any, TypeVar, cast

from postroom import events
from postroom._clock import Clock, SystemClock
from postroom.broker import Delivery, Subscriber
from postroom.connections import outage
from postroom.consumer.applying import Applying, AsyncApplying, SyncApplying
from postroom.consumer.handlers import Handlers, is_async
from postroom.consumer.handling import Handling, Result, reason_of
from postroom.consumer.keys import KeyedWork
from postroom.consumer.trouble import Trouble
from postroom.errors import BrokerUnavailable, SchemaMismatch, SettingsError, printable
from postroom.events import Observer, Observers
from postroom.inbox import Inbox
from postroom.outbox import Outbox, SyncOutbox
from postroom.retry import Backoff, RetryPolicy
from postroom.route import Routes
from postroom.store import Writer

H = TypeVar("H", bound=Callable[[Any, Any], Any])
Begin = Callable[[], AbstractContextManager[Any] | AbstractAsyncContextManager[Any]]

_PROBE = Backoff(initial=timedelta(milliseconds=200), maximum=timedelta(seconds=10))


class Consumer:
    """Lets each message take effect once, in the user's own transaction.

        billing = Consumer("billing", begin=sqlite3_transactions("billing.db"), store=store)

        @billing.on(OrderPlaced)
        def invoice(order: OrderPlaced, context: Context[sqlite3.Connection]) -> None:
            context.connection.execute("insert into invoice values (?)", (order.order_id,))

    The inbox row is written in the transaction in which the handler runs; then it is committed,
    and only then the broker is told. A copy, also one in the same instant, has no second effect.
    """

    def __init__(  # noqa: PLR0913 - what can be said about a consumer
        self,
        name: str,
        *,
        begin: Begin,
        store: Writer,
        routes: Routes | None = None,
        retry: RetryPolicy | None = None,
        concurrency: int = 8,
        prefetch: int | None = None,
        probe: Backoff | None = None,
        observers: Iterable[Observer] = (),
        clock: Clock | None = None,
    ) -> None:
        """Name the consumer and say how its transactions begin.

        `name` is part of the inbox key and the broker's group: keep it for ever. `begin` returns
        a context manager that gives a connection or session in an open transaction, commits at
        its end and rolls back on an error: `engine.begin`, `sessionmaker.begin`, their async
        forms, `sqlite3_transactions(path)`. `store` is the kind of database where the inbox is.
        Without `routes` it follows those of the `Postroom` that runs it.
        At most `concurrency` handlers run at once; `prefetch` messages are taken ahead.
        `probe` says how often a broker or a database is tried that cannot be reached; by default
        after 0.2 s, then ever more seldom, up to 10 s.
        """
        if concurrency < 1:
            raise SettingsError("concurrency must be at least 1")
        self.name = name
        self._begin = begin
        self._store = store
        self._inbox = Inbox(store, name)
        self._routes = routes
        self._retry = retry or RetryPolicy()
        self._concurrency = concurrency
        self._prefetch = prefetch or concurrency * 8
        self._between_probes = probe or _PROBE
        self._observers = Observers(observers)
        self._clock = clock or SystemClock()
        self._handlers = Handlers()
        self._applying: Applying | None = None
        self._handling: Handling | None = None
        self._trouble: Trouble | None = None
        self._paused = False

    @property
    def topics(self) -> tuple[str, ...]:
        """The topics that it subscribes to."""
        return self._handlers.topics(self._routes or Routes())

    def on(
        self, *types: type | str, into: type | None = None, topic: str | None = None
    ) -> Callable[[H], H]:
        """Register a handler for classes that bear `@message`, or for names.

        It takes the event and a `Context` (an `AsyncContext` if it is a coroutine function).
        For a name the event is the `Message` itself, unless `into` says what to decode it to.
        `topic` is where such messages arrive, if that is not a topic named like the type.
        """

        def register(handler: H) -> H:
            for kind in types:
                self._handlers.add(kind, handler, into=into, topic=topic)
            return handler

        return register

    def observe(self, *observers: Observer) -> None:
        """Give events to these observers too; call it before `run`."""
        self._observers = self._observers.with_also(observers)
        self._applying = self._handling = None

    def follow(self, routes: Routes) -> None:
        """Take these routes, unless it was made with its own; whoever runs it calls this.

        They say where its types arrive and which way goes what its handlers put.
        """
        if self._routes is None:
            self._routes = routes

    async def step(self, delivery: Delivery) -> Result:
        """Handle one delivery to its end, and tell the broker."""
        return (await self._handler().handle(delivery))[0]

    async def run(self, broker: Subscriber, stop: asyncio.Event) -> None:
        """Consume until `stop` is set; what has begun is ended, the rest is given back.

        While the broker or the consumer's own database cannot be used it pauses and tries
        again, without spending deliveries.
        """
        if not self.topics:
            raise SettingsError(f"consumer {self.name} has no handlers; register some with .on()")
        self._observers.emit(events.ConsumerStarted(consumer=self.name, topics=self.topics))
        failures = 0
        try:
            if (reason := await self._probe()) is not None:
                failures = await self._pause(reason, 1, stop)
            while not stop.is_set():
                trouble, worked = await self._subscribed(broker, stop)
                if trouble is None:
                    break
                failures = 1 if worked else failures + 1
                failures = await self._pause(trouble, failures, stop)
        finally:
            self.close()
            self._observers.emit(events.ConsumerStopped(consumer=self.name))

    def close(self) -> None:
        """End the threads in which plain functions run; needed only after `step` alone."""
        if self._applying is not None:
            self._applying.close()
            self._applying = None

    async def _subscribed(self, broker: Subscriber, stop: asyncio.Event) -> tuple[str | None, bool]:
        """Consume until told to stop or something is away; return why, and if any was done."""
        trouble = self._trouble = Trouble()

        async def work(delivery: Delivery) -> bool:
            try:
                result, reason = await self._handler().handle(delivery)
            except BaseException as error:
                trouble.fail(error)
                raise
            if result is Result.RETURNED:
                trouble.leave(reason)
            trouble.worked |= result is not Result.RETURNED
            return result in (Result.DONE, Result.DUPLICATE, Result.DEAD)

        keyed = KeyedWork(work, concurrency=self._concurrency, untold=trouble.leave)

        receiving = asyncio.ensure_future(self._receive(broker, keyed))
        stopping = asyncio.ensure_future(stop.wait())
        try:
            await asyncio.wait(
                (receiving, stopping, trouble.told), return_when=asyncio.FIRST_COMPLETED
            )
        finally:
            stopping.cancel()
            receiving.cancel()
            await asyncio.wait((receiving,))
        if trouble.told.done():
            return trouble.told.result(), trouble.worked
        if not receiving.cancelled() and (error := receiving.exception()) is not None:
            if not isinstance(error, BrokerUnavailable):
                raise error
            return error.reason, trouble.worked
        return (None if stop.is_set() else "the subscription ended"), trouble.worked

    async def _receive(self, broker: Subscriber, keyed: KeyedWork) -> None:
        subscription = broker.subscribe(self.topics, group=self.name, prefetch=self._prefetch)
        async with subscription as deliveries:
            if self._paused:
                self._paused = False
                self._observers.emit(events.ConsumerResumed(consumer=self.name))
            try:
                async for delivery in deliveries:
                    keyed.add(delivery)
            finally:
                # Within the subscription: handlers that have begun still acknowledge.
                await keyed.end()

    async def _pause(self, trouble: str, failures: int, stop: asyncio.Event) -> int:
        """Wait until the database can be used again; return the number of failures so far.

        Whether the broker can, is known when the next subscription is there.
        """
        self._paused = True
        while not stop.is_set():
            delay = self._between_probes.delay(failures)
            self._observers.emit(
                events.ConsumerPaused(consumer=self.name, error=trouble, delay=delay)
            )
            try:
                async with asyncio.timeout(delay.total_seconds()):
                    await stop.wait()
            except TimeoutError:
                pass
            reason = await self._probe()
            if reason is None:
                break
            trouble, failures = reason, failures + 1
        return failures

    async def _probe(self) -> str | None:
        """Return why the database cannot be used now, or None if it can."""
        try:
            await self._applier().probe()
        except SettingsError:
            raise
        except Exception as error:
            reason = outage(error)
            if reason is None:
                raise SchemaMismatch(
                    f"consumer {self.name} cannot write to its inbox: {reason_of(error)}; "
                    "create the tables with `postroom init` or `await store.migrate()`"
                ) from error
            return printable(reason)
        return None

    def _handler(self) -> Handling:
        if self._handling is None:
            self._handling = Handling(
                self.name,
                self._handlers,
                applying=self._applier,
                retry=self._retry,
                observers=self._observers,
                clock=self._clock,
                untold=self._untold,
            )
        return self._handling

    def _untold(self, reason: str) -> None:
        if self._trouble is not None:
            self._trouble.leave(reason)

    def _applier(self) -> Applying:
        """Return the way in which handlers run; a cancelled `run` may have ended the last one."""
        if self._applying is None:
            self._applying = self._choose()
        return self._applying

    def _choose(self) -> Applying:
        awaits = {is_async(handler) for handler in self._handlers}
        if len(awaits) > 1:
            raise SettingsError(
                f"consumer {self.name} mixes plain and coroutine functions as handlers; "
                "all of them run in the same kind of transaction"
            )
        if True in awaits:
            return AsyncApplying(
                cast("Callable[[], AbstractAsyncContextManager[Any]]", self._begin),
                consumer=self.name,
                inbox=self._inbox,
                outbox=Outbox(self._store, routes=self._routes),
                observers=self._observers,
            )
        return SyncApplying(
            cast("Callable[[], AbstractContextManager[Any]]", self._begin),
            consumer=self.name,
            inbox=self._inbox,
            outbox=SyncOutbox(self._store, routes=self._routes),
            observers=self._observers,
            threads=self._concurrency,
        )
