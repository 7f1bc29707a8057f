"""However the lab itself ends, no process and no file is left."""

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.crash.running import LONGEST, command

pytestmark = [pytest.mark.crash, pytest.mark.timeout(LONGEST)]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_nothing_is_left_when_the_lab_is_ended(number: signal.Signals, tmp_path: Path) -> None:
    lab = subprocess.Popen(
        command("--only", "storm", "--seconds", "100"),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "TMPDIR": str(tmp_path)},
    )
    wait_until(lambda: len(_processes(tmp_path)) >= 8)
    pids = _processes(tmp_path)

    lab.send_signal(number)
    lab.wait(60)

    assert lab.returncode == (-number if number == signal.SIGKILL else 128 + number)
    wait_until(lambda: not any(_lives(pid) for pid in pids))
    wait_until(lambda: not list(tmp_path.iterdir()))


def wait_until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.05)


def _processes(folder: Path) -> set[int]:
    """Return the numbers of all processes that have begun to work."""
    pids = set()
    for path in folder.glob("*/*/journals/*.jsonl"):
        for line in path.read_text().split("\n")[:-1]:
            record = json.loads(line)
            if record["event"] == "ready":
                pids.add(record["pid"])
    return pids


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
