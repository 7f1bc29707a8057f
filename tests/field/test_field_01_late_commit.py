"""Late commit with a lower id is skipped.

A transaction takes its place in the outbox and stays open, a later one commits first. The relay
drains in between, with marks as high as they may be. The late message must go out within one
poll, the other once, and the gap that a rollback leaves must cause no wait.
"""

import psycopg
import pytest

from postroom.outbox import SyncOutbox
from postroom.testing.clock import ManualClock
from tests.field.conftest import SERVERS
from tests.relay.conftest import clock, note, on_postgresql
from tests.servers import Server

__all__ = ["clock"]


@pytest.mark.parametrize("server", SERVERS)
async def test_field_01_late_commit(server: Server, clock: ManualClock) -> None:
    with on_postgresql(clock, server.url) as stage, psycopg.connect(server.url) as late:
        await stage.store.open()
        relay, outbox = stage.relay(), SyncOutbox(stage.store)
        late.execute("select")
        outbox.put(late, note("late", "a"))
        with psycopg.connect(server.url) as gone:
            gone.execute("select")
            outbox.put(gone, note("rolled back", "b"))
            gone.rollback()
        stage.commit(note("early", "c"))
        for _ in range(5):
            await stage.settle_down(relay)
            clock.advance(1)
        assert stage.arrived() == ["early"], "it waits for no gap"

        late.commit()
        clock.advance(stage.options.poll.total_seconds())
        await relay.step()

        assert stage.arrived() == ["early", "late"]
        await stage.store.close()
