"""A relay, a consumer and the command line, on a real JetStream."""

import asyncio
import sqlite3
from collections.abc import Callable
from pathlib import Path
from textwrap import dedent
from urllib.parse import urlsplit

import pytest

from postroom import events
from postroom.connections import sqlite3_transactions
from postroom.consumer import Consumer, Context
from postroom.message import Message, State
from postroom.outbox import SyncOutbox
from postroom.store import Query
from postroom.stores.memory import MemoryStore
from postroom.stores.sqlite import SqliteStore
from tests.brokers.relaying import paused, settled
from tests.brokers.stream import KIND, Client, client, message, outcome
from tests.nats import Ground
from tests.programs.shop import Shop

__all__ = ["client"]


def put(store: MemoryStore, topic: str, *payloads: bytes) -> None:
    """Commit messages of one key."""
    with store.begin() as connection:
        SyncOutbox(store).put(
            connection,
            *(Message(type=KIND, topic=topic, payload=each, key="k") for each in payloads),
        )


async def test_a_key_keeps_its_order_past_a_stream_that_was_full(
    client: Client, jetstream: Ground
) -> None:
    """Its head is refused for a while; then all of it is sent, in order and once."""
    await jetstream.make(max_msgs=1, discard="new")
    broker = client()
    await broker.open()
    assert await outcome(broker, message("filler", topic=jetstream.topic)) == [None]
    store = MemoryStore()
    put(store, jetstream.topic, *(b"%02d" % number for number in range(40)))
    relaying = asyncio.create_task(settled(store, broker, sent=40))
    async with asyncio.timeout(10):
        while not await store.find(Query(states=(State.WAITING,)), limit=1):
            await asyncio.sleep(0.01)
    rows = await store.find(Query(), limit=100)
    assert {row.state for row in rows} <= {State.READY, State.WAITING, State.HELD}

    async with jetstream.jetstream() as context:
        config = (await context.stream_info(jetstream.stream)).config
        await context.update_stream(config.evolve(max_msgs=-1))

    await relaying
    stored = [await jetstream.stored(number) for number in range(2, 42)]
    assert [one.data for one in stored] == [b"%02d" % number for number in range(40)]
    await broker.close()


async def test_an_outage_of_the_stream_spends_no_attempt(client: Client, jetstream: Ground) -> None:
    broker = client()
    await broker.open()
    store = MemoryStore()
    put(store, jetstream.topic, *(b"%d" % number for number in range(10)))
    seen: list[events.Event] = []
    relaying = asyncio.create_task(settled(store, broker, sent=10, observers=[seen.append]))
    await paused(seen)
    rows = await store.find(Query(), limit=100)
    assert {(row.state, row.attempts) for row in rows} == {(State.READY, 0)}

    await jetstream.make()

    assert set((await relaying).values()) == {State.SENT}


async def test_a_consumer_comes_back_after_its_own_was_deleted(
    client: Client, jetstream: Ground, tmp_path: Path
) -> None:
    """It is noticed, told by an event, and over when somebody makes the consumer again."""
    broker = client()
    await broker.open()
    await broker.apply_topology({"billing": [jetstream.topic]})
    path = tmp_path / "billing.db"
    store = SqliteStore(path)
    await store.open()
    await store.migrate()
    seen: list[events.Event] = []
    done: list[str] = []
    consumer = Consumer(
        "billing", begin=sqlite3_transactions(path), store=store, observers=[seen.append]
    )

    @consumer.on(KIND, topic=jetstream.topic)
    def bill(order: Message, context: Context[sqlite3.Connection]) -> None:
        del context
        done.append(order.id)

    stop = asyncio.Event()
    running = asyncio.create_task(consumer.run(broker, stop))
    await outcome(broker, message("a", topic=jetstream.topic))
    await _until(lambda: done == ["a"])
    async with jetstream.jetstream() as context:
        await context.delete_consumer(jetstream.stream, "billing")
    await _until(lambda: any(isinstance(one, events.ConsumerPaused) for one in seen))
    paused = next(one for one in seen if isinstance(one, events.ConsumerPaused))
    assert "Consumer Deleted" in paused.error

    await outcome(broker, message("b", topic=jetstream.topic))
    await broker.apply_topology({"billing": [jetstream.topic]})

    await _until(lambda: done == ["a", "b"])
    # The new consumer begins with the oldest; the inbox knows what was done.
    await _until(lambda: any(isinstance(one, events.Duplicate) for one in seen))
    stop.set()
    await running
    await store.close()


async def _until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(15):
        while not condition():
            await asyncio.sleep(0.01)


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


def test_from_the_topology_to_the_effect(shop: Shop, jetstream: Ground) -> None:
    """Nothing is made before `--apply`; then a relay and a consumer do their work."""
    environ = {"POSTROOM_BROKER": f"{jetstream.url}?stream={jetstream.stream}"}
    early = shop.cli("init", **environ)
    assert early.code == 3
    assert "postroom topology --apply" in early.err

    shown = shop.cli("topology", "billing:consumer", **environ)
    assert shown.code == 0
    assert f"{jetstream.stream} > billing" in shown.out
    assert "nothing was changed" in shown.out
    assert shop.cli("init", **environ).code == 3

    for _ in range(2):
        applied = shop.cli("topology", "billing:consumer", "--apply", "--json", **environ)
        assert (applied.code, applied.json["applied"]) == (0, True)
    assert shop.cli("init", **environ).code == 0

    ids = shop.put(*(shop.order(number, key=str(number)) for number in range(20)))
    assert shop.cli("relay", "--until-empty", **environ).code == 0
    queues = shop.cli("status", "--json", **environ).json["broker"]["queues"]
    assert [(one["group"], one["ready"], one["delayed"]) for one in queues] == [
        ("billing", 20, None)
    ]
    done = shop.cli("consume", "billing:consumer", "--until-empty", "--timeout", "30s", **environ)
    assert done.code == 0, done.err
    connection = sqlite3.connect(shop.path / "shop.db")
    assert {one for (one,) in connection.execute("select id from bills")} == set(ids)
    connection.close()


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("topology", "--group", "audit=a b"), "cannot be a subject"),
        (("topology", "--group", f"{'a' * 300}=a"), "its name is too long"),
    ],
)
def test_what_cannot_be_made_is_refused(shop: Shop, arguments: tuple[str, ...], told: str) -> None:
    done = shop.cli(*arguments, POSTROOM_BROKER="nats://host")

    assert (done.code, done.out) == (2, "")
    assert told in done.err


def test_a_password_is_not_printed(shop: Shop, jetstream: Ground) -> None:
    """The address leads to nobody."""
    port = (urlsplit(jetstream.url).port or 0) + 1
    address = f"nats://ann:s3cr3t@127.0.0.1:{port}"

    for command in (("init",), ("status",), ("topology", "--apply")):
        done = shop.cli(*command, POSTROOM_BROKER=address)
        assert done.code in {1, 3}
        assert "s3cr3t" not in done.out + done.err
