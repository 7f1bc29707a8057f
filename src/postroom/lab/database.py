"""One of the shop's databases, whatever it is: what orders, effects and the judge need of it."""

from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from datetime import timedelta
from typing import Any, Protocol

from postroom.message import Message
from postroom.store import Store

Rows = Sequence[Any]
Write = tuple[str, tuple[object, ...]]
"""A statement with `?` where its values go, and the values."""


class Unusable(Exception):
    """The database is away, locked or read-only, or ended the transaction."""


class Violated(Exception):
    """A constraint refused the transaction."""


class Till(Protocol):
    """A connection on which orders are taken; its transactions are begun and ended by hand.

    SQL has `?` where values go. Raises `Unusable` and `Violated`, whatever the client library is;
    the next `begin` connects again where that is needed.
    """

    @property
    def client(self) -> str:
        """The name of the client library."""
        ...

    def begin(self) -> None:
        """Begin a transaction."""
        ...

    def commit(self) -> None:
        """Commit it."""
        ...

    def rollback(self) -> None:
        """Undo what is not committed; never raises."""
        ...

    def savepoint(self) -> AbstractContextManager[None]:
        """Run a part of the transaction that is undone by itself when it raises."""
        ...

    def rows(self, sql: str, *values: object) -> Rows:
        """Run a statement; return its rows, if it has any."""
        ...

    def put(self, event: object) -> Message:
        """Put an event into the outbox, in the transaction."""
        ...

    def close(self) -> None:
        """Disconnect."""
        ...


class Hands(Protocol):
    """A client library, as a consumer works with it."""

    @property
    def client(self) -> str:
        """The name of the client library."""
        ...

    @property
    def begin(
        self,
    ) -> Callable[[], AbstractContextManager[Any] | AbstractAsyncContextManager[Any]]:
        """What the consumer is given to begin its transactions."""
        ...

    def write(self, connection: Any, writes: Sequence[Write]) -> Any:
        """Run the statements in the transaction; to be awaited where `awaits` says so."""
        ...

    @property
    def awaits(self) -> bool:
        """Whether handlers are coroutine functions."""
        ...


class Database(Protocol):
    """One database of one shop."""

    @property
    def name(self) -> str:
        """What the shop calls it: `shop`, `shipping`, `billing`."""
        ...

    @property
    def numbered(self) -> str:
        """The type of a column that numbers the rows."""
        ...

    def create(self, tables: str, rows: Sequence[Write] = ()) -> None:
        """Make tables, and put rows into them."""
        ...

    def till(self, number: int = 0) -> Till:
        """Return a connection to take orders on; `number` chooses among the client libraries."""
        ...

    def hands(self) -> AbstractAsyncContextManager[Hands]:
        """Give a consumer's way to the database."""
        ...

    def store(self, *, patience: timedelta = ...) -> Store:
        """Return the product's store in this database, not opened."""
        ...

    def at_once(self, sql: str, *values: object) -> int:
        """Run a statement in a transaction of its own; return how many rows it affected."""
        ...

    def aside(self) -> "Database":
        """Return a database that can be written while a transaction is open in this one."""
        ...

    def read(self, sql: str, *values: object) -> Rows:
        """Return the rows of a query, for the judge; raises Unusable."""
        ...

    def locked(self) -> AbstractContextManager[None]:
        """Keep every writer out for the length of a block."""
        ...

    def remove(self) -> None:
        """Remove what would be left on a server."""
        ...

    def close(self) -> None:
        """Disconnect; it may be used again."""
        ...
