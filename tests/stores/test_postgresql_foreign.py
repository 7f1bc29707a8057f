"""Rows that another program wrote, with times that no calendar has."""

from datetime import UTC, datetime, timedelta

import pytest

from postroom.errors import SchemaMismatch
from postroom.message import Message
from postroom.store import Query
from tests.stores.postgresql import Ground, lease


async def test_a_time_in_nanoseconds_stops_nobody(ground: Ground) -> None:
    store = await ground.store()
    lanes = await lease(store)
    later = ground.clock.now() + timedelta(days=1)
    await ground.put(Message(type="t", payload=b"", deliver_at=later))
    await ground.sql(
        "update postroom_outbox set due_at = 1900000000000000000, created_at = 1900000000000000000"
    )

    swept = await store.sweep(lanes, limit=9, orphans=True)

    assert swept.next_due == datetime.max.replace(tzinfo=UTC)
    await store.stats()
    assert len(await store.find(Query(), limit=9)) == 1


async def test_tables_of_a_newer_version_are_left_alone(ground: Ground) -> None:
    store = await ground.store()
    await ground.sql("insert into postroom_schema values (99, 'future', 0)")

    with pytest.raises(SchemaMismatch, match="upgrade Postroom"):
        await store.migrate()
