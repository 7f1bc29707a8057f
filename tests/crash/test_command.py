"""How `postroom lab` is used, and what it says to wrong use."""

import subprocess
from collections.abc import Sequence

import pytest

from postroom.lab.scenarios import SCENARIOS
from tests.crash.running import command


def lab(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command(*arguments), capture_output=True, check=False, text=True, timeout=60
    )


def test_it_lists_what_it_can_do() -> None:
    done = lab("--list")

    assert done.returncode == 0
    for name in (*(one.name for one in SCENARIOS), "storm", "naive"):
        assert name in done.stdout


@pytest.mark.parametrize(
    "arguments",
    [
        ["--only", "no-such-scenario"],
        ["--plant", "no-such-variant"],
        ["--seconds", "0"],
        ["--json", "/no/such/folder/out.json"],
        ["--keep", "/proc"],
    ],
)
def test_wrong_use_ends_with_two(arguments: Sequence[str]) -> None:
    done = lab(*arguments)

    assert done.returncode == 2
    assert done.stderr
