"""The work of taking and answering does not grow with what waits in the file."""

import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from postroom.brokers.sqlite import delivering, publishing
from postroom.brokers.sqlite.delivering import Consumer
from postroom.brokers.sqlite.file import BrokerFile
from postroom.message import Message

ROOT = Path(__file__).parents[2]
BILLING = Consumer(name="c", group="billing", topics=("orders", "parcels"), lease=15_000_000)
HOUR = 3_600_000_000


def messages(count: int, key: Callable[[int], str]) -> list[Message]:
    return [
        Message(type="t", payload=b"{}", topic="orders", id=str(n), key=key(n))
        for n in range(count)
    ]


def effort(path: Path, fill: Callable[[sqlite3.Connection], None]) -> int:
    """Return the steps of SQLite's machine that one publish, take and ack cost after `fill`."""
    file = BrokerFile(path)
    steps = 0

    def step() -> int:
        nonlocal steps
        steps += 1
        return 0

    with file.transaction(durable=False, deadline=0) as connection:
        delivering.join(connection, BILLING, 0)
        fill(connection)
        connection.set_progress_handler(step, 1)
        publishing.publish(connection, messages(1, lambda _: "mine"), 2)
        assert delivering.look(connection, BILLING, 2).more
        [handed] = delivering.take(connection, BILLING, 1, 2).handed
        delivering.ack(connection, BILLING, handed)
        connection.set_progress_handler(None, 0)
    file.close()
    return steps


def backlog(connection: sqlite3.Connection, count: int) -> None:
    publishing.publish(connection, messages(count, str), 1)


def one_blocked_key(connection: sqlite3.Connection, count: int) -> None:
    publishing.publish(connection, messages(count, lambda _: "hot"), 1)
    [handed] = delivering.take(connection, BILLING, 1, 1).handed
    delivering.retry(connection, BILLING, handed, free_at=HOUR, reason="not yet")


def delayed_keys(connection: sqlite3.Connection, count: int) -> None:
    publishing.publish(connection, messages(count, str), 1)
    for handed in delivering.take(connection, BILLING, count, 1).handed:
        delivering.retry(connection, BILLING, handed, free_at=HOUR, reason="not yet")


@pytest.mark.parametrize("fill", [backlog, one_blocked_key, delayed_keys])
def test_the_effort_is_the_same_with_fifty_times_as_much(
    tmp_path: Path, fill: Callable[[sqlite3.Connection, int], None]
) -> None:
    little = effort(tmp_path / "little.db", lambda connection: fill(connection, 100))
    much = effort(tmp_path / "much.db", lambda connection: fill(connection, 5000))

    assert much <= little * 1.1


def test_a_new_group_of_a_long_key_is_set_up_in_one_pass(tmp_path: Path) -> None:
    """Finding the first message of each key must not compare all with all."""
    file = BrokerFile(tmp_path / "broker.db")
    with file.transaction(durable=False, deadline=0) as connection:
        publishing.publish(connection, messages(5000, lambda _: "hot"), 1)
        budget = 5000 * 200
        connection.set_progress_handler(lambda: 1, budget)  # interrupts when it is spent
        delivering.join(connection, BILLING, 2)
        connection.set_progress_handler(None, 0)
        [handed] = delivering.take(connection, BILLING, 9, 2).handed
    file.close()

    assert handed.message.id == "0"


def test_the_page_shows_a_program_that_runs(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "drivers" / "embedded-broker.md").read_text()
    program = page.split('```python title="hello_broker.py"\n', 1)[1].split("```", 1)[0]

    run = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=30,
        check=True,
    )

    assert run.stdout == "7 1\n"
    with closing(sqlite3.connect(tmp_path / "broker.db")) as connection:
        assert connection.execute("SELECT count(*) FROM delivery").fetchone() == (0,)
