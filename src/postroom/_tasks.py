"""Tasks that run beside each other, and the error that ended them."""

import asyncio
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from typing import TypeVar

T = TypeVar("T")


@asynccontextmanager
async def task_group() -> AsyncIterator[asyncio.TaskGroup]:
    """Give a task group whose first failure is raised as it is, not in an `ExceptionGroup`.

    Callers catch `SchemaMismatch`; that the work runs in several tasks is not their concern. What
    failed besides is noted on it.
    """
    try:
        async with asyncio.TaskGroup() as group:
            yield group
    except BaseExceptionGroup as failures:
        first, *others = failures.exceptions
        for other in others:
            first.add_note(f"at the same time: {other!r}")
        raise first from first.__cause__


async def to_its_end(work: Awaitable[T]) -> T:
    """Await the work even when cancelled meanwhile; the cancellation follows it."""
    task = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait((task,))
        raise
