"""Several processes on one file."""

import asyncio
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from datetime import timedelta

import pytest

from postroom.outcome import Sent, Settled
from postroom.stores.sqlite import SqliteStore

SECOND = timedelta(seconds=1)

_COMMON = """
import sqlite3, sys
from postroom.message import Message
from postroom.store import Addressed
from postroom.stores.sqlite import SqliteStore

store = SqliteStore(sys.argv[1])
connection = sqlite3.connect(store.path, isolation_level=None, timeout=30)

def put(*ids):
    for one in ids:
        message = Message(id=one, type="t", payload=b"x", key=sys.argv[2])
        statement = store.insert([Addressed("default", message)])
        connection.executemany(statement.sql, statement.rows)

print("ready", flush=True)
sys.stdin.readline()
"""
_WRITE = (
    _COMMON
    + """
for number in range(100):
    connection.execute("begin immediate")
    put(f"{sys.argv[2]}/{number:03}")
    connection.execute("commit")
"""
)
_HANG = (
    _COMMON
    + """
connection.execute("begin immediate")
put("never")
print("locked", flush=True)
sys.stdin.readline()
"""
)


@pytest.fixture
async def timely_store(sqlite_store: SqliteStore) -> AsyncIterator[SqliteStore]:
    """The store with the machine's own clock."""
    store = SqliteStore(sqlite_store.path)
    await store.open()
    yield store
    await store.close()


@contextmanager
def running(program: str, store: SqliteStore, name: str) -> Iterator[subprocess.Popen[str]]:
    """Start a program that says that it is ready and waits for a line."""
    with subprocess.Popen(
        [sys.executable, "-c", program, str(store.path), name],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert line(process) == "ready"
        yield process


def line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def go(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    process.stdin.write("\n")
    process.stdin.flush()


async def test_writers_and_a_relay_in_processes_of_their_own(sqlite_store: SqliteStore) -> None:
    store = sqlite_store
    lanes = await store.lease(
        "relay", routes={"default": True}, lease=15 * SECOND, renewal=5 * SECOND
    )
    sent: list[str] = []
    with (
        running(_WRITE, store, "a") as first,
        running(_WRITE, store, "b") as second,
    ):
        for process in (first, second):
            go(process)
        while len(sent) < 200:
            entries = await store.read(lanes, limit=50, per_lane=50, max_bytes=1_000)
            done = await store.settle(lanes, [Settled(e, Sent()) for e in entries], keep=False)
            assert done == {entry.seq for entry in entries}
            sent += [entry.message.id for entry in entries]

    assert (first.returncode, second.returncode) == (0, 0)
    for name in ("a", "b"):
        of_key = [one for one in sent if one.startswith(f"{name}/")]
        assert of_key == [f"{name}/{number:03}" for number in range(100)]


async def test_a_commit_of_another_process_ends_a_wait(timely_store: SqliteStore) -> None:
    store = timely_store
    with running(_WRITE, store, "a") as process:
        await store.wait(timedelta(milliseconds=5))
        waiting = asyncio.create_task(store.wait(timedelta(minutes=1)))
        go(process)

        await asyncio.wait_for(waiting, 30)


async def test_a_process_killed_in_its_transaction_leaves_nothing(
    sqlite_store: SqliteStore,
) -> None:
    store = sqlite_store
    with running(_HANG, store, "a") as process:
        go(process)
        assert line(process) == "locked"

        process.send_signal(signal.SIGKILL)
        process.wait()

    lanes = await store.lease(
        "relay", routes={"default": True}, lease=15 * SECOND, renewal=5 * SECOND
    )
    assert await store.read(lanes, limit=9, per_lane=9, max_bytes=9) == []
    assert len(lanes) == 64
