"""Wake-ups: only while somebody sleeps, by whatever client commits, and mended when they break."""

import asyncio
from collections.abc import Iterator
from datetime import timedelta
from urllib.parse import urlsplit

import pytest

from postroom.lab.servers.proxy import Proxy
from postroom.stores.postgresql import PostgresqlStore, waiting
from tests.stores.postgresql import Ground, message

LONG = timedelta(hours=1)
NOW = timedelta(0)
PLAIN = "insert into postroom_outbox (id, lane, type, topic, payload) values ($1, 1, 't', 't', '')"


@pytest.fixture
def proxy(ground: Ground) -> Iterator[Proxy]:
    """A wire to the server that can be cut."""
    server = urlsplit(ground.url)
    with Proxy(server.hostname or "", server.port or 5432) as proxy:
        yield proxy


async def asleep(ground: Ground, url: str | None = None) -> PostgresqlStore:
    """Return a store that listens, has said that it sleeps, and has heard nothing yet."""
    store = await ground.store(timed=False, url=url)
    for _ in range(3):
        await store.wait(NOW)
    return store


async def soon(store: PostgresqlStore, wait: timedelta = LONG) -> None:
    """Wait for a commit, but not for ever."""
    async with asyncio.timeout(20):
        await store.wait(wait)


async def quiet(store: PostgresqlStore) -> bool:
    """Return whether nothing is heard for a moment."""
    try:
        async with asyncio.timeout(0.2):
            await store.wait(LONG)
    except TimeoutError:
        return True
    return False


async def notifications(ground: Ground, store: PostgresqlStore, *inserts: str) -> int:
    """Return how often the server says something while these are committed."""
    channel = await store._database.read(lambda work: work.value("channel"))
    heard = []
    async with ground.connected() as other:
        await other.add_listener(channel, lambda *said: heard.append(said))
        for each in inserts:
            await ground.sql(PLAIN, each)
        # What was said before is delivered with the answer at the latest.
        await other.fetch("select 1")
        await other.fetch("select 1")
    return len(heard)


async def test_plain_sql_of_any_client_wakes(ground: Ground) -> None:
    store = await asleep(ground)
    assert await quiet(store)
    waiting = asyncio.ensure_future(soon(store))
    await asyncio.sleep(0)

    await ground.sql(PLAIN, "a")

    await waiting


async def test_nobody_notifies_while_nobody_sleeps(ground: Ground) -> None:
    store = await ground.store(timed=False)

    awake = await notifications(ground, store, "a", "b")
    await ground.sql("select setval('postroom_asleep', 9000000000000000)")
    sleeping = await notifications(ground, store, "c", "d", "e")

    assert (awake, sleeping) == (0, 1)


async def test_a_rollback_wakes_nobody(ground: Ground) -> None:
    store = await asleep(ground)
    async with ground.connected() as writer:
        transaction = writer.transaction()
        await transaction.start()
        await writer.execute(PLAIN, "a")
        await transaction.rollback()

    assert await quiet(store)


async def test_whoever_falls_asleep_looks_once_more(ground: Ground) -> None:
    """What was committed before the word reached the writers was told to nobody."""
    store = await asleep(ground)
    await ground.sql("select setval('postroom_asleep', 0)")
    await ground.sql(PLAIN, "unheard")
    assert store._listener is not None
    store._listener._asked_at = 0.0

    await soon(store)


async def test_each_of_many_commits_is_heard_by_the_wait_after_it(ground: Ground) -> None:
    store = await asleep(ground)

    for number in range(10):
        await ground.sql(PLAIN, str(number))
        await soon(store)

    assert await quiet(store)


async def test_commits_that_follow_each_other_share_one_word(
    ground: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever was woken says only after a while that it sleeps again, and then looks once more."""
    monkeypatch.setattr(waiting, "REST", 1.0)
    store = await asleep(ground)
    await ground.sql(PLAIN, "wakes")
    await soon(store)
    again = asyncio.ensure_future(soon(store))
    await asyncio.sleep(0)

    told = await notifications(ground, store, *(f"meanwhile-{number}" for number in range(5)))
    await again

    assert told == 0


async def test_a_writer_that_gives_up_costs_no_more_than_a_poll(
    ground: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has taken the word of the sleeper back, and told nobody."""
    monkeypatch.setattr(waiting, "ASK", 0.05)
    store = await asleep(ground)
    async with ground.connected() as writer:
        transaction = writer.transaction()
        await transaction.start()
        await writer.execute(PLAIN, "a")
        await transaction.rollback()

    await soon(store)


async def test_every_sleeper_is_woken(ground: Ground) -> None:
    stores = [await asleep(ground) for _ in range(3)]
    waits = [asyncio.ensure_future(soon(store)) for store in stores]
    await asyncio.sleep(0)

    await ground.put(message("a"))

    await asyncio.gather(*waits)


async def test_a_sleeper_that_was_woken_looks_again_although_another_sleeps(ground: Ground) -> None:
    """What is committed between the wake-up and the word of either is told to nobody."""
    first, second = await asleep(ground), await asleep(ground)
    await ground.sql(PLAIN, "a")
    await soon(first)
    await soon(second)
    await ground.sql(PLAIN, "unheard")

    await soon(first)
    await soon(second)

    assert await quiet(first)
    assert await quiet(second)


async def test_a_listener_that_was_ended_mends_itself(ground: Ground) -> None:
    """And ends the wait, for something may have been missed."""
    store = await asleep(ground)
    assert store._listener is not None
    pid = store._listener._connection.get_server_pid()
    waiting = asyncio.ensure_future(soon(store))
    await asyncio.sleep(0)

    await ground.sql("select pg_terminate_backend($1)", pid)
    await waiting
    for _ in range(3):
        await store.wait(NOW)
    waiting = asyncio.ensure_future(soon(store))
    await asyncio.sleep(0)
    await ground.put(message("a"))

    await waiting
    assert store._listener._connection.get_server_pid() != pid


async def test_a_silent_wire_is_noticed(
    ground: Ground, proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Packets are dropped and nobody says so: the wait ends, and the next one listens anew."""
    monkeypatch.setattr(waiting, "ASK", 0.05)
    monkeypatch.setattr(waiting, "ANSWER", 0.3)
    server = urlsplit(ground.url)
    address = server._replace(netloc=f"{server.username}@127.0.0.1:{proxy.port}").geturl()
    store = await asleep(ground, address)
    monkeypatch.setattr(waiting, "ANSWER", 0.1)
    proxy.silence()

    await soon(store)
    proxy.restore()
    monkeypatch.setattr(waiting, "ANSWER", 5.0)
    for _ in range(3):
        await store.wait(NOW)
    waits = asyncio.ensure_future(soon(store))
    await ground.put(message("a"))

    await waits


async def test_an_outage_leaves_nothing_but_the_time_out(ground: Ground, proxy: Proxy) -> None:
    server = urlsplit(ground.url)
    address = server._replace(netloc=f"{server.username}@127.0.0.1:{proxy.port}").geturl()
    store = await asleep(ground, address)
    proxy.refuse()

    for _ in range(5):
        await soon(store, timedelta(milliseconds=10))


async def test_close_ends_a_wait(ground: Ground) -> None:
    store = await asleep(ground)
    waiting = asyncio.ensure_future(soon(store))
    await asyncio.sleep(0)

    await store.close()

    await waiting


async def test_sleeping_leaves_no_dead_rows(ground: Ground) -> None:
    """Every insert looks at it: it must not grow while vacuum is held back."""
    store = await asleep(ground)
    assert store._listener is not None
    for _ in range(20):
        store._listener._asked_at = 0.0
        await store.wait(NOW)

    (row,) = await ground.sql("select pg_relation_size('postroom_asleep') as size")

    assert row["size"] == 8192
