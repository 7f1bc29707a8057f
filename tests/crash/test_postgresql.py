"""The same shop on PostgreSQL, and what can only happen to a server."""

import asyncio
import json
import os
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from postroom.lab import runner
from postroom.lab.plants import PLANTS
from postroom.lab.report import FIGURES
from postroom.lab.runner import Plan
from postroom.lab.scenarios import SCENARIOS, brokers
from postroom.lab.servers.postgresql import PID_FILE, installed
from tests.crash.running import LONGEST, Run, command, lives, processes, run_lab, wait_until
from tests.servers import Server, needed, postgresql_servers

pytestmark = [pytest.mark.crash, pytest.mark.timeout(LONGEST)]

OWN = needed([Server("own", "postgresql")] if installed() else [], "PostgreSQL")
NAMED = needed(postgresql_servers()[:1], "PostgreSQL")
ELSEWHERE = {one.name for one in brokers.SCENARIOS}
"""They are about the broker, whatever the store is."""
NAMES = [
    *(one.name for one in Plan(seed=0, store="postgresql").chosen() if one.name not in ELSEWHERE),
    runner.STORM,
]
RETURNS = {"server-restart": 2, "server-killed": 3, "failover": 4, "read-only": 1}
"""How often a server comes back in a scenario."""
CAUGHT = {plant for one in Plan(seed=0, store="postgresql").chosen() for plant in one.plants}


@pytest.fixture(scope="module", params=OWN)
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Run everything once on a server of the lab's own, with a short storm."""
    only = [argument for name in NAMES for argument in ("--only", name)]
    return run_lab(
        tmp_path_factory.mktemp("lab"),
        *("--store", request.param.url, "--seconds", "10", "--seed", "7", *only),
    )


@pytest.mark.parametrize("name", NAMES)
def test_a_scenario_leaves_nothing_wrong(run: Run, name: str) -> None:
    if name in run.report["skipped"]:
        pytest.skip(run.report["skipped"][name])
    scenario = run.scenario(name)

    assert {figure: scenario[figure] for figure in FIGURES} == dict.fromkeys(FIGURES, 0)
    assert [check["what"] for check in scenario["checks"] if not check["held"]] == []
    assert scenario["messages"] > 0


def test_contending_writers_write_as_much_as_was_said(run: Run) -> None:
    assert run.scenario("contending-writers")["messages"] >= 2_990


def test_the_server_dies_too(run: Run) -> None:
    assert run.scenario("server-killed")["killed"] == {"server": 3}
    assert run.scenario("failover")["killed"] == {"server": 2}
    assert run.scenario(runner.STORM)["kills"] >= 5
    assert run.scenario(runner.STORM)["killed"]["server"] >= 1


@pytest.mark.parametrize("name", RETURNS)
def test_a_new_order_is_in_effect_soon_after_the_server_is_back(run: Run, name: str) -> None:
    """The scenario itself asks for ten seconds; here it is that it asked, as often as it must."""
    asked = [
        check["held"]
        for check in run.scenario(name)["checks"]
        if check["what"].startswith("an order was in effect")
    ]

    assert asked == [True] * RETURNS[name]
    assert run.scenario(name)["recovery_seconds"] <= 10


def test_the_report_names_the_store(run: Run) -> None:
    assert run.report["store"] == "postgresql"
    assert run.report["passed"]
    assert run.code == 0


@pytest.mark.parametrize("server", OWN)
@pytest.mark.parametrize("plant", sorted(CAUGHT))
def test_a_planted_mistake_is_caught_by_its_figure(
    server: Server, plant: str, tmp_path: Path
) -> None:
    run = run_lab(tmp_path, "--store", server.url, "--plant", plant)

    (catching,) = [one for one in SCENARIOS if plant in one.plants]
    planted = run.scenario(catching.name)
    wrong = {figure for figure in FIGURES if planted[figure]}
    assert run.code == 1
    assert wrong
    assert wrong <= set(catching.figures)


def test_every_mistake_is_planted_somewhere() -> None:
    assert {plant for one in SCENARIOS for plant in one.plants} == set(PLANTS)


@pytest.mark.parametrize("server", NAMED)
def test_a_database_that_is_named_is_left_as_it_was(server: Server, tmp_path: Path) -> None:
    before = schemas(server.url)

    run = run_lab(
        tmp_path,
        *("--store", server.url, "--only", "crash-before-settle", "--only", "backend-terminated"),
    )

    assert run.code == 0
    assert not set(schemas(server.url)) - set(before)


@pytest.mark.parametrize("server", NAMED)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_nothing_is_left_on_a_server_when_the_lab_is_ended(
    server: Server, number: signal.Signals, tmp_path: Path
) -> None:
    lab = start_storm(server.url, tmp_path)
    during = schemas(server.url)

    lab.send_signal(number)
    lab.wait(60)

    assert during
    wait_until(lambda: not set(during) & set(schemas(server.url)))


@pytest.mark.parametrize("server", OWN)
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_no_server_is_left_when_the_lab_is_ended(
    server: Server, number: signal.Signals, tmp_path: Path
) -> None:
    lab = start_storm(server.url, tmp_path)
    (will,) = tmp_path.glob("*/will.json")
    homes = [Path(home) for home in json.loads(will.read_text())["servers"]]
    pids = [int((home / PID_FILE).read_text().split()[0]) for home in homes]

    lab.send_signal(number)
    lab.wait(60)

    assert len(pids) == 2
    wait_until(lambda: not any(lives(pid) for pid in pids))
    wait_until(lambda: not any(folder.exists() for folder in (*homes, will.parent)))


def start_storm(store: str, folder: Path) -> subprocess.Popen[bytes]:
    """Start a long storm; return when everybody works."""
    lab = subprocess.Popen(
        command("--store", store, "--only", "storm", "--seconds", "100"),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "TMPDIR": str(folder)},
    )
    wait_until(lambda: len(processes(folder)) >= 8)
    return lab


def schemas(url: str) -> Sequence[str]:
    """Return the lab's schemas in that database."""

    async def ask() -> list[Any]:
        connection = await asyncpg.connect(url)
        try:
            return list(
                await connection.fetch(
                    "select nspname from pg_namespace where starts_with(nspname, 'postroom_lab_')"
                )
            )
        finally:
            await connection.close()

    return [row[0] for row in asyncio.run(ask())]
