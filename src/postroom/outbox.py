"""The outbox: messages become rows of the caller's own transaction."""

from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import lru_cache
from typing import Unpack

from postroom.codecs import PutOptions, check, encode_to
from postroom.connections import (
    AsyncConnection,
    SyncConnection,
    require_transaction,
    require_transaction_async,
    run,
    run_async,
)
from postroom.errors import InvalidMessage, PutRefused
from postroom.limits import Limits
from postroom.message import Message
from postroom.route import Route, Routes
from postroom.statement import Statement
from postroom.store import Addressed, Writer


class SyncOutbox:
    """Puts messages into the transaction of a synchronous connection.

    with engine.begin() as connection:
        connection.execute(insert(orders).values(id=order_id))
        outbox.put(connection, OrderPlaced(order_id=order_id))
    """

    def __init__(
        self, store: Writer, *, routes: Routes | None = None, limits: Limits | None = None
    ) -> None:
        """Write the rows of this store; the store need not be open."""
        self._packing = _Packing(store, routes or Routes(), limits or Limits())

    def put(
        self, connection: SyncConnection, *events: object, **options: Unpack[PutOptions]
    ) -> tuple[Message, ...]:
        """Write the events to the outbox, in this order; return them as written.

        An event is an object whose class bears `@message`, or a ready `Message`; the options
        apply to each event that is not a `Message`. Nothing is committed and no connection is
        opened: the messages share the fate of the caller's transaction. All of them are
        written, or none. Raises `NoTransaction`, `InvalidMessage` or `MessageTooLarge`, all of
        them `PutRefused`, before anything is written. A SQLAlchemy session with `autoflush` is
        flushed first, as before a query.
        """
        if not events:
            return ()
        self._check(connection)
        messages, statement = self._packing.pack(events, options)
        run(connection, statement)
        return messages

    def prepare(self, *events: object, **options: Unpack[PutOptions]) -> tuple[Message, ...]:
        """Return the events as messages, checked as `put` would, without writing them.

        For whoever writes them later, by a `put` of these messages.
        """
        messages = self._packing.messages(events, options)
        self._packing.require_routes(messages)
        return messages

    def _check(self, connection: SyncConnection) -> None:
        require_transaction(connection)


class Outbox:
    """Puts messages into the transaction of an asynchronous connection.

    async with session.begin():
        session.add(order)
        await outbox.put(session, OrderPlaced(order_id=order.id))
    """

    def __init__(
        self, store: Writer, *, routes: Routes | None = None, limits: Limits | None = None
    ) -> None:
        """Write the rows of this store; the store need not be open."""
        self._packing = _Packing(store, routes or Routes(), limits or Limits())

    async def put(
        self, connection: AsyncConnection, *events: object, **options: Unpack[PutOptions]
    ) -> tuple[Message, ...]:
        """Write the events to the outbox, in this order; return them as written.

        The same as `SyncOutbox.put`, awaited.
        """
        if not events:
            return ()
        await self._check(connection)
        messages, statement = self._packing.pack(events, options)
        await run_async(connection, statement)
        return messages

    def _check(self, connection: AsyncConnection) -> Awaitable[None]:
        return require_transaction_async(connection)


class _Packing:
    """Everything of a put that does no I/O."""

    def __init__(self, store: Writer, routes: Routes, limits: Limits) -> None:
        self._store = store
        self._limits = limits
        self._route_of = _by_type(routes)

    def pack(
        self, events: tuple[object, ...], options: PutOptions
    ) -> tuple[tuple[Message, ...], Statement]:
        """Return the messages with their topics, and the statement that writes them."""
        messages = self.messages(events, options)
        route_of = self._route_of
        return messages, self._store.insert(
            [Addressed(route_of(each.type).name, each) for each in messages]
        )

    def messages(self, events: tuple[object, ...], options: PutOptions) -> tuple[Message, ...]:
        """Return the messages with their topics; raises if one of them cannot be put."""
        messages = tuple([self._message(event, options) for event in events])
        self._limits.check(messages)
        if len(messages) > 1 and len({each.id for each in messages}) < len(messages):
            raise InvalidMessage("two messages of one call have the same id; put each once")
        return messages

    def require_routes(self, messages: tuple[Message, ...]) -> None:
        """Raise PutRefused if no route takes one of the messages."""
        for each in messages:
            self._route_of(each.type)

    def _message(self, event: object, options: PutOptions) -> Message:
        if not isinstance(event, Message):
            return encode_to(event, options, self._topic_of)
        if options:
            raise InvalidMessage(
                f"a ready Message says {', '.join(sorted(options))} itself; set it on the Message"
            )
        check(event)
        return event if event.topic else replace(event, topic=self._topic_of(event.type))

    def _topic_of(self, name: str) -> str:
        return self._route_of(name).topic or name


def _by_type(routes: Routes) -> Callable[[str], Route]:
    """Return the route of a type by its name; remembered, since a process puts few types."""

    @lru_cache(maxsize=1024)
    def route_of(name: str) -> Route:
        route = routes.of(Message(type=name, payload=b"", id=""))
        if route is None:
            raise PutRefused(
                f"no route takes messages of type {name}; add the type to a route, or let the "
                "route `default` take '*'"
            )
        return route

    return route_of
