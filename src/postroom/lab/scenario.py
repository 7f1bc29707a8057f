"""What a scenario is."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from postroom.lab.stage import Stage


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """A fault, provoked for real in a shop at work."""

    name: str
    summary: str
    """What happens in it, in one line."""
    play: Callable[[Stage], Awaitable[None]]
    """Provokes it; making everything healthy again and judging is done for it afterwards."""
    customers: int = 10
    plants: tuple[str, ...] = ()
    """The wrong variants that it must catch."""
    figures: tuple[str, ...] = ()
    """The figures by which it catches them."""
