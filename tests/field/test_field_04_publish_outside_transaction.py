"""Network publish inside the transaction that holds the claim.

A slow broker must not turn into a long transaction: while the broker hangs, the relay holds no
lock and no open transaction, and another relay goes on with other rows.
"""

import asyncio
import sqlite3
from contextlib import closing
from pathlib import Path

from postroom.message import Message
from postroom.outbox import SyncOutbox
from postroom.relay import Relay
from postroom.stores.sqlite import SqliteStore
from postroom.testing.clock import ManualClock
from postroom.testing.scripted import ScriptedBroker


def put(store: SqliteStore, *keys: str) -> None:
    """Commit a message for each key, without waiting for any lock."""
    with closing(sqlite3.connect(store.path, isolation_level=None, timeout=0)) as connection:
        connection.execute("begin immediate")
        SyncOutbox(store).put(
            connection, *(Message(type="t", payload=key.encode(), key=key) for key in keys)
        )
        connection.execute("commit")


async def test_field_04_publish_outside_transaction(tmp_path: Path) -> None:
    clock = ManualClock()
    store = SqliteStore(tmp_path / "outbox.db", clock=clock)
    await store.open()
    await store.migrate()
    hanging, healthy = ScriptedBroker(clock=clock), ScriptedBroker(clock=clock)
    hanging.hang(lambda _: True, times=None)
    one = Relay(store, hanging, clock=clock, name="one")
    two = Relay(store, healthy, clock=clock, name="two")
    for _ in range(4):
        await one.step()
        await two.step()
        clock.advance(1)
    keys = [f"k{number}" for number in range(100)]
    put(store, *keys)

    stuck = asyncio.ensure_future(one.step())
    while not clock.sleepers:
        await asyncio.sleep(0)
    put(store, "while the broker hangs")
    await two.step()

    assert not stuck.done()
    assert len(healthy.arrived) > 30, "the other relay goes on with its lanes"
    clock.advance(6)
    await stuck
    for _ in range(20):
        clock.advance(1)
        await one.leave()
        await two.step()
    assert {message.payload.decode() for message in healthy.arrived} == {
        *keys,
        "while the broker hangs",
    }
    await store.close()
