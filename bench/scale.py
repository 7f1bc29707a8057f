"""How much is measured: enough to trust, or just enough to see that it works."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """The sizes of a run."""

    rounds: int = 5
    """Alternations of a value and its baseline; the median counts."""
    transactions: int = 100
    """Of one round of a put."""
    rows: int = 10_000
    """Messages that a relay sends in one round."""
    idle_messages: int = 300
    peak_seconds: float = 10.0
    half_seconds: float = 15.0
    small_backlog: int = 10_000
    large_backlog: int = 100_000
    held: int = 100_000
    memory_backlog: int = 1_000_000
    memory_drained: int = 100_000
    suffix: str = ""
    """Follows the names of the results, so that nobody takes the one for the other."""


FULL = Scale()
QUICK = Scale(
    rounds=2,
    transactions=30,
    rows=1_000,
    idle_messages=60,
    peak_seconds=2.5,
    half_seconds=2.5,
    small_backlog=2_000,
    large_backlog=20_000,
    held=5_000,
    memory_backlog=30_000,
    memory_drained=5_000,
    suffix=" (quick)",
)
