"""Apply one message: inbox row, handler and commit in the user's own transaction."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager, AbstractContextManager, suppress
from typing import Any, Protocol

from postroom.connections import AsyncConnection, SyncConnection
from postroom.consumer.context import AsyncContext, Context
from postroom.consumer.handlers import Handler
from postroom.errors import NoTransaction, SettingsError, StoreUnavailable
from postroom.events import Handled, Handling, Observers
from postroom.inbox import Inbox
from postroom.message import Message
from postroom.outbox import Outbox, SyncOutbox

_PROBE = "postroom-probe"
_ENDED = (
    "the handler committed or rolled back the transaction, or closed the connection; leave that "
    "to the consumer, which commits the effect together with the inbox row (or it went on after a "
    "statement had failed, and PostgreSQL turns the commit into a rollback: use a savepoint)"
)


_UNANSWERED = (
    "the commit was not answered: whether it holds is not known; the message comes again, and has "
    "no effect if it does"
)


class NotBegunError(Exception):
    """The transaction or its inbox row failed before the handler ran: not the handler's fault."""


class _Undo(Exception):
    """Rolls the probe's transaction back."""


class Applying(Protocol):
    """One way of running a handler in a transaction."""

    async def apply(
        self, handler: Handler, event: object, message: Message, attempt: int | None
    ) -> bool:
        """Commit effect and inbox row together; return False if the effect was there already.

        Raises what the handler or the commit raised, or NotBegunError from what was raised
        before the handler ran; then nothing is committed.
        """
        ...

    async def probe(self) -> None:
        """Write an inbox row and roll it back; raises what the database raises."""
        ...

    def close(self) -> None:
        """End the threads, if there are any."""
        ...


class SyncApplying:
    """Runs plain functions in threads, each with a transaction of its own."""

    def __init__(
        self,
        begin: Callable[[], AbstractContextManager[Any]],
        *,
        consumer: str,
        inbox: Inbox,
        outbox: SyncOutbox,
        observers: Observers,
        threads: int,
    ) -> None:
        """Begin transactions by `begin`, in at most so many threads."""
        self._begin = begin
        self._consumer = consumer
        self._inbox = inbox
        self._outbox = outbox
        self._observers = observers
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix=f"postroom-{consumer}")

    async def apply(
        self, handler: Handler, event: object, message: Message, attempt: int | None
    ) -> bool:
        """Apply in a thread; see Applying."""
        first, error = await asyncio.get_running_loop().run_in_executor(
            self._threads, self._caught, handler, event, message, attempt
        )
        if error is not None:
            raise error
        return first

    async def probe(self) -> None:
        """Try in a thread; see Applying."""
        await asyncio.get_running_loop().run_in_executor(self._threads, self._probe)

    def close(self) -> None:
        """End the threads."""
        self._threads.shutdown(wait=True)

    def _caught(
        self, handler: Handler, event: object, message: Message, attempt: int | None
    ) -> tuple[bool, BaseException | None]:
        """Bring the error along as a value: a future cannot carry a StopIteration."""
        try:
            return self._apply(handler, event, message, attempt), None
        except BaseException as error:
            return False, error

    def _apply(
        self, handler: Handler, event: object, message: Message, attempt: int | None
    ) -> bool:
        begun = handled = False
        try:
            with self._transaction() as connection:
                if not self._inbox.first(connection, message.id):
                    return False
                begun = True
                self._observers.emit(Handling(consumer=self._consumer, message=message))
                context = Context(
                    consumer=self._consumer,
                    message=message,
                    attempt=attempt,
                    connection=connection,
                    outbox=self._outbox,
                )
                handler(event, context)
                self._require_untouched(connection, message)
                handled = True
                self._observers.emit(Handled(consumer=self._consumer, message=message))
        except Exception as error:
            if handled and isinstance(error, OSError):
                raise StoreUnavailable(_UNANSWERED) from error
            if begun or isinstance(error, SettingsError):
                raise
            raise NotBegunError from error
        return True

    def _require_untouched(self, connection: SyncConnection, message: Message) -> None:
        """Raise unless the inbox row still stands: what is written without it comes twice."""
        try:
            gone = self._inbox.first(connection, message.id)
        except NoTransaction as error:
            raise NoTransaction(_ENDED) from error
        if gone:
            raise NoTransaction(_ENDED)

    def _transaction(self) -> AbstractContextManager[Any]:
        transaction = self._begin()
        if not hasattr(transaction, "__enter__"):
            raise SettingsError(
                f"begin() of consumer {self._consumer} gives a {type(transaction).__name__}, which "
                "`with` cannot use; make the handlers coroutine functions (async def) for it"
            )
        return transaction

    def _probe(self) -> None:
        with suppress(_Undo), self._transaction() as connection:
            self._inbox.first(connection, _PROBE)
            raise _Undo


class AsyncApplying:
    """Runs coroutine functions on the loop, each with a transaction of its own."""

    def __init__(
        self,
        begin: Callable[[], AbstractAsyncContextManager[Any]],
        *,
        consumer: str,
        inbox: Inbox,
        outbox: Outbox,
        observers: Observers,
    ) -> None:
        """Begin transactions by `begin`."""
        self._begin = begin
        self._consumer = consumer
        self._inbox = inbox
        self._outbox = outbox
        self._observers = observers

    async def apply(
        self, handler: Handler, event: object, message: Message, attempt: int | None
    ) -> bool:
        """Apply on the loop; see Applying."""
        begun = handled = False
        try:
            async with self._transaction() as connection:
                if not await self._inbox.first_async(connection, message.id):
                    return False
                begun = True
                self._observers.emit(Handling(consumer=self._consumer, message=message))
                context = AsyncContext(
                    consumer=self._consumer,
                    message=message,
                    attempt=attempt,
                    connection=connection,
                    outbox=self._outbox,
                )
                await handler(event, context)
                await self._require_untouched(connection, message)
                handled = True
                self._observers.emit(Handled(consumer=self._consumer, message=message))
        except Exception as error:
            if handled and isinstance(error, OSError):
                raise StoreUnavailable(_UNANSWERED) from error
            if begun or isinstance(error, SettingsError):
                raise
            raise NotBegunError from error
        return True

    async def probe(self) -> None:
        """Try on the loop; see Applying."""
        with suppress(_Undo):
            async with self._transaction() as connection:
                await self._inbox.first_async(connection, _PROBE)
                raise _Undo

    def close(self) -> None:
        """Nothing to end."""

    async def _require_untouched(self, connection: AsyncConnection, message: Message) -> None:
        """Raise unless the inbox row still stands: what is written without it comes twice."""
        try:
            gone = await self._inbox.first_async(connection, message.id)
        except NoTransaction as error:
            raise NoTransaction(_ENDED) from error
        if gone:
            raise NoTransaction(_ENDED)

    def _transaction(self) -> AbstractAsyncContextManager[Any]:
        transaction = self._begin()
        if not hasattr(transaction, "__aenter__"):
            raise SettingsError(
                f"begin() of consumer {self._consumer} gives a {type(transaction).__name__}, which "
                "`async with` cannot use; make the handlers plain functions for it"
            )
        return transaction
