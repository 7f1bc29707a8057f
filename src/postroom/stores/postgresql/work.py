"""One piece of work: a connection with an open transaction, the queries for it, and the time."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
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

    async def rows(self, query: str, **values: object) -> Sequence[Any]:
        """Return the rows of the named query."""
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

    async def prepare(self, query: str, **values: object) -> Callable[[], Awaitable[Sequence[Any]]]:
        """Prepare the named query in a session that is ours alone; return what runs it."""
        text, given = self._bound(self.sql[query], values)
        statement = await self.connection.prepare(text, timeout=self.patience)

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
