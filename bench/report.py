"""Results: one row per goal, as JSON, as a table and as a page with the machine on top."""

import json
import os
import platform
import statistics
import subprocess
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

Bound = Literal["at most", "at least"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """One measured value, and what it was to be."""

    name: str
    value: float
    unit: str
    baseline: float | None = None
    """The same unit, measured in the same run without the part that is judged."""
    ratio: float | None = None
    """The median of value / baseline over the rounds: what a goal without a unit speaks of."""
    goal: float | None = None
    bound: Bound = "at most"

    @property
    def met(self) -> bool | None:
        """Whether the goal is met; None where there is none."""
        if self.goal is None:
            return None
        judged = self.value if self.ratio is None else self.ratio
        return judged <= self.goal if self.bound == "at most" else judged >= self.goal

    def as_json(self) -> dict[str, object]:
        """Return the seven fields of the file."""
        return {
            "name": self.name,
            "value": _rounded(self.value),
            "unit": self.unit,
            "baseline": _rounded(self.baseline),
            "ratio": _rounded(self.ratio),
            "goal": self.goal,
            "met": self.met,
        }

    def cells(self) -> tuple[str, ...]:
        """Return the row of the table."""
        judged = {None: "", True: "yes", False: "MISSED"}[self.met]
        goal = "" if self.goal is None else f"{self.bound} {self.goal:g}"
        numbers = (_text(number) for number in (self.value, self.baseline, self.ratio))
        value, baseline, ratio = numbers
        return (self.name, value, self.unit, baseline, ratio, goal, judged)


def compared(
    name: str,
    pairs: Sequence[tuple[float, float]],
    *,
    unit: str,
    goal: float | None = None,
    bound: Bound = "at most",
) -> Result:
    """Return the medians of alternating rounds, each a value and its baseline."""
    return Result(
        name=name,
        value=statistics.median(value for value, _ in pairs),
        unit=unit,
        baseline=statistics.median(baseline for _, baseline in pairs),
        ratio=statistics.median(value / baseline for value, baseline in pairs),
        goal=goal,
        bound=bound,
    )


def quantile(values: Iterable[float], part: float) -> float:
    """Return the value that this part of all values does not exceed."""
    ordered = sorted(values)
    return ordered[min(int(len(ordered) * part), len(ordered) - 1)]


def as_json(results: Iterable[Result]) -> str:
    """Return the list of results."""
    return json.dumps([result.as_json() for result in results], indent=2) + "\n"


def as_table(results: Iterable[Result]) -> str:
    """Return the results as aligned text."""
    rows = [_HEADINGS, *(result.cells() for result in results)]
    widths = [max(len(row[place]) for row in rows) for place in range(len(_HEADINGS))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    )


def as_markdown(results: Iterable[Result], facts: Iterable[str]) -> str:
    """Return a page: what was measured where, and the results."""
    lines = ["# Benchmark results", "", *(f"- {fact}" for fact in facts), ""]
    lines += [_line(_HEADINGS), _line(["---"] * len(_HEADINGS))]
    lines += [_line(result.cells()) for result in results]
    return "\n".join(lines) + "\n"


def facts(directory: Path, database: str, *, quick: bool) -> Iterator[str]:
    """Say what the numbers depend on: code, machine, versions, disk and load."""
    yield f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC, {'quick' if quick else 'full'} run"
    yield f"commit {_commit()}"
    yield f"{_processor()}, {os.cpu_count()} cores, {platform.system()} {platform.release()}"
    yield f"Python {platform.python_version()}, {database}"
    yield f"files in {directory.parent}: {_sync_millis(directory):.2f} ms for a write and fsync"
    yield f"load before the run: {load()}"


def load() -> str:
    """Return the load averages of the last 1, 5 and 15 minutes."""
    return " ".join(f"{average:.1f}" for average in os.getloadavg())


_HEADINGS = ("name", "value", "unit", "baseline", "ratio", "goal", "met")


def _line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _rounded(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.4g}")


def _text(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"  # noqa: PLR2004


def _commit() -> str:
    root = Path(__file__).parent
    try:
        commit = _git(root, "rev-parse", "--short=12", "HEAD")
        changed = _git(root, "status", "--porcelain", "--", "../src", ".")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return f"{commit}, with changes that are not committed" if changed else commit


def _git(root: Path, *arguments: str) -> str:
    command = ["git", *arguments]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def _processor() -> str:
    try:
        text = Path("/proc/cpuinfo").read_text("utf-8")
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.partition(":")[2].strip() for line in text.splitlines() if "model name" in line]
    return names[0] if names else platform.machine()


def _sync_millis(directory: Path, times: int = 30) -> float:
    """Return the median time of a small write that waits for the disk: most of a commit."""
    path = directory / "sync"
    spent = []
    with path.open("wb") as file:
        for _ in range(times):
            began = time.perf_counter()
            file.write(bytes(4096))
            file.flush()
            os.fsync(file.fileno())
            spent.append(time.perf_counter() - began)
    path.unlink()
    return statistics.median(spent) * 1000
