"""A part of a transaction that can be undone by itself; the same on every client."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

_NAME = "lab_part"


@contextmanager
def part(run: Callable[[str], object]) -> Iterator[None]:
    """Set a savepoint for the block, and go back to it when the block raises."""
    run(f"SAVEPOINT {_NAME}")
    try:
        yield
    except BaseException:
        run(f"ROLLBACK TO {_NAME}")
        run(f"RELEASE {_NAME}")
        raise
    run(f"RELEASE {_NAME}")
