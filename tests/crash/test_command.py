"""How `postroom lab` is used, and what it says to wrong use."""

import subprocess
from collections.abc import Sequence

import pytest

from postroom.lab.scenarios import SCENARIOS
from postroom.lab.servers.postgresql import free_port
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
        ["--store", "oracle"],
        ["--broker", "rocket"],
        ["--broker", "amqp:guest"],
        ["--broker", "rabbitmq://guest@127.0.0.1/"],
        ["--only", "broker-killed"],
        ["--only", "broker-locked", "--broker", "amqp://shop@127.0.0.1/"],
        ["--only", "broker-blocked", "--broker", "amqp://shop@127.0.0.1/"],
        ["--only", "wire-cut"],
        ["--only", "savepoint-trap", "--store", "postgresql://shop@127.0.0.1/shop"],
        ["--plant", "by-position"],
    ],
)
def test_wrong_use_ends_with_two(arguments: Sequence[str]) -> None:
    done = lab(*arguments)

    assert done.returncode == 2
    assert done.stderr


def test_a_variant_that_nothing_catches_here_is_told_where_it_is_caught() -> None:
    done = lab("--plant", "by-position")

    assert "nothing catches by-position on sqlite" in done.stderr
    assert "--store postgresql --broker embedded" in done.stderr


def test_a_broker_where_nobody_answers_ends_with_three() -> None:
    done = lab("--broker", f"amqp://shop:secret@127.0.0.1:{free_port()}/shop")

    assert done.returncode == 3
    assert "cannot be used" in done.stderr
    assert "secret" not in done.stdout + done.stderr


def test_a_database_where_nobody_answers_ends_with_three() -> None:
    done = lab("--store", f"postgresql://shop:secret@127.0.0.1:{free_port()}/shop")

    assert done.returncode == 3
    assert "cannot be used" in done.stderr
    assert "secret" not in done.stdout + done.stderr
