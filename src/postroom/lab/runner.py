"""Runs scenarios: a few at a time, each in a shop of its own."""

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from postroom.lab import books, ledger
from postroom.lab.nursery import Nursery
from postroom.lab.places import Places
from postroom.lab.report import Report, Result
from postroom.lab.scenario import Scenario
from postroom.lab.scenarios import SCENARIOS
from postroom.lab.stage import Stage, Unmet
from postroom.lab.storm import Storm

STORM = "storm"
NAIVE = "naive"
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

    def chosen(self) -> Sequence[Scenario]:
        """Return the scenarios to run, the storm excepted."""
        if self.plant and not self.only:
            return [one for one in SCENARIOS if self.plant in one.plants]
        return [one for one in SCENARIOS if not self.only or one.name in self.only]

    def includes(self, name: str) -> bool:
        """Say whether to run the storm, or the baseline."""
        if self.only:
            return name in self.only
        return not self.plant


@dataclass(frozen=True, slots=True)
class Started:
    """A scenario began."""

    name: str


Progress = Callable[[Started | Result], None]


def names() -> Sequence[tuple[str, str]]:
    """Return the name and the summary of everything that can be run."""
    return [
        *((one.name, one.summary) for one in SCENARIOS),
        (STORM, _storm(0, 0).summary),
        (NAIVE, _naive(0, 0).summary),
    ]


async def run(plan: Plan, root: Path, progress: Progress, *, keep: bool = False) -> Report:
    """Run what the plan says, in folders below `root`, which goes away unless it is kept."""
    with Nursery(tidy=None if keep else root) as nursery:
        return await _Run(plan, root, nursery, progress).all()


@dataclass(frozen=True, slots=True)
class _Run:
    plan: Plan
    root: Path
    nursery: Nursery
    progress: Progress

    async def all(self) -> Report:
        plan = self.plan
        results = await self._together(plan.chosen())
        if plan.includes(STORM):
            results.append(await self._play(_storm(plan.seconds, plan.seed)))
        naive = None
        if plan.includes(NAIVE):
            naive = await self._play(_naive(plan.seconds, plan.seed))
        return Report(seed=plan.seed, plant=plan.plant, scenarios=results, naive=naive)

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
        stage = Stage(
            Places(self.root / scenario.name),
            self.nursery,
            seed=self.plan.seed,
            plant=self.plan.plant,
            customers=scenario.customers,
        )
        try:
            await stage.open()
            try:
                await scenario.play(stage)
            except Unmet as unmet:
                stage.check(f"waited in vain: {unmet}", held=False)
            recovery = await _recover(scenario, stage)
            stage.look_for_accidents()
            verdict = ledger.judge(books.read(stage.places, stage.excused))
        finally:
            await stage.close()
        result = Result(
            name=scenario.name,
            summary=scenario.summary,
            verdict=verdict,
            kills=stage.kills,
            recovery_seconds=recovery,
            seconds=time.monotonic() - began,
            checks=stage.checks,
            marks=stage.marks,
        )
        self.progress(result)
        return result


def _storm(seconds: float, seed: int) -> Scenario:
    return Scenario(
        name=STORM,
        summary="random kills, freezes and locks of everything",
        play=Storm(seconds, seed).play,
        customers=20,
    )


def _naive(seconds: float, seed: int) -> Scenario:
    return Scenario(
        name=NAIVE,
        summary="the same storm on `save, then publish`",
        play=Storm(seconds, seed, naive=True).play,
        customers=20,
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
