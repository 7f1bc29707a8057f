"""The storm: random blows to everything, by a schedule that a seed decides."""

import asyncio
import math
import random
from collections.abc import Coroutine, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Literal

from postroom.lab import outage, power
from postroom.lab.database import Unusable
from postroom.lab.processes import Actor
from postroom.lab.shop import CONSUMERS
from postroom.lab.stage import Stage, Unmet

Kind = Literal[
    "kill", "freeze", "stop", "lock", "crash", "restart", "cut", "broker-crash", "broker-restart"
]
Part = Literal["orders", "relay", "consumer"]

_EVERY = 0.45
"""Seconds between two blows, on average."""
_RELAYS = 3
_SERVICES = 3
_EACH_CONSUMER = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Blow:
    """One thing that the storm does."""

    at: float
    """Seconds after its beginning."""
    kind: Kind
    part: Part
    which: int
    """Of the processes that play the part, or of the files that can be locked."""
    lasts: float = 0
    """How long a process is frozen, or a file locked."""


_KINDS: Mapping[Kind, float] = {"kill": 14, "freeze": 2, "stop": 1, "lock": 2}
_SERVER_KINDS: Mapping[Kind, float] = {"crash": 1, "restart": 1, "cut": 2}
"""What can be done to a server: end it with and without warning, and end sessions."""
_BROKER_KINDS: Mapping[Kind, float] = {"broker-crash": 0.6, "broker-restart": 0.2}
"""The same for a broker, which takes seconds to come back; many of these blows miss it."""


def schedule(
    seed: int, seconds: float, *, server: bool = False, broker: bool = False
) -> Sequence[Blow]:
    """Return the blows; a longer storm of the same seed begins in the same way.

    With a database server or a broker of the lab's own these suffer too.
    """
    chance = random.Random(seed)  # noqa: S311
    kinds = {
        **_KINDS,
        **(_SERVER_KINDS if server else {}),
        **(_BROKER_KINDS if broker else {}),
    }
    blows = [one for one in _FIRST if one.at < seconds and one.kind in kinds]
    at = 1.0
    while True:
        kind = chance.choices(list(kinds), list(kinds.values()))[0]
        part: Part = chance.choices(("orders", "relay", "consumer"), (3, 4, 5))[0]
        blow = Blow(
            at=round(at, 3),
            kind=kind,
            part=part,
            which=chance.randrange(1000),
            lasts=round(chance.uniform(*_LASTS[kind]), 3),
        )
        at += chance.uniform(0.5, 1.5) * _EVERY
        if blow.at >= seconds:
            return sorted(blows, key=lambda blow: blow.at)
        blows.append(blow)


_LASTS: Mapping[Kind, tuple[float, float]] = {
    "kill": (0, 0),
    "stop": (0, 0),
    "cut": (0, 0),
    "freeze": (1, 4),
    "lock": (0.3, 2.5),
    "crash": (0.1, 1.5),
    "restart": (0.1, 1.5),
    "broker-crash": (0.1, 1.5),
    "broker-restart": (0.1, 1.5),
}
_FIRST = (
    Blow(at=3, kind="lock", part="relay", which=0, lasts=2.5),
    Blow(at=4, kind="broker-crash", part="relay", which=0, lasts=0.5),
    Blow(at=5, kind="crash", part="relay", which=0, lasts=0.5),
)
"""Every storm has one real outage of the broker, and of a server, near its beginning."""


class Storm:
    """Strikes a shop for a while; whatever dies is started again."""

    def __init__(self, seconds: float, seed: int, *, naive: bool = False) -> None:
        """Follow the schedule of that seed."""
        self._seconds = seconds
        self._seed = seed
        self._naive = naive
        self._pending: set[asyncio.Task[None]] = set()
        self._server = asyncio.Lock()
        """Held by who has ended the database server."""
        self._spared_until = 0.0
        """Until when the broker is left alone, by the clock of the loop."""

    async def play(self, stage: Stage) -> None:
        """Open the shop, strike, and let it be."""
        await self._start(stage)
        stage.restarts = True
        loop = asyncio.get_running_loop()
        began = loop.time()
        server, broker = stage.site.server is not None, stage.site.broker is not None
        for blow in schedule(self._seed, self._seconds, server=server, broker=broker):
            await asyncio.sleep(max(0.0, began + blow.at - loop.time()))
            self._strike(stage, blow)
        await asyncio.sleep(max(0.0, began + self._seconds - loop.time()))
        await asyncio.gather(*self._pending)
        stage.restarts = False
        stage.healed()
        await self._close(stage)

    async def _start(self, stage: Stage) -> None:
        prefix = "naive-" if self._naive else ""
        for consumer in CONSUMERS:
            for number in range(1, _EACH_CONSUMER + 1):
                stage.start(f"{prefix}consumer", f"{consumer}-{number}", consumer=consumer)
        if not self._naive:
            for _ in range(_RELAYS):
                stage.start("relay")
        for _ in range(_SERVICES):
            stage.start(f"{prefix}orders", per_second=15)
        await stage.ready()

    async def _close(self, stage: Stage) -> None:
        """End the order services, so that the ledger can be drawn up."""
        services = [actor for actor in stage.actors.values() if "orders" in actor.brief.role]
        for actor in services:
            actor.thaw()
            actor.terminate()
        await stage.ended(*services)
        if self._naive:
            for actor in stage.actors_of("naive-consumer"):
                actor.thaw()
                if not actor.running:
                    actor.start()
            await stage.ready(*stage.actors_of("naive-consumer"))

    def _strike(self, stage: Stage, blow: Blow) -> None:
        match blow.kind:
            case "lock":
                self._begin(self._lock(stage, blow))
            case "crash" | "restart":
                self._begin(self._end_server(stage, blow))
            case "broker-crash" | "broker-restart":
                self._begin(self._end_broker(stage, blow))
            case "cut":
                with suppress(Unusable):
                    power.end_sessions(stage, 5)
            case _:
                self._strike_process(stage, blow)

    def _strike_process(self, stage: Stage, blow: Blow) -> None:
        actor = self._target(stage, blow)
        if actor is None:
            return
        match blow.kind:
            case "kill":
                actor.kill()
            case "stop":
                actor.thaw()
                actor.terminate()
            case _:
                self._begin(self._freeze(actor, blow.lasts))

    def _target(self, stage: Stage, blow: Blow) -> Actor | None:
        part = f"naive-{blow.part}" if self._naive else blow.part
        if part == "naive-relay":
            part = "naive-orders"
        actors = [actor for actor in stage.actors_of(part) if actor.running]
        return actors[blow.which % len(actors)] if actors else None

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        self._pending.add(asyncio.create_task(work))

    async def _freeze(self, actor: Actor, seconds: float) -> None:
        actor.freeze()
        await asyncio.sleep(seconds)
        actor.thaw()

    async def _end_server(self, stage: Stage, blow: Blow) -> None:
        async with self._server:
            await (power.crash(stage) if blow.kind == "crash" else power.shut_down(stage))
            await asyncio.sleep(blow.lasts)
            await power.start(stage)

    async def _end_broker(self, stage: Stage, blow: Blow) -> None:
        """End the broker, unless it is down, or has not been up for as long as it was down."""
        loop = asyncio.get_running_loop()
        began = loop.time()
        if began < self._spared_until:
            return
        self._spared_until = math.inf
        crashes = blow.kind == "broker-crash"
        await (outage.crash(stage) if crashes else outage.shut_down(stage))
        await asyncio.sleep(blow.lasts)
        await outage.start(stage)
        self._spared_until = loop.time() * 2 - began

    async def _lock(self, stage: Stage, blow: Blow) -> None:
        names = ("shop",) if stage.places.broker_address else ("broker", "broker", "shop")
        with suppress(Unmet):
            # It is not to be had while its server is down.
            locker = await stage.lock(names[blow.which % len(names)])
            await asyncio.sleep(blow.lasts)
            await stage.unlock(locker)
