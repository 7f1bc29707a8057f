"""The caller's own transaction on a memory store."""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import Self

from postroom._clock import Clock
from postroom.errors import InvalidMessage, NoTransaction
from postroom.message import Entry
from postroom.statement import Row, Statement
from postroom.stores.memory.tables import Tables, entry_of
from postroom.stores.memory.turns import Turn, Turns


class MemoryTransaction:
    """What a database connection with an open transaction is elsewhere.

    Made by `MemoryStore.begin()`. As a context manager (`with` or `async with`) it commits at the
    end of the block, and rolls back if the block raises. What was run is seen by nobody else
    until then, and takes its place in the order at the commit.
    """

    def __init__(
        self,
        tables: Tables,
        guard: threading.RLock,
        turns: Turns,
        *,
        clock: Clock,
        committed: Callable[[], None],
    ) -> None:
        self._tables = tables
        self._guard = guard
        self._turns = turns
        self._clock = clock
        self._committed = committed
        self._turn: Turn | None = turns.take_if_free()
        self._ended = False
        self._entries: list[Entry] = []
        self._ids: set[str] = set()
        self._marks: list[tuple[str, str]] = []

    @property
    def in_transaction(self) -> bool:
        """Whether it can run statements: begun, and neither committed nor rolled back."""
        return self._turn is not None and not self._ended

    def run(self, statement: Statement) -> int:
        """Run a statement of `MemoryStore.insert` or `mark`; return the rows affected, summed."""
        self._require_open()
        match statement.name:
            case "insert":
                return self._insert(statement.rows)
            case "mark":
                return sum(self._mark(row) for row in statement.rows)
            case other:
                raise ValueError(f"a memory store has no statement {other!r}")

    def execute(self, statement: Statement, /) -> int:
        """Run a statement under the name by which connections know it."""
        return self.run(statement)

    def commit(self) -> None:
        """Make everything visible at once, and end the transaction."""
        self._require_open()
        with self._guard:
            for entry in self._entries:
                self._tables.append(entry)
            now = self._clock.now()
            self._tables.inbox.update(dict.fromkeys(self._marks, now))
        self._end()
        if self._entries:
            self._committed()

    def rollback(self) -> None:
        """End the transaction without a trace; does nothing where it ended before."""
        if self.in_transaction:
            self._end()

    @contextmanager
    def savepoint(self) -> Iterator[Self]:
        """Undo what the block ran, and only that, if the block raises."""
        self._require_open()
        entries, marks = len(self._entries), len(self._marks)
        try:
            yield self
        except BaseException:
            self._ids -= {entry.message.id for entry in self._entries[entries:]}
            del self._entries[entries:]
            del self._marks[marks:]
            raise

    def __enter__(self) -> Self:
        """Begin, after the transactions that other threads opened before."""
        self._require_not_ended()
        if self._turn is None:
            self._turn = self._turns.wait()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Commit, or roll back if the block raised."""
        if kind is not None:
            self.rollback()
        elif self.in_transaction:
            self.commit()

    async def __aenter__(self) -> Self:
        """Begin, after the transactions that other tasks and threads opened before."""
        self._require_not_ended()
        if self._turn is None:
            self._turn = await self._turns.wait_async()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Commit, or roll back if the block raised."""
        self.__exit__(kind, error, trace)

    def _insert(self, rows: Sequence[Row]) -> int:
        now = self._clock.now()
        entries = [entry_of(row, now) for row in rows]
        ids = {entry.message.id for entry in entries}
        if len(ids) < len(rows) or ids & self._ids or ids & self._tables.ids:
            raise InvalidMessage("the outbox has a message with this id already; put each once")
        self._ids |= ids
        self._entries += entries
        return len(rows)

    def _mark(self, row: Row) -> int:
        mark = str(row["consumer"]), str(row["message_id"])
        with self._guard:
            seen = mark in self._tables.inbox or mark in self._marks
        if not seen:
            self._marks.append(mark)
        return 0 if seen else 1

    def _end(self) -> None:
        self._ended = True
        if self._turn is not None:
            self._turns.end(self._turn)

    def _require_open(self) -> None:
        self._require_not_ended()
        if self._turn is None:
            self._turn = self._turns.wait()

    def _require_not_ended(self) -> None:
        if self._ended:
            raise NoTransaction(
                "this transaction has ended; begin another one: `with store.begin() as tx:`"
            )
