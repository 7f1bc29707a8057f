"""SQL as a value, so that sync and async callers share the code that writes it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

Scalar = int | str | bytes | None
Value = Scalar | Sequence[Scalar]
"""What a parameter may be; a list is an array, for databases that have such."""
Row = Mapping[str, Value]


@dataclass(frozen=True, slots=True)
class Statement:
    """SQL text with `:names`, and the rows to run it with (once per row, in order)."""

    sql: str
    rows: Sequence[Row]
    name: str = ""
    """Which statement of the store this is (`insert`, `mark`); stores without SQL go by it."""
