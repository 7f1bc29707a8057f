"""One piece of work: a connection with an open transaction, the queries for it, and the time."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from postroom.connections.paramstyle import translate


@dataclass(frozen=True, slots=True)
class Work:
    """What the functions of this store are given to do their part in one transaction."""

    connection: Any
    """An asyncpg connection."""
    sql: Mapping[str, str]
    now: int | None
    """The time if somebody sets it, else None: then the database's clock decides."""
    patience: float
    """Seconds for one query."""
    prepared: Mapping[str, Any] = field(default_factory=dict)
    """Statements that are prepared on this connection, by the names of their queries."""

    async def rows(self, query: str, **values: object) -> Sequence[Any]:
        """Return the rows of the named query."""
        if (statement := self.prepared.get(query)) is not None:
            _, given = self._bound(self.sql[query], values)
            rows: Sequence[Any] = await statement.fetch(*given, timeout=self.patience)
            return rows
        return await self.fetch(self.sql[query], values)

    async def value(self, query: str, **values: object) -> Any:
        """Return the first column of the first row of the named query, or None."""
        rows = await self.fetch(self.sql[query], values)
        return rows[0][0] if rows else None

    async def change(self, query: str, **values: object) -> int:
        """Run the named change; return how many rows it affected."""
        text, given = self._bound(self.sql[query], values)
        status = await self.connection.execute(text, *given, timeout=self.patience)
        return int(status.rpartition(" ")[2])

    async def prepare(self, query: str) -> Any:
        """Prepare the named query in a session that is ours alone; return its statement."""
        text, _ = translate(self.sql[query], "numeric_dollar")
        # With a name, since without one the next statement takes its place.
        return await self.connection.prepare(text, name=f"postroom_{query}", timeout=self.patience)

    async def prepare_with(
        self, query: str, **values: object
    ) -> Callable[[], Awaitable[Sequence[Any]]]:
        """Prepare the named query for these values; return what runs it."""
        statement = await self.prepare(query)
        _, given = self._bound(self.sql[query], values)

        async def run() -> Sequence[Any]:
            rows: Sequence[Any] = await statement.fetch(*given, timeout=self.patience)
            return rows

        return run

    async def fetch(self, sql: str, values: Mapping[str, object]) -> Sequence[Any]:
        """Return the rows of a query that was put together."""
        text, given = self._bound(sql, values)
        rows: Sequence[Any] = await self.connection.fetch(text, *given, timeout=self.patience)
        return rows

    async def script(self, sql: str) -> None:
        """Run several statements without values."""
        await self.connection.execute(sql, timeout=self.patience)

    def _bound(self, sql: str, values: Mapping[str, object]) -> tuple[str, list[object]]:
        text, names = translate(sql, "numeric_dollar")
        return text, [self.now if name == "now" else values[name] for name in names]
