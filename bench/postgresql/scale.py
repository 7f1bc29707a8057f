"""How much is measured on PostgreSQL: enough to trust, or just enough to see that it works."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """The sizes of a run."""

    connections: int = 16
    put_rounds: int = 11
    transactions: int = 1_600
    """Of one round of a put, on all connections together."""
    rounds: int = 5
    """Alternations of everything else that is compared."""
    rows: int = 20_000
    """Messages of one round."""
    passed: int = 500_000
    """Messages that pass while a snapshot is held."""
    sent: int = 2_000_000
    ready: int = 100
    waiting: int = 50_000
    looks: int = 41
    """Reads of which the median counts."""
    held: int = 100_000
    relays: int = 4
    relay_rounds: int = 3
    shared: int = 40_000
    """Messages that one or several relays send in a round."""
    idle_messages: int = 400
    memory_backlog: int = 1_000_000
    memory_drained: int = 100_000
    suffix: str = ""
    """Follows the names of the results, so that nobody takes the one for the other."""


FULL = Scale()
QUICK = Scale(
    put_rounds=3,
    transactions=800,
    rounds=2,
    rows=5_000,
    passed=30_000,
    sent=50_000,
    waiting=5_000,
    looks=11,
    held=10_000,
    relay_rounds=1,
    shared=10_000,
    idle_messages=60,
    memory_backlog=50_000,
    memory_drained=10_000,
    suffix=" (quick)",
)
