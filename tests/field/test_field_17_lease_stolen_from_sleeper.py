"""Lease stolen from a sleeping worker.

A real relay process is stopped by SIGSTOP between publish and settle, past its lease. Another
one takes over, the broker refuses, a retry is noted. When the first one goes on, its late success
must not undo that, and it must send nothing more of its batch.
"""

import asyncio
import os
import signal
import sys
from datetime import timedelta

import pytest

from postroom.message import Message, State
from postroom.outbox import SyncOutbox
from postroom.relay import Relay, RelayOptions
from postroom.retry import Backoff, RetryPolicy
from postroom.route import Route, Routes
from postroom.store import Query, Store
from postroom.testing.scripted import ScriptedBroker
from tests.field.conftest import Shop

SLEEPER = """
import asyncio, os, signal, sys
from datetime import timedelta
from postroom import events
from postroom.relay import Relay, RelayOptions
from postroom.stores.postgresql import PostgresqlStore
from postroom.stores.sqlite import SqliteStore
from postroom.testing.scripted import ScriptedBroker

def watch(event):
    if isinstance(event, events.Published) and not watch.slept:
        watch.slept = True
        os.kill(os.getpid(), signal.SIGSTOP)
    print(type(event).__name__, flush=True)

watch.slept = False

async def main():
    url, _, schema = sys.argv[1].partition("#")
    store = PostgresqlStore(url, schema=schema) if schema else SqliteStore(url)
    await store.open()
    broker = ScriptedBroker()
    options = RelayOptions(
        lease=timedelta(seconds=1),
        renewal=timedelta(milliseconds=200),
        publish_timeout=timedelta(milliseconds=500),
    )
    relay = Relay(store, broker, options=options, observers=[watch], name="sleeper")
    await relay.step()
    print("calls", len(broker.calls), flush=True)
    await store.close()

asyncio.run(main())
"""

OPTIONS = RelayOptions(
    lease=timedelta(seconds=1),
    renewal=timedelta(milliseconds=200),
    publish_timeout=timedelta(milliseconds=500),
)


@pytest.mark.crash
async def test_field_17_lease_stolen_from_sleeper(shop: Shop) -> None:
    store: Store = shop.store
    await store.open()
    messages = [Message(type="t", payload=b"%d" % n, key="k") for n in range(3)]
    with shop.begin() as connection:
        SyncOutbox(store).put(connection, *messages)
    sleeper = await asyncio.create_subprocess_exec(
        sys.executable, "-c", SLEEPER, shop.address, stdout=asyncio.subprocess.PIPE
    )
    try:
        await asyncio.to_thread(_until_stopped, sleeper.pid)
        broker = ScriptedBroker()
        broker.refuse(messages[0].id, times=1)
        await _take_over(store, broker)
        (head,) = await store.find(Query(ids=(messages[0].id,)), limit=1)
        assert (head.state, head.attempts) == (State.WAITING, 1)

        os.kill(sleeper.pid, signal.SIGCONT)
        output, _ = await asyncio.wait_for(sleeper.communicate(), 20)
    finally:
        if sleeper.returncode is None:
            sleeper.kill()
            await sleeper.wait()

    said = output.decode().split("\n")
    (head,) = await store.find(Query(ids=(messages[0].id,)), limit=1)
    assert (head.state, head.attempts) == (State.WAITING, 1), "the heir's decision stands"
    assert "SettleRefused" in said
    assert "calls 1" in said, "it sent nothing more of its batch"
    assert "Sent" not in said
    await store.close()


async def _take_over(store: Store, broker: ScriptedBroker) -> None:
    """Step another relay until it owned the lanes and was refused."""
    patient = Route(retry=RetryPolicy(backoff=Backoff(initial=timedelta(minutes=1))))
    heir = Relay(store, broker, options=OPTIONS, routes=Routes([patient]), name="heir")
    async with asyncio.timeout(20):
        while not (await heir.step()).refused:
            await store.wait(timedelta(milliseconds=50))


def _until_stopped(pid: int) -> None:
    """Return when the child has stopped; raises ChildProcessError if it ended instead."""
    result = os.waitid(os.P_PID, pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
    if result is None or result.si_code != os.CLD_STOPPED:
        raise ChildProcessError("the relay ended before it was to stop")
