"""Runs `postroom lab` as a user would."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

LONGEST = 300


@dataclass(frozen=True)
class Run:
    """A run of `postroom lab` that has ended."""

    code: int
    output: str
    page: str
    report: dict[str, Any]

    def scenario(self, name: str) -> dict[str, Any]:
        """Return what became of one scenario."""
        found: list[dict[str, Any]] = [
            one for one in self.report["scenarios"] if one["name"] == name
        ]
        assert len(found) == 1
        return found[0]


def command(*arguments: str) -> Sequence[str]:
    return [sys.executable, "-m", "postroom.cli.main", "lab", *arguments]


def run_lab(folder: Path, *arguments: str) -> Run:
    """Run the lab as a user would, with its own folder for everything that is left behind."""
    folder.mkdir(exist_ok=True)
    figures, page = folder / "out.json", folder / "out.html"
    done = subprocess.run(
        command(*arguments, "--json", str(figures), "--html", str(page)),
        capture_output=True,
        check=False,
        text=True,
        timeout=LONGEST,
        env={**os.environ, "TMPDIR": str(folder)},
    )
    if not figures.exists():
        pytest.fail(f"the lab ended with {done.returncode}: {done.stdout}{done.stderr}")
    report = json.loads(figures.read_text())
    return Run(done.returncode, done.stdout + done.stderr, page.read_text(), report)


def wait_until(condition: Callable[[], bool]) -> None:
    """Wait until it holds, for a minute at most."""
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.05)


def processes(folder: Path) -> set[int]:
    """Return the numbers of all processes that have begun to work."""
    pids = set()
    for path in folder.glob("*/*/journals/*.jsonl"):
        for line in path.read_text().split("\n")[:-1]:
            record = json.loads(line)
            if record["event"] == "ready":
                pids.add(record["pid"])
    return pids


def lives(pid: int) -> bool:
    """Say whether there is such a process."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
