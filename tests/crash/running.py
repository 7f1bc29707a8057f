"""Runs `postroom lab` as a user would."""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
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
