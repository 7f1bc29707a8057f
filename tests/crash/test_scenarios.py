"""Real processes, killed at every point: nothing is lost, doubled, out of order or stuck."""

import pytest

from postroom.lab import runner
from postroom.lab.report import FIGURES
from postroom.lab.runner import Plan
from tests.crash.running import LONGEST, Run

pytestmark = [pytest.mark.crash, pytest.mark.timeout(LONGEST)]

NAMES = [*(one.name for one in Plan(seed=0).chosen()), runner.STORM]
KILLS = {
    "commit-fails": 2,
    "crash-before-publish": 2,
    "crash-before-settle": 2,
    "broker-locked": 1,
    "consumer-before-commit": 4,
    "consumer-after-commit": 4,
}


@pytest.mark.parametrize("name", NAMES)
def test_a_scenario_leaves_nothing_wrong(whole_run: Run, name: str) -> None:
    scenario = whole_run.scenario(name)

    assert {figure: scenario[figure] for figure in FIGURES} == dict.fromkeys(FIGURES, 0)
    assert [check["what"] for check in scenario["checks"] if not check["held"]] == []
    assert scenario["messages"] > 0


@pytest.mark.parametrize("name", KILLS)
def test_the_kills_of_a_scenario_really_happen(whole_run: Run, name: str) -> None:
    assert whole_run.scenario(name)["kills"] == KILLS[name]


def test_the_storm_kills_and_follows_its_seed(whole_run: Run) -> None:
    storm = whole_run.scenario(runner.STORM)

    assert storm["kills"] >= 5
    assert whole_run.report["seed"] == 7


def test_a_crash_after_the_confirm_sends_again(whole_run: Run) -> None:
    assert whole_run.scenario("crash-before-settle")["resent"] > 0


@pytest.mark.parametrize("name", ["ten-relays", "sigterm", "crash-before-publish"])
def test_nothing_is_sent_twice_without_need(whole_run: Run, name: str) -> None:
    assert whole_run.scenario(name)["resent"] == 0


@pytest.mark.parametrize("name", NAMES)
def test_what_was_paid_is_what_was_ordered(whole_run: Run, name: str) -> None:
    """The sums of the effects are those of the orders, but for what is visibly dead."""
    scenario = whole_run.scenario(name)
    if scenario["dead"] or scenario["parked"]:
        pytest.skip("some orders wait for a person")

    amounts = set(scenario["effect_amounts"].values())

    assert amounts == {scenario["ordered_amount"]}


def test_the_naive_shop_loses_or_invents(whole_run: Run) -> None:
    naive = whole_run.report["naive"]

    assert naive["lost"] + naive["ghosts"] > 0
    assert not naive["passed"]


def test_the_run_passes_and_says_so(whole_run: Run) -> None:
    assert whole_run.report["passed"]
    assert whole_run.code == 0
    assert "passed: " in whole_run.output


def test_the_figures_have_the_promised_form(whole_run: Run) -> None:
    report = whole_run.report
    keys = {
        *("name", "lost", "duplicate_effects", "out_of_order", "stuck", "ghosts", "resent"),
        *("kills", "recovery_seconds", "messages"),
    }

    assert {"seed", "store", "broker", "passed", "naive", "scenarios"} <= report.keys()
    assert all(keys <= scenario.keys() for scenario in report["scenarios"])
    assert keys <= report["naive"].keys()


def test_the_picture_needs_nothing_else(whole_run: Run) -> None:
    page = whole_run.page

    assert page.count("<svg") == len(NAMES) + 1
    assert "http" not in page.replace("http-equiv", "")
    assert "prefers-color-scheme: dark" in page
