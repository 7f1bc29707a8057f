"""The lab must be able to fail: each known mistake, built in, is caught by the right figure."""

from pathlib import Path

import pytest

from postroom.lab.report import FIGURES
from postroom.lab.runner import Plan
from postroom.lab.scenarios import SCENARIOS
from tests.crash.running import LONGEST, Run, run_lab

pytestmark = [pytest.mark.crash, pytest.mark.timeout(LONGEST)]


PLANTS = [plant for one in Plan(seed=0).chosen() for plant in one.plants]


@pytest.mark.parametrize("plant", PLANTS)
def test_a_planted_mistake_is_caught_by_its_figure(
    plant: str, tmp_path: Path, whole_run: Run
) -> None:
    run = run_lab(tmp_path, "--plant", plant)

    assert run.code == 1
    (catching,) = [one for one in SCENARIOS if plant in one.plants]
    planted, clean = run.scenario(catching.name), whole_run.scenario(catching.name)
    wrong = {figure for figure in FIGURES if planted[figure]}
    assert wrong
    assert wrong <= set(catching.figures)
    assert not any(clean[figure] for figure in FIGURES)
    assert f"{plant} was caught by {catching.name}: " in run.output
