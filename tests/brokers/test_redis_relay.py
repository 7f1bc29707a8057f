"""A relay, a consumer, and the command line, on a real Redis and a real Valkey."""

import asyncio
import sqlite3
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from textwrap import dedent

import pytest

from postroom import events
from postroom.brokers.redis import RedisBroker
from postroom.connections import sqlite3_transactions
from postroom.consumer import Consumer
from postroom.lab.servers.redis import RedisServer
from postroom.message import Message, State
from postroom.outbox import SyncOutbox
from postroom.relay import Relay, RelayOptions
from postroom.retry import Backoff, RetryPolicy
from postroom.route import Route, Routes
from postroom.store import Query
from postroom.stores.memory import MemoryStore
from postroom.stores.sqlite import SqliteStore
from tests.brokers.streams import TOPIC, ask, forget, message, outcome, payloads, until
from tests.programs.shop import Shop

SOON = Backoff(initial=timedelta(milliseconds=20), maximum=timedelta(milliseconds=50))
Client = Callable[..., RedisBroker]
Serve = Callable[..., RedisServer]


async def test_an_outage_spends_no_attempt_and_keeps_the_order_of_keys(
    client: Client, serve: Serve, prefix: str
) -> None:
    """Short of memory, then there is some: everything leaves, in order, once."""
    server = serve()
    broker = client(server.url, missing_stream="create")
    await broker.open()
    store = MemoryStore()
    with store.begin() as connection:
        SyncOutbox(store).put(
            connection,
            *(Message(type=TOPIC, payload=b"%d" % n, key=f"k{n % 4}") for n in range(40)),
        )
    routes = Routes([Route(retry=RetryPolicy(max_attempts=1, backoff=SOON))])
    paused: list[events.Event] = []
    relay = Relay(
        store,
        broker,
        routes=routes,
        options=RelayOptions(probe=SOON),
        name="one",
        observers=[paused.append],
    )
    await ask(server.url, "CONFIG", "SET", "maxmemory", 1)

    async def stepped(state: State) -> bool:
        await relay.step()
        return {row.state for row in await store.find(Query(), limit=100)} == {state}

    for _ in range(5):
        assert await stepped(State.READY)
    await ask(server.url, "CONFIG", "SET", "maxmemory", 0)
    await until(lambda: stepped(State.SENT))

    rows = await store.find(Query(), limit=100)
    assert {row.attempts for row in rows} == {0}
    assert any(isinstance(one, events.Paused) and "OOM" in one.error for one in paused)
    found = await payloads(server.url, f"{prefix}:{TOPIC}")
    assert sorted(found, key=int) == [str(n) for n in range(40)]
    for key in range(4):
        assert [name for name in found if int(name) % 4 == key] == [
            str(n) for n in range(40) if n % 4 == key
        ]


async def test_a_flush_is_an_event_and_the_consumer_goes_on(
    client: Client, serve: Serve, tmp_path: Path
) -> None:
    server = serve()
    broker = client(server.url, declare=True)
    await broker.open()
    path = str(tmp_path / "shop.db")
    store = SqliteStore(path)
    await store.open()
    await store.migrate()
    seen: list[events.Event] = []
    done: list[str] = []
    consumer = Consumer(
        "billing", begin=sqlite3_transactions(path), store=store, observers=[seen.append]
    )

    @consumer.on(TOPIC)
    def bill(message: Message, context: object) -> None:
        del context
        done.append(message.id)

    stop = asyncio.Event()
    running = asyncio.create_task(consumer.run(broker, stop))

    async def sent(name: str) -> bool:
        return await outcome(broker, message(name)) == [None]

    async def handled(name: str) -> bool:
        await asyncio.sleep(0)
        return name in done

    await until(lambda: sent("a"))
    await until(lambda: handled("a"))
    await ask(server.url, "FLUSHALL")
    await until(lambda: sent("b"))
    await until(lambda: handled("b"))
    stop.set()
    await running
    await store.close()

    told = [one.error for one in seen if isinstance(one, events.ConsumerPaused)]
    assert len(told) == 1
    assert "made again" in told[0]
    assert sum(isinstance(one, events.ConsumerResumed) for one in seen) == 1
    assert done[0] == "a"


# The command line


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Shop:
    """A shop without any broker of its own."""
    monkeypatch.chdir(tmp_path)
    for name in ("POSTROOM_STORE", "POSTROOM_BROKER"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "postroom.toml").write_text('store = "sqlite:///shop.db"\n')
    (tmp_path / "billing.py").write_text(
        dedent("""
            from postroom import Consumer
            from postroom.connections import sqlite3_transactions
            from postroom.stores.sqlite import SqliteStore

            consumer = Consumer(
                "billing", begin=sqlite3_transactions("shop.db"), store=SqliteStore("shop.db")
            )

            @consumer.on("shop.order-placed")
            def bill(message, context):
                context.connection.execute("create table if not exists bills (id text)")
                context.connection.execute("insert into bills values (?)", (message.id,))
        """)
    )
    return Shop(tmp_path)


def test_from_the_topology_to_the_effect(shop: Shop, redis_url: str, prefix: str) -> None:
    environ = {"POSTROOM_BROKER": f"{redis_url}?prefix={prefix}"}
    assert shop.cli("init", **environ).code == 0

    shown = shop.cli("topology", "billing:consumer", **environ)
    assert shown.code == 0
    assert f"billing of {prefix}:{TOPIC}" in shown.out
    assert "nothing was changed" in shown.out
    for _ in range(2):
        applied = shop.cli("topology", "billing:consumer", "--apply", "--json", **environ)
        assert (applied.code, applied.json["applied"]) == (0, True)

    names = shop.put(*(shop.order(number, key=str(number)) for number in range(20)))
    assert shop.cli("relay", "--until-empty", **environ).code == 0
    queues = shop.cli("status", "--json", **environ).json["broker"]["queues"]
    assert [(one["group"], one["topic"], one["ready"], one["delayed"]) for one in queues] == [
        ("billing", TOPIC, 20, 0)
    ]
    done = shop.cli("consume", "billing:consumer", "--until-empty", "--timeout", "30s", **environ)
    assert done.code == 0, done.err
    connection = sqlite3.connect(shop.path / "shop.db")
    assert {one for (one,) in connection.execute("select id from bills")} == set(names)
    connection.close()
    forget(redis_url, prefix)
