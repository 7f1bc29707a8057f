"""What the handler is not to blame for: a commit that nobody answers, a copy that holds the row."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import asyncpg
import pytest
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import create_async_engine

from postroom import events
from postroom.connections import asyncpg_transactions
from postroom.inbox import Inbox
from postroom.lab.servers.proxy import Proxy
from tests.consumer.conftest import Billing, OrderPlaced, _message
from tests.consumer.test_outages import Deaf
from tests.postgresql import Ground, ground
from tests.servers import Server, needed, postgresql_servers

SERVERS = list(needed(postgresql_servers(), "PostgreSQL"))[:1]
EFFECT = "create table effect (place serial, consumer text, customer text, number int)"
SOON = 0.3
"""Seconds that a statement may take."""
COPIES = 10


class RemoteBilling(Billing):
    """A consumer whose database is at the other end of a wire."""

    def __init__(self, place: Ground, begin: Callable[[], Any]) -> None:
        super().__init__("async", Path())
        self.store = place.store
        self.begin = begin

    def _transactions(self) -> tuple[Callable[[], Any], bool]:
        return self.begin, True


@asynccontextmanager
async def _pool(place: Ground, url: str) -> AsyncIterator[Callable[[], Any]]:
    pool = await asyncpg.create_pool(
        url, server_settings={"search_path": place.path}, min_size=1, command_timeout=SOON
    )
    try:
        yield asyncpg_transactions(pool, patience=timedelta(seconds=1))
    finally:
        pool.terminate()


@asynccontextmanager
async def _engine(place: Ground, url: str) -> AsyncIterator[Callable[[], Any]]:
    engine = create_async_engine(
        url.replace("postgresql:", "postgresql+asyncpg:"),
        connect_args={"server_settings": {"search_path": place.path}, "command_timeout": SOON},
    )
    try:
        yield engine.begin
    finally:
        await engine.dispose()


WAYS = {"asyncpg": _pool, "engine": _engine}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("server", SERVERS)
async def test_a_commit_that_is_not_answered_costs_no_attempt(server: Server, way: str) -> None:
    """The wire dies between the handler's last statement and the answer to the commit."""
    with ground(server.url, EFFECT) as place:
        url = sa.make_url(place.url)
        with Proxy(url.host or "", url.port or 5432) as proxy:
            behind = url.set(port=proxy.port).render_as_string(hide_password=False)
            async with WAYS[way](place, behind) as begin:
                billing = RemoteBilling(place, begin)
                consumer = billing.consumer(observers=[_silenced(proxy)])
                delivery = Deaf(_message(OrderPlaced("ann", 1)), hears=("release", "ack"))

                result = await consumer.step(delivery)

                consumer.close()
                proxy.restore()

    assert (result, delivery.heard) == ("returned", ["release"])
    assert billing.count(events.HandlerFailed) == 0


def _silenced(proxy: Proxy) -> Callable[[events.Event], None]:
    def observe(event: events.Event) -> None:
        if isinstance(event, events.Handled):
            proxy.silence()

    return observe


@pytest.mark.parametrize("server", SERVERS)
async def test_a_copy_that_holds_the_row_for_long_costs_no_attempt(server: Server) -> None:
    """Its session is alive, and nobody answers in it; others are committed in between."""
    with ground(server.url, EFFECT) as place:
        frozen = await asyncpg.connect(place.url, server_settings={"search_path": place.path})
        async with _pool(place, place.url) as begin:
            billing = RemoteBilling(place, _hurried(begin))
            consumer = billing.consumer()
            order = _message(OrderPlaced("ann", 1))
            async with frozen.transaction():
                await Inbox(place.store, "billing").first_async(frozen, order.id)
                results = []
                for number in range(COPIES):
                    results.append(await consumer.step(Deaf(order, hears=("release", "reject"))))
                    other = _message(OrderPlaced("bob", number))
                    assert await consumer.step(Deaf(other, hears=("ack",))) == "done"
            duplicate = await consumer.step(Deaf(order, hears=("ack",)))
            consumer.close()
        await frozen.close()

    assert results == ["returned"] * COPIES
    assert duplicate == "duplicate"
    assert billing.count(events.HandlerFailed) == billing.count(events.DeadLettered) == 0


def _hurried(begin: Callable[[], Any]) -> Callable[[], Any]:
    @asynccontextmanager
    async def hurried() -> AsyncIterator[Any]:
        async with begin() as connection:
            await connection.execute("set local lock_timeout = '10ms'")
            yield connection

    return hurried
