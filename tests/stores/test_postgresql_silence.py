"""A wire that goes dead between any two packets hangs nobody: the store says so in time."""

import asyncio
from datetime import timedelta
from typing import NoReturn
from urllib.parse import urlsplit

from postroom.errors import StoreUnavailable
from postroom.lab.servers.proxy import Proxy
from postroom.stores.postgresql import PostgresqlStore
from postroom.stores.postgresql.database import Patience
from tests.stores.postgresql import Ground, lease, message, sent

PATIENCE = timedelta(seconds=0.3)
LIMIT = 12.0
"""Seconds; what is waited for is a connection, its first statements and a rollback."""
PACKETS = range(1, 201)
"""Enough to open, to take lanes, and to open the connections that listen and that read."""
AT_A_TIME = 10


async def work(store: PostgresqlStore) -> NoReturn:
    """Do what a relay does, beside each other as a relay does it, until something fails."""
    await store.open()
    while True:
        lanes = await lease(store, "relay")
        waiting = asyncio.ensure_future(store.wait(timedelta(seconds=0.05)))
        try:
            entries = await store.read(lanes, limit=10, per_lane=10, max_bytes=2**20)
            await store.settle(lanes, sent(*entries), keep=False)
        finally:
            await asyncio.wait((waiting,))


async def cut(ground: Ground, packets: int) -> BaseException | None:
    """Return what the work says of a wire that goes dead after so many packets."""
    server = urlsplit(ground.url)
    with Proxy(server.hostname or "", server.port or 5432) as proxy:
        url = server._replace(netloc=f"{server.username}@127.0.0.1:{proxy.port}").geturl()
        store = PostgresqlStore(
            url, schema=ground.schema, patience=Patience(connect=PATIENCE, statement=PATIENCE)
        )
        proxy.silence(after=packets)
        # What hangs may well not be ended by cancelling it either: it is left, and then cut off.
        working = asyncio.ensure_future(work(store))
        await asyncio.wait((working,), timeout=LIMIT)
        said = working.exception() if working.done() else None
        proxy.restore()
        await asyncio.wait((working,))
        await store.close()
        return said


async def test_a_wire_that_dies_after_any_packet_is_told(ground: Ground) -> None:
    await ground.store()
    await ground.put(*(message(f"m{number}") for number in range(20)))
    turns = asyncio.Semaphore(AT_A_TIME)

    async def take_turns(packets: int) -> BaseException | None:
        async with turns:
            return await cut(ground, packets)

    said = await asyncio.gather(*map(take_turns, PACKETS))

    assert {
        packets: what
        for packets, what in zip(PACKETS, said, strict=True)
        if not isinstance(what, StoreUnavailable)
    } == {}
