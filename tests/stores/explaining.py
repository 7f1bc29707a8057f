"""The plans of the queries that a PostgreSQL store runs."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from postroom.stores.postgresql import database
from postroom.stores.postgresql.work import Work

Seen = dict[str, list[dict[str, Any]]]
"""The plans of a query, by its name."""


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> Seen:
    """The plans of all queries that a test runs; what they change is undone."""
    seen: Seen = {}

    class Explaining(Work):
        async def rows(self, query: str, **values: object) -> Any:
            await self.explain(query, values)
            return await super().rows(query, **values)

        async def value(self, query: str, **values: object) -> Any:
            await self.explain(query, values)
            return await super().value(query, **values)

        async def change(self, query: str, **values: object) -> int:
            await self.explain(query, values)
            return await super().change(query, **values)

        async def explain(self, query: str, values: dict[str, object]) -> None:
            await self.connection.execute("savepoint before")
            ((text,),) = await self.fetch(
                f"explain (analyze, buffers, format json) {self.sql[query]}", values
            )
            await self.connection.execute("rollback to before")
            seen.setdefault(query, []).append(json.loads(text)[0]["Plan"])

    monkeypatch.setattr(database, "Work", Explaining)
    return seen


def nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Go through a plan and its parts."""
    yield plan
    for part in plan.get("Plans", ()):
        yield from nodes(part)


def buffers(plan: dict[str, Any]) -> int:
    """Return how many pages it touched."""
    return int(plan["Shared Hit Blocks"] + plan["Shared Read Blocks"])
