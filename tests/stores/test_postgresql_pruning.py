"""Pruning stands in nobody's way."""

import asyncio
from datetime import UTC, datetime

from postroom.stores.postgresql import pruning
from postroom.stores.postgresql.pruning import Progress
from postroom.stores.postgresql.work import Work
from postroom.stores.selection import Plan
from tests.stores.postgresql import Ground, ids, lease, message, put, sent

FILL = """
insert into postroom_outbox (id, lane, type, topic, payload, state, settled_at)
select 'old-' || n, n % 64, 't', 't', '', 'sent', n from generate_series(1, 2000) as n
"""


async def test_a_prune_in_the_middle_blocks_no_put_and_no_relay(ground: Ground) -> None:
    store = await ground.store(timed=False)
    lanes = await lease(store)
    await ground.sql(FILL)
    await ground.put(message("before"))
    deleted, end = asyncio.Event(), asyncio.Event()

    async def slowly(work: Work) -> Progress:
        plan = Plan(sent_before=datetime.now(UTC), inbox_before=None, actor="ada")
        progress = await pruning.step(work, plan, Progress(), 500)
        deleted.set()
        await end.wait()
        return progress

    pruned = asyncio.ensure_future(store._database.write(slowly))
    await deleted.wait()
    async with ground.connected() as writer, writer.transaction():
        await writer.execute("set local lock_timeout = '1ms'")
        await put(writer, store, message("during"))
    entries = await ground.look(store, lanes)
    settled = await store.settle(lanes, sent(*entries), keep=True)
    end.set()

    assert ids(entries) == ["before", "during"]
    assert len(settled) == 2
    assert (await pruned).sent == 500
