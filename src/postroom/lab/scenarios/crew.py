"""A shop with everybody in it, for what happens to the databases below them."""

from collections.abc import Sequence

from postroom.lab import books
from postroom.lab.processes import Actor
from postroom.lab.stage import Stage

SOON = 10
"""Seconds within which everything goes on again."""
_PER_SECOND = 8
_WORDS = {"relay": "StoreLost", "consumer": "ConsumerPaused", "orders": "refused"}
"""What each part says when its database is away."""


async def open_shop(stage: Stage, *, per_second: float = _PER_SECOND) -> Sequence[Actor]:
    """Start two relays, both consumers and three order services; return the services.

    Unless said otherwise no more orders come than consumers on a busy machine deal with: how long
    it takes to go on after a fault is asked, and not how fast a backlog shrinks.
    """
    for _ in range(2):
        stage.start("relay")
    stage.start_consumers()
    services = [stage.start("orders", per_second=per_second) for _ in range(3)]
    await stage.moving(10)
    return services


async def close_shop(stage: Stage, services: Sequence[Actor]) -> None:
    """Let the services end."""
    for service in services:
        service.terminate()
    await stage.ended(*services)


async def nobodys_fault(stage: Stage) -> None:
    """Ask, when all is done, that nobody was blamed for what the database did."""
    await stage.still()
    stage.check("no attempt was charged", books.attempts(stage.places) == 0)
    stage.check("no message was given up", not books.reasons(stage.places))
    failed = sum(len(actor.said("HandlerFailed")) for actor in stage.actors_of("consumer"))
    stage.check("no handler was blamed", failed == 0)


async def said_more(
    stage: Stage, actor: Actor, event: str, before: int, seconds: float = SOON
) -> None:
    """Wait until a process has said something more often than before."""
    what = f"{actor.name} says {event}"
    await stage.until(what, lambda: len(actor.said(event)) > before, seconds)


class Complaints:
    """How often each process has said that its database is away."""

    def __init__(self, stage: Stage, *roles: str) -> None:
        """Count what the processes that play these parts have said so far."""
        self._stage = stage
        self._before = [
            (actor, len(actor.said(_WORDS[role])))
            for role in roles
            for actor in stage.actors_of(role)
        ]

    async def of_all(self) -> None:
        """Wait until each of them has noticed; raises Unmet if one does not."""
        for actor, before in self._before:
            await said_more(self._stage, actor, _WORDS[actor.brief.role], before)

    def parts(self) -> set[str]:
        """Return the parts of which somebody has noticed since."""
        return {
            actor.brief.role
            for actor, before in self._before
            if len(actor.said(_WORDS[actor.brief.role])) > before
        }
