"""Runs scenarios: a few at a time, each in a shop of its own."""

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from postroom.lab import books, ledger
from postroom.lab.broker import (
    ALARM,
    EMBEDDED,
    FILE,
    LIMIT,
    ROUTES,
    SERVER,
    WHY_NOT,
    WIRE,
    Harbour,
)
from postroom.lab.brokers import OFFERS, harbour, kind
from postroom.lab.ground import SQLITE, Ground, ground, offers
from postroom.lab.nursery import Nursery
from postroom.lab.report import Report, Result
from postroom.lab.scenario import Scenario
from postroom.lab.scenarios import SCENARIOS
from postroom.lab.stage import Stage, Unmet
from postroom.lab.storm import Storm
from postroom.lab.will import Will

STORM = "storm"
NAIVE = "naive"
OTHERS = (STORM, NAIVE)
_NEEDS = {
    "": "",
    "sqlite": "SQLite",
    "postgresql": "PostgreSQL",
    "server": "PostgreSQL of its own",
    FILE: "the embedded broker",
    WIRE: "RabbitMQ",
    ROUTES: "RabbitMQ",
    SERVER: "RabbitMQ of its own",
    ALARM: "RabbitMQ of its own",
    LIMIT: "RabbitMQ of its own",
}
TOGETHER = 3
"""Scenarios at a time: most of each is waiting for leases to end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What to run."""

    seed: int
    seconds: float = 15
    """How long the storm lasts, and the same storm on the baseline."""
    only: Sequence[str] = ()
    """Names of scenarios; all where empty."""
    plant: str = ""
    store: str = SQLITE
    """`sqlite`, `postgresql` (a server of its own), or the address of a PostgreSQL database."""
    broker: str = EMBEDDED
    """`embedded`, the name of a broker that the lab starts, or the address of one."""
    messages: int = 0
    """How many orders `contending-writers` places; 0 is as many as it does by itself."""

    def chosen(self) -> Sequence[Scenario]:
        """Return the scenarios to run, the storm excepted."""
        return [one for one in self._wanted() if self._fits(one)]

    def unfit(self) -> Mapping[str, str]:
        """Return why scenarios that were wanted do not apply to a broker that was named.

        Those that need a server are no part of the lab on the embedded broker, and not missed.
        """
        if self.broker == EMBEDDED:
            return {}
        return {one.name: WHY_NOT[one.of_broker] for one in self._wanted() if not self._fits(one)}

    def _wanted(self) -> Sequence[Scenario]:
        able = [one for one in SCENARIOS if one.needs in {"", *offers(self.store)}]
        if self.plant and not self.only:
            return [one for one in able if self.plant in one.plants]
        return [one for one in able if not self.only or one.name in self.only]

    def _fits(self, scenario: Scenario) -> bool:
        return scenario.of_broker in {"", *OFFERS[kind(self.broker)]}

    def includes(self, name: str) -> bool:
        """Say whether to run the storm, or the baseline."""
        if self.only:
            return name in self.only
        return not self.plant


@dataclass(frozen=True, slots=True)
class Started:
    """A scenario began."""

    name: str


@dataclass(frozen=True, slots=True)
class Skipped:
    """A scenario cannot be played here."""

    name: str
    why: str


Progress = Callable[[Started | Skipped | Result], None]


def names() -> Sequence[tuple[str, str, str]]:
    """Return the name, what it needs and the summary of everything that can be run."""
    return [
        (one.name, _NEEDS[one.needs] or _NEEDS[one.of_broker], one.summary)
        for one in (*SCENARIOS, _storm(0, 0), _naive(0, 0))
    ]


async def run(plan: Plan, root: Path, progress: Progress, *, keep: bool = False) -> Report:
    """Run what the plan says, in folders below `root`, which goes away unless it is kept.

    Raises DriverMissing, ServerMissing, Unusable or NoBroker where the store or the broker of the
    plan cannot be had.
    """
    will = Will(root / "will.json", folders=[] if keep else [str(root)])
    will.write()
    with Nursery(will.path) as nursery:
        async with (
            harbour(plan.broker, will) as berths,
            ground(plan.store, will, keep=keep) as found,
        ):
            return await _Run(plan, root, nursery, progress, found, berths).all()


@dataclass(frozen=True, slots=True)
class _Run:
    plan: Plan
    root: Path
    nursery: Nursery
    progress: Progress
    ground: Ground
    harbour: Harbour

    async def all(self) -> Report:
        plan = self.plan
        chosen = plan.chosen()
        skipped = {**plan.unfit(), **{one.name: why for one in chosen if (why := one.lacks())}}
        for name, why in skipped.items():
            self.progress(Skipped(name, why))
        results = await self._together([one for one in chosen if one.name not in skipped])
        if plan.includes(STORM):
            results.append(await self._play(_storm(plan.seconds, plan.seed)))
        naive = None
        if plan.includes(NAIVE):
            naive = await self._play(_naive(plan.seconds, plan.seed))
        return Report(
            seed=plan.seed,
            store=self.ground.store,
            broker=self.harbour.name,
            kept=self.ground.kept,
            plant=plan.plant,
            scenarios=results,
            skipped=skipped,
            naive=naive,
        )

    async def _together(self, scenarios: Sequence[Scenario]) -> list[Result]:
        places = asyncio.Semaphore(TOGETHER)

        async def one(scenario: Scenario) -> Result:
            async with places:
                return await self._play(scenario)

        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(one(scenario)) for scenario in scenarios]
        return [task.result() for task in tasks]

    async def _play(self, scenario: Scenario) -> Result:
        self.progress(Started(scenario.name))
        began = time.monotonic()
        root = self.root / scenario.name
        async with (
            self.harbour.berth(
                root, alone=scenario.alone_at_broker, shared=scenario.shared
            ) as berth,
            self.ground.site(root, berth, alone=scenario.alone) as site,
        ):
            if scenario.at_broker:
                site.places.consumers = ()
            stage = Stage(
                site,
                self.nursery,
                seed=self.plan.seed,
                plant=self.plan.plant,
                customers=scenario.customers,
                messages=self.plan.messages,
            )
            recovery, verdict = await self._judged(scenario, stage)
        result = Result(
            name=scenario.name,
            summary=scenario.summary,
            verdict=verdict,
            killed=stage.killed,
            recovery_seconds=recovery,
            seconds=time.monotonic() - began,
            checks=stage.checks,
            marks=stage.marks,
        )
        self.progress(result)
        return result

    async def _judged(self, scenario: Scenario, stage: Stage) -> tuple[float, ledger.Verdict]:
        """Play it; return how long it took to recover, and what the books say."""
        try:
            await stage.open()
            try:
                await scenario.play(stage)
            except Unmet as unmet:
                stage.check(f"waited in vain: {unmet}", held=False)
            recovery = await _recover(scenario, stage)
            stage.look_for_accidents()
            await stage.rest()
            return recovery, ledger.judge(books.read(stage.places, stage.excused))
        finally:
            await stage.close()


def _storm(seconds: float, seed: int) -> Scenario:
    return Scenario(
        name=STORM,
        summary="random kills, freezes and locks of everything",
        play=Storm(seconds, seed).play,
        customers=20,
        alone=True,
        alone_at_broker=True,
    )


def _naive(seconds: float, seed: int) -> Scenario:
    return Scenario(
        name=NAIVE,
        summary="the same storm on `save, then publish`",
        play=Storm(seconds, seed, naive=True).play,
        customers=20,
        alone=True,
        alone_at_broker=True,
    )


async def _recover(scenario: Scenario, stage: Stage) -> float:
    """Make everything healthy and wait until it is quiet; return how long that took."""
    if stage.healed_at is None:
        stage.healed()
    if scenario.name != NAIVE:
        try:
            await stage.settle_down()
        except Unmet as unmet:
            stage.check(f"waited in vain: {unmet}", held=False)
    await stage.still()
    return stage.recovery
