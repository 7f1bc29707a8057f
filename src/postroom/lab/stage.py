"""One shop on stage: its files, its processes, and what a scenario does to them."""

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, closing, suppress
from datetime import timedelta
from functools import partial
from typing import Any

from postroom.desk import Desk
from postroom.lab import books, shop
from postroom.lab.brief import Brief
from postroom.lab.database import Unusable
from postroom.lab.faults import Faults
from postroom.lab.ground import Site
from postroom.lab.marks import Marks
from postroom.lab.nursery import Nursery
from postroom.lab.processes import Actor, end, kill
from postroom.message import State

LEASE = 2.0
"""Seconds; the lab's relays and its broker use the same."""
PATIENCE = 4 * LEASE
"""What does not move for so long is stuck. Twice the definition: two cores are shared by many."""
LIMIT = 60.0
"""No wait of a scenario is longer."""
_GLANCE = 0.03
_SAMPLE = 0.25
_SELDOM = 20
"""Times that taking a sample takes must pass before the next: nobody shall notice the lab."""


class Unmet(Exception):
    """Something that a scenario waited for did not happen."""


class Stage:
    """What a scenario acts on."""

    def __init__(
        self,
        site: Site,
        nursery: Nursery,
        *,
        seed: int = 0,
        plant: str = "",
        customers: int = 10,
        messages: int = 0,
    ) -> None:
        """Set a shop up at that site."""
        self.site = site
        self.places = site.places
        self.through = site.places.address
        """The address by which processes reach the databases."""
        self.server_kills = 0
        """How often the databases' server was ended by SIGKILL."""
        self.broker_kills = 0
        """How often the broker was."""
        self.messages = messages
        """How many orders a scenario shall place that can place any number; 0: as it likes."""
        self.seed = seed
        self.plant = plant
        self.marks = Marks()
        self.actors: dict[str, Actor] = {}
        self.checks: list[tuple[str, bool]] = []
        """What the scenario asked beyond the ledger, and whether it held."""
        self.excused: set[str] = set()
        """Ids that lost their place in the order: dead under `continue`, then replayed."""
        self.restarts = False
        """Whether a process that was killed is started again at once."""
        self.customers = customers
        self._nursery = nursery
        self.healed_at: float | None = None
        """When the last fault was over."""
        self._quiet_at: float | None = None
        self._tending: asyncio.Task[None] | None = None
        self._at_the_end: list[Callable[[], None]] = []

    async def open(self) -> None:
        """Create the files, and begin to look after the processes."""
        self.places.create()
        await books.prepare(self.places, self.customers)
        self._tending = asyncio.create_task(self._tend())

    async def rest(self) -> None:
        """Ask every process to end, so that nobody has anything in hand when the judge looks."""
        await end(list(self.actors.values()))

    async def close(self) -> None:
        """End every process that is left."""
        actors = list(self.actors.values())
        try:
            if self._tending is not None:
                self._tending.cancel()
                with suppress(asyncio.CancelledError):
                    await self._tending
            await end(actors)
        finally:
            kill(actors)
            self.marks.close()
            for work in self._at_the_end:
                await asyncio.to_thread(work)

    def at_the_end(self, work: Callable[[], None]) -> None:
        """Have something done when the judge and all processes are."""
        self._at_the_end.append(work)

    def move(self, address: str) -> None:
        """Look for the databases at another address; processes do so when they start."""
        self.places.move(address)
        self.through = address

    # Processes

    def start(self, role: str, name: str = "", **fields: Any) -> Actor:
        """Start a process that plays this part."""
        number = sum(actor.brief.role == role for actor in self.actors.values()) + 1
        brief = Brief(
            role=role,
            name=name or f"{role}-{number}",
            root=str(self.places.root),
            address=self.through,
            schema=self.places.schema,
            broker=self.places.broker_address,
            number=number,
            seed=self.seed * 100 + number,
            plant=self.plant,
            customers=self.customers,
            lease=LEASE,
        )
        actor = Actor(
            brief.but(**fields), self._nursery, Marks() if role == "locker" else self.marks
        )
        self.actors[actor.name] = actor
        actor.start()
        return actor

    def start_consumers(self, count: int = 1, **fields: Any) -> Sequence[Actor]:
        """Start that many processes of each consumer."""
        return [
            self.start("consumer", f"{consumer}-{number}", consumer=consumer, **fields)
            for consumer in self.places.consumers
            for number in range(1, count + 1)
        ]

    def actors_of(self, role: str) -> Sequence[Actor]:
        """Return all processes that play this part."""
        return [actor for actor in self.actors.values() if actor.brief.role == role]

    @property
    def killed(self) -> Mapping[str, int]:
        """How many processes were ended by SIGKILL so far, by part; a server counts as one."""
        counts = Counter({"server": self.server_kills, "broker": self.broker_kills})
        for actor in self.actors.values():
            counts[actor.brief.role.removeprefix("naive-")] += actor.kills
        return {part: count for part, count in counts.items() if count}

    @property
    def kills(self) -> int:
        """How many that were in all."""
        return sum(self.killed.values())

    # Waiting

    async def until(self, what: str, condition: Callable[[], bool], seconds: float = 30) -> None:
        """Wait until the condition holds; raises Unmet when it does not in time."""
        end = time.monotonic() + min(seconds, LIMIT)
        while not _holds(condition):
            if time.monotonic() > end:
                raise Unmet(what)
            await asyncio.sleep(_GLANCE)

    async def ready(self, *actors: Actor) -> None:
        """Wait until these processes (all, where none is named) work."""
        for actor in actors or tuple(self.actors.values()):
            await self.until(f"{actor.name} starts", partial(_has_started, actor))

    async def ended(self, *actors: Actor, seconds: float = 30) -> None:
        """Wait until these processes have ended."""
        for actor in actors:
            await self.until(f"{actor.name} ends", partial(_has_ended, actor), seconds)

    async def frozen(self, actor: Actor, seconds: float = 30) -> None:
        """Wait until a process has stopped in its tracks."""
        await self.until(f"{actor.name} freezes", lambda: actor.frozen, seconds)

    async def moving(self, count: int = 5, seconds: float = 30) -> None:
        """Wait until that many more effects have been committed."""
        before = books.effect_count(self.places)
        await self.until(
            "effects go on", lambda: books.effect_count(self.places) >= before + count, seconds
        )

    async def goes_on(self, after: str, seconds: float) -> None:
        """Ask that an order placed now is taken, sent and dealt with by everybody in that time."""
        began = time.monotonic()
        placed: list[str] = []

        def place() -> bool:
            placed.append(self.place(0))
            return True

        await self.until(f"an order is taken after {after}", place, seconds)
        await self.until(
            f"it is in effect within {seconds:g} s",
            lambda: books.in_effect(self.places, placed[-1]),
            seconds - (time.monotonic() - began),
        )
        took = time.monotonic() - began
        self.check(f"an order was in effect {took:.1f} s after {after}", took <= seconds)

    async def still(self, seconds: float = LIMIT) -> bool:
        """Wait until everything is done; return False when something is stuck.

        Gives up when nothing at all has moved for PATIENCE seconds, or after `seconds`.
        """
        end = time.monotonic() + seconds
        seen, moved_at = "", time.monotonic()
        while time.monotonic() < end:
            began = time.monotonic()
            try:
                left, state = books.outstanding(self.places)
            except Unusable as error:
                left, state = 1, str(error)
            if not left:
                self._quiet_at = self._quiet_at or time.monotonic()
                return True
            if state != seen:
                seen, moved_at = state, time.monotonic()
            if time.monotonic() - moved_at > PATIENCE:
                return False
            await asyncio.sleep(max(_GLANCE, (time.monotonic() - began) * 2))
        return False

    async def settle_down(self, *, relays: int = 1, consumers: int = 1) -> None:
        """Make everything healthy again: no faults, and every process of the kinds running."""
        Faults().write(self.places.faults)
        self.restarts = False
        for actor in self.actors.values():
            actor.thaw()
            if actor.brief.role == "locker":
                actor.terminate()
        await self._close_the_shop()
        self._start_missing("relay", relays)
        self._start_missing_consumers(consumers)
        await self.ready(*(a for a in self.actors.values() if a.running))

    async def _close_the_shop(self) -> None:
        """Let the order services write what they were told to, and take no more orders."""
        services = self.actors_of("orders")
        for service in services:
            if not service.brief.orders:
                service.terminate()
        await self.ended(*services)

    def _start_missing(self, role: str, count: int) -> None:
        running = [a for a in self.actors.values() if a.brief.role == role and a.running]
        ended = [a for a in self.actors.values() if a.brief.role == role and not a.running]
        for _ in range(count - len(running)):
            if ended:
                ended.pop(0).start(point=None)
            else:
                self.start(role)

    def _start_missing_consumers(self, count: int) -> None:
        for consumer in self.places.consumers:
            for number in range(1, count + 1):
                actor = self.actors.get(f"{consumer}-{number}")
                if actor is None:
                    self.start("consumer", f"{consumer}-{number}", consumer=consumer)
                elif not actor.running:
                    actor.start(point=None)

    # Faults

    def fault(self, text: str = "", **fields: Any) -> None:
        """Put faults of the broker in force; without fields, none."""
        Faults(**fields).write(self.places.faults)
        self.marks.end("broker", "fault")
        if fields:
            self.marks.begin("broker", "fault", text)

    async def lock(self, name: str) -> Actor:
        """Have another process keep every writer out of a database; returns once it does."""
        locker = self.start("locker", database=name)
        await self.ready(locker)
        if not locker.said_now("ready"):
            raise Unmet(f"{name} is locked")
        self.marks.begin(name, "fault", "locked")
        return locker

    async def unlock(self, locker: Actor) -> None:
        """Let the database go."""
        locker.terminate()
        await self.ended(locker)
        self.marks.end(locker.brief.database, "fault")

    def healed(self) -> None:
        """Note that the last fault is over: the time to recover begins."""
        self.healed_at = time.monotonic()
        self._quiet_at = None

    @property
    def recovery(self) -> float:
        """Seconds from the end of the last fault until nothing was on its way any more."""
        if self.healed_at is None:
            return 0.0
        return (self._quiet_at or time.monotonic()) - self.healed_at

    # What the lab's own process does in the shop

    def place(self, number: int, *, amount: int = 1000, note: str = "") -> str:
        """Place one order for that customer; return its message's id."""
        with closing(self.places.shop.till()) as till:
            till.begin()
            sent = shop.place(till, shop.customer(number), amount=amount, note=note)
            till.commit()
        return sent.id

    @asynccontextmanager
    async def desk(self) -> AsyncIterator[Desk]:
        """Work at the outbox as a person would."""
        store = self.places.shop.store(patience=timedelta(seconds=LIMIT))
        await store.open()
        try:
            yield Desk(store, actor="lab")
        finally:
            await store.close()

    # What the scenario asks

    def check(self, what: str, held: bool) -> None:
        """Note something that must hold beyond the ledger's figures."""
        self.checks.append((what, held))

    def look_for_accidents(self) -> None:
        """Note processes that ended in a way that nobody asked for."""
        for actor in self.actors.values():
            actor.look()
            for accident in actor.accidents:
                self.check(accident, held=False)

    def resent(self) -> int:
        """Count the copies that the broker took beyond the first of each message."""
        return books.resent(self.places)

    def states(self) -> dict[str, int]:
        """Count the rows of the outbox by state; every state is named."""
        counted = books.states(self.places)
        return {state.value: counted.get(state.value, 0) for state in State}

    async def _tend(self) -> None:
        sampled, pause = 0.0, _SAMPLE
        while True:
            for actor in list(self.actors.values()):
                actor.look()
                if self.restarts and not actor.running and actor.brief.role != "locker":
                    actor.start(point=None)
            if time.monotonic() - sampled > pause:
                began = time.monotonic()
                with suppress(Unusable):
                    self.marks.level(*books.backlog(self.places))
                sampled = time.monotonic()
                pause = max(_SAMPLE, (sampled - began) * _SELDOM)
            await asyncio.sleep(_GLANCE)


def _holds(condition: Callable[[], bool]) -> bool:
    """Say whether it holds; what cannot be looked at now does not."""
    try:
        return condition()
    except Unusable:
        return False


def _has_started(actor: Actor) -> bool:
    return bool(actor.said_now("ready")) or not actor.running


def _has_ended(actor: Actor) -> bool:
    return not actor.running
