"""Network publish inside the transaction that holds the claim.

A slow broker must not turn into a long transaction: while the broker hangs, the relay holds no
lock and no open transaction, and another relay goes on with other rows.
"""

import asyncio
import sqlite3
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path
from uuid import uuid4

import psycopg
import pytest

from postroom.relay import Relay
from postroom.testing.clock import ManualClock
from postroom.testing.scripted import ScriptedBroker
from tests.field.conftest import SERVERS
from tests.relay.conftest import Stage, clock, note, on_postgresql, on_sqlite
from tests.servers import Server

__all__ = ["clock"]

KEYS = [f"k{number}" for number in range(100)]
LATE = "while the broker hangs"


async def test_field_04_publish_outside_transaction(clock: ManualClock, tmp_path: Path) -> None:
    path = tmp_path / "outbox.db"

    def nothing_held() -> None:
        with closing(sqlite3.connect(path, timeout=0, isolation_level=None)) as writer:
            writer.execute("begin immediate")  # fails at once if the lock is taken

    with on_sqlite(clock, path) as stage:
        await hang(stage, nothing_held)


@pytest.mark.parametrize("server", SERVERS)
async def test_field_04_publish_outside_transaction_on_postgresql(
    server: Server, clock: ManualClock
) -> None:
    name = f"field-04-{uuid4().hex[:8]}"
    ours = "select xact_start from pg_stat_activity where application_name = %s"

    def nothing_held() -> None:
        with psycopg.connect(server.url) as person:
            begun = person.execute(ours, [name]).fetchall()
        assert begun, "the relay is connected"
        assert set(begun) == {(None,)}

    with on_postgresql(clock, f"{server.url}?application_name={name}") as stage:
        await hang(stage, nothing_held)


async def hang(stage: Stage, nothing_held: Callable[[], None]) -> None:
    """Let the broker of one of two relays hang in the middle of a publish."""
    healthy = ScriptedBroker(clock=stage.clock)
    await stage.store.open()
    await stage.store.migrate()
    one, two = stage.relay("one"), Relay(stage.store, healthy, clock=stage.clock, name="two")
    for _ in range(4):
        await one.step()
        await two.step()
        stage.clock.advance(1)
    stage.commit(*(note(key, key) for key in KEYS))
    stage.broker.hang(lambda _: True, times=None)

    stuck = asyncio.ensure_future(one.step())
    while not stage.clock.sleepers:
        await asyncio.sleep(0.001)
    await soon(nothing_held)
    stage.commit(note(LATE, LATE))
    await two.step()

    assert not stuck.done()
    assert len(healthy.arrived) > 30, "the other relay goes on with its lanes"
    stage.clock.advance(6)
    await stuck
    for _ in range(20):
        stage.clock.advance(1)
        await one.leave()
        await two.step()
    arrived = {message.payload.decode() for message in healthy.arrived}
    assert arrived == {*KEYS, LATE}
    await stage.store.close()


async def soon(check: Callable[[], None]) -> None:
    """Ask until it holds: another round may be reading, but what a publish holds stays held."""
    for _ in range(500):
        with suppress(AssertionError, sqlite3.OperationalError):
            return check()
        await asyncio.sleep(0.01)
    return check()
