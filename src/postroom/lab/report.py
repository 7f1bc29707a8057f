"""What the lab found, as data."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from postroom.lab.ledger import Verdict
from postroom.lab.marks import Marks

FIGURES = ("lost", "duplicate_effects", "out_of_order", "stuck", "ghosts")
"""The figures that must be zero."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What became of one scenario."""

    name: str
    summary: str
    verdict: Verdict
    killed: Mapping[str, int] = field(default_factory=dict)
    """How many processes were ended by SIGKILL, by the part that they played."""
    recovery_seconds: float
    """From the end of the last fault until nothing was on its way any more."""
    seconds: float
    """How long all of it took."""
    checks: Sequence[tuple[str, bool]] = ()
    """What the scenario asked beyond the figures."""
    marks: Marks = field(default_factory=Marks)

    @property
    def kills(self) -> int:
        """How many processes were ended by SIGKILL."""
        return sum(self.killed.values())

    @property
    def passed(self) -> bool:
        """Whether all figures are zero and all that the scenario asked held."""
        return self.verdict.clean and not self.failed

    @property
    def failed(self) -> Sequence[str]:
        """What did not hold, in words."""
        return [what for what, held in self.checks if not held]

    def figures(self) -> Mapping[str, int]:
        """Return the figures that must be zero."""
        return {name: getattr(self.verdict, name) for name in FIGURES}

    def to_dict(self) -> Mapping[str, object]:
        """Return the result as it goes into the JSON file."""
        verdict = self.verdict
        return {
            "name": self.name,
            "summary": self.summary,
            "passed": self.passed,
            **self.figures(),
            "resent": verdict.resent,
            "kills": self.kills,
            "killed": dict(self.killed),
            "recovery_seconds": round(self.recovery_seconds, 3),
            "messages": verdict.messages,
            "dead": verdict.dead,
            "parked": verdict.parked,
            "ordered_amount": verdict.ordered_amount,
            "effect_amounts": dict(verdict.effect_amounts),
            "seconds": round(self.seconds, 3),
            "checks": [{"what": what, "held": held} for what, held in self.checks],
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """One run of the lab."""

    seed: int
    plant: str = ""
    scenarios: Sequence[Result] = ()
    skipped: Mapping[str, str] = field(default_factory=dict)
    """Scenarios that could not be played here, and why."""
    naive: Result | None = None
    """The same storm on "save, then publish"; None when it was not run."""
    store: str = "sqlite"
    broker: str = "sqlite"
    kept: str = ""
    """What the names of the schemas begin with that are left on a server."""

    @property
    def passed(self) -> bool:
        """Whether every scenario did; the baseline is not asked."""
        return all(result.passed for result in self.scenarios)

    def caught(self) -> Mapping[str, Mapping[str, int]]:
        """Return, by scenario, the figures that are not zero."""
        return {
            result.name: {name: count for name, count in result.figures().items() if count}
            for result in self.scenarios
            if not result.verdict.clean
        }

    def to_dict(self) -> Mapping[str, object]:
        """Return the report as it goes into the JSON file."""
        return {
            "seed": self.seed,
            "store": self.store,
            "broker": self.broker,
            "plant": self.plant or None,
            "passed": self.passed,
            "skipped": dict(self.skipped),
            "kills": sum(result.kills for result in self.scenarios),
            "naive": None if self.naive is None else self.naive.to_dict(),
            "scenarios": [result.to_dict() for result in self.scenarios],
        }

    def write(self, path: Path) -> None:
        """Write the JSON file."""
        path.write_text(json.dumps(self.to_dict(), indent=2) + "\n")
