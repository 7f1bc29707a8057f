"""However the lab itself ends, no process and no file is left."""

import json
import os
import signal
import subprocess
from pathlib import Path

import pytest

from tests.crash.running import LONGEST, command, lives, processes, wait_until

pytestmark = [pytest.mark.crash, pytest.mark.timeout(LONGEST)]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_nothing_is_left_when_the_lab_is_ended(number: signal.Signals, tmp_path: Path) -> None:
    lab = subprocess.Popen(
        command("--only", "storm", "--seconds", "100"),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "TMPDIR": str(tmp_path)},
    )
    wait_until(lambda: len(processes(tmp_path)) >= 8)
    pids = processes(tmp_path)

    lab.send_signal(number)
    lab.wait(60)

    assert lab.returncode == (-number if number == signal.SIGKILL else 128 + number)
    wait_until(lambda: not any(lives(pid) for pid in pids))
    wait_until(lambda: not list(tmp_path.iterdir()))


def test_figures_go_to_standard_output_alone(tmp_path: Path) -> None:
    run = subprocess.run(
        command("--only", "naive", "--seconds", "1", "--json", "-"),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )

    assert run.returncode == 0, run.stderr
    assert json.loads(run.stdout)["naive"]["messages"] > 0
    assert "naive alone, which proves nothing" in run.stderr
    assert list(tmp_path.iterdir()) == []
