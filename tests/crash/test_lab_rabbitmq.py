"""The same shop with RabbitMQ between its processes, and what can only happen to such a server."""

import json
import os
import signal
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

import pytest

from postroom.lab import runner
from postroom.lab.broker import ALARM, FILE, LIMIT, SERVER, WHY_NOT
from postroom.lab.report import FIGURES
from postroom.lab.runner import Plan
from postroom.lab.scenarios import outages
from postroom.lab.servers.postgresql import installed as postgresql_installed
from postroom.lab.servers.rabbitmq import PID_FILES, ask, installed, make_vhost, remove_vhost
from tests.crash.running import LONGEST, Run, command, lives, processes, run_lab, wait_until
from tests.rabbitmq import until_up
from tests.servers import Server, needed, rabbitmq_servers

pytestmark = [pytest.mark.crash, pytest.mark.timeout(LONGEST)]

OWN = needed(
    [Server("own", "rabbitmq")] if installed() and postgresql_installed() else [],
    "RabbitMQ and PostgreSQL",
)
NAMED = needed(rabbitmq_servers(), "RabbitMQ")
NAMES = [
    *(one.name for one in outages.SCENARIOS),
    *("peak-day", "crash-before-settle", "consumer-after-commit", "twice-in-parallel", "poison"),
    runner.STORM,
]


@pytest.fixture(scope="module", params=OWN)
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Run it once on servers of the lab's own, with a short storm."""
    only = [argument for name in NAMES for argument in ("--only", name)]
    return run_lab(
        tmp_path_factory.mktemp("lab"),
        *("--broker", request.param.url, "--store", "postgresql"),
        *("--seconds", "12", "--seed", "7", *only),
    )


@pytest.mark.parametrize("name", NAMES)
def test_a_scenario_leaves_nothing_wrong(run: Run, name: str) -> None:
    scenario = run.scenario(name)

    assert {figure: scenario[figure] for figure in FIGURES} == dict.fromkeys(FIGURES, 0)
    assert [check["what"] for check in scenario["checks"] if not check["held"]] == []
    assert scenario["messages"] > 0


def test_the_broker_dies_and_comes_back(run: Run) -> None:
    """Once in its own scenario, at least once in the storm, where the database does too."""
    asked = [
        check["held"]
        for check in run.scenario("broker-killed")["checks"]
        if check["what"].startswith("an order was in effect")
    ]

    assert run.scenario("broker-killed")["killed"] == {"broker": 1}
    assert asked == [True, True]
    assert run.scenario(runner.STORM)["killed"]["broker"] >= 1
    assert run.scenario(runner.STORM)["killed"]["server"] >= 1


def test_copies_are_counted(run: Run) -> None:
    assert run.scenario("twice-in-parallel")["resent"] == 120
    assert run.scenario("crash-before-settle")["resent"] > 0


def test_the_report_names_the_broker(run: Run) -> None:
    assert run.report["broker"] == "rabbitmq"
    assert run.code == 0


def test_what_does_not_apply_to_a_broker_is_known_with_the_reason() -> None:
    files = {"broker-locked": WHY_NOT[FILE], "broker-missing": WHY_NOT[FILE]}
    servers = {
        "broker-killed": WHY_NOT[SERVER],
        "broker-killed-retrying": WHY_NOT[SERVER],
        "broker-blocked": WHY_NOT[ALARM],
        "too-large": WHY_NOT[LIMIT],
    }

    assert Plan(seed=0).unfit() == {}
    assert Plan(seed=0, broker="rabbitmq").unfit() == files
    assert Plan(seed=0, broker="amqp://127.0.0.1/").unfit() == {**files, **servers}


@pytest.mark.parametrize("server", OWN)
def test_a_relay_that_believes_what_it_wrote_is_caught(server: Server, tmp_path: Path) -> None:
    run = run_lab(tmp_path, "--broker", server.url, "--plant", "no-confirm")

    planted = run.scenario("broker-unbound")
    assert run.code == 1
    assert {figure for figure in FIGURES if planted[figure]} == {"lost"}


@dataclass(frozen=True)
class Account:
    """A virtual host of a server that is used, and somebody's address of it."""

    server: str
    vhost: str
    url: str

    def hosts(self) -> set[str]:
        """Return the names of all virtual hosts that a lab has made."""
        return {name for name in self._names("/vhosts") if name.startswith("postroom-lab-")}

    def things(self) -> set[str]:
        """Return the names of the queues and exchanges in this virtual host."""
        return {*self._names(f"/queues/{self.vhost}"), *self._names(f"/exchanges/{self.vhost}")}

    def _names(self, path: str) -> Sequence[str]:
        found = ask(self.server, "GET", path)
        assert isinstance(found, list)
        return [each["name"] for each in found]


@pytest.fixture(params=NAMED)
def owner(request: pytest.FixtureRequest) -> Iterator[Account]:
    """Somebody who may make virtual hosts."""
    yield from _account(request.param.url, "administrator")


@pytest.fixture(params=NAMED)
def guest(request: pytest.FixtureRequest) -> Iterator[Account]:
    """Somebody who may not."""
    yield from _account(request.param.url, "")


def _account(server: str, tags: str) -> Iterator[Account]:
    until_up(server)
    vhost = name = f"test-{uuid4().hex[:12]}"
    own = make_vhost(server, vhost)
    place = own.rpartition("@")[2]
    ask(server, "PUT", f"/users/{name}", {"password": "secret", "tags": tags})
    allowed = {"configure": ".*", "write": ".*", "read": ".*"}
    ask(server, "PUT", f"/permissions/{vhost}/{name}", allowed)
    options = server.partition("?")[2]
    try:
        yield Account(server, vhost, f"amqp://{name}:secret@{place}?{options}")
    finally:
        ask(server, "DELETE", f"/users/{name}")
        remove_vhost(server, vhost)


def test_a_server_that_is_named_is_left_as_it_was(owner: Account, tmp_path: Path) -> None:
    hosts, things = owner.hosts(), owner.things()

    run = run_lab(
        tmp_path,
        *("--broker", owner.url, "--only", "crash-before-settle", "--only", "broker-cut"),
    )

    assert run.code == 0
    assert (owner.hosts(), owner.things()) == (hosts, things)
    assert "secret" not in run.output + run.page + json.dumps(run.report)


def test_who_may_make_no_virtual_host_is_left_without_a_trace(
    guest: Account, tmp_path: Path
) -> None:
    things = guest.things()

    run = run_lab(
        tmp_path,
        *("--broker", guest.url, "--only", "broker-unbound", "--only", "poison"),
    )

    assert run.code == 0
    assert guest.things() == things


def test_nothing_is_left_on_a_server_when_the_lab_is_killed(owner: Account, tmp_path: Path) -> None:
    before = owner.hosts()
    lab = start_storm(owner.url, tmp_path)
    during = owner.hosts() - before

    lab.send_signal(signal.SIGKILL)
    lab.wait(60)

    assert during
    wait_until(lambda: not during & owner.hosts())


@pytest.mark.parametrize("server", OWN)
def test_no_server_is_left_when_the_lab_is_killed(server: Server, tmp_path: Path) -> None:
    lab = start_storm(server.url, tmp_path)
    (will,) = tmp_path.glob("*/will.json")
    homes = [Path(home) for home in json.loads(will.read_text())["servers"]]
    pids = [int((home / name).read_text()) for home in homes for name in PID_FILES]

    lab.send_signal(signal.SIGKILL)
    lab.wait(60)

    assert len(pids) == 2
    wait_until(lambda: not any(lives(pid) for pid in pids))
    wait_until(lambda: not any(folder.exists() for folder in (*homes, will.parent)))


def start_storm(broker: str, folder: Path) -> "subprocess.Popen[bytes]":
    """Start a long storm; return when everybody works."""
    lab = subprocess.Popen(
        command("--broker", broker, "--only", "storm", "--seconds", "100"),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "TMPDIR": str(folder)},
    )
    wait_until(lambda: len(processes(folder)) >= 8)
    return lab
