"""What a scenario is."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Literal

from postroom.lab.stage import Stage

Needs = Literal["", "sqlite", "postgresql", "server"]


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
    needs: Needs = ""
    """Which store it needs; any where empty. `server` is one that the lab has started."""
    alone: bool = False
    """Whether it does something to the database server that nobody else would like."""
    of_broker: str = ""
    """What it needs of the broker, of `lab.broker.WHY_NOT`; nothing special where empty."""
    alone_at_broker: bool = False
    """Whether it does something to the broker's server that nobody else would like."""
    shared: bool = False
    """Whether several processes of a consumer must receive at once, whatever the order."""
    at_broker: bool = False
    """Whether nobody consumes, and what the broker took is judged."""
    lacks: Callable[[], str] = str
    """Says what it lacks on this machine; empty where it can be played."""
