"""Many writers on few keys: the order of commits is kept, whatever the relays suffer."""

import asyncio
import itertools
from collections.abc import Sequence

from postroom.lab import books
from postroom.lab.processes import Actor
from postroom.lab.scenario import Scenario
from postroom.lab.stage import LEASE, Stage

_WRITERS = 8
_RELAYS = 4
_KEYS = 200
_MESSAGES = 3_000
_DAWDLES = 0.05
_EVERY = 0.4
"""Seconds between two things that happen to relays."""
_TURNS = 7
"""So many things happen at least: two relays join, and two each end, die and freeze."""
_LONGEST = 1800.0


async def contending_writers(stage: Stage) -> None:
    """Eight writers, 200 keys; relays join, leave, freeze and die; some messages are refused."""
    wanted = stage.messages or _MESSAGES
    stage.fault("refuses one of a hundred", refuse_every=100)
    services = [
        stage.start("orders", orders=wanted // _WRITERS, per_second=100_000, dawdles=_DAWDLES)
        for _ in range(_WRITERS)
    ]
    relays = [stage.start("relay", attempts=100) for _ in range(_RELAYS // 2)]
    await _trouble(stage, relays, services, wanted)
    stage.fault()
    stage.healed()
    await stage.still(_LONGEST)
    retried = sum(len(relay.said("Retried")) for relay in stage.actors_of("relay"))
    stage.check(f"messages were refused ({retried})", retried > 0)
    for event, what in (("LanesLost", "lost their lanes"), ("LanesGiven", "gave lanes back")):
        relays_that = sum(bool(relay.said(event)) for relay in stage.actors_of("relay"))
        stage.check(f"relays {what} ({relays_that})", relays_that > 0)
    stage.check(f"relays were killed ({stage.kills})", stage.kills > 0)


async def _trouble(
    stage: Stage, relays: list[Actor], services: Sequence[Actor], wanted: int
) -> None:
    """Let relays join, freeze, die and leave in turn, as long as orders are written."""
    for turn in itertools.count():
        if not any(service.running for service in services) and turn > _TURNS:
            break
        if turn * 2 > _RELAYS and books.order_count(stage.places) > wanted / 2:
            stage.fault()
        if len(relays) < _RELAYS:
            relays.append(stage.start("relay", attempts=100))
        else:
            await _blow(stage, relays[turn % _RELAYS], turn)
        await asyncio.sleep(_EVERY)
    for relay in relays:
        relay.thaw()
        if not relay.running:
            relay.start()


async def _blow(stage: Stage, relay: Actor, turn: int) -> None:
    match turn % 3:
        case 0:
            relay.kill()
        case 1:
            relay.freeze()
            await asyncio.sleep(LEASE * 2)
            relay.thaw()
            return
        case _:
            relay.terminate()
    await stage.ended(relay)
    relay.start()


SCENARIOS: Sequence[Scenario] = (
    Scenario(
        name="contending-writers",
        summary="eight writers on 200 keys; relays join, leave, freeze and die",
        play=contending_writers,
        customers=_KEYS,
        at_broker=True,
    ),
)
