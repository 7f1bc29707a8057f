"""A relay, and the command line, on a real RabbitMQ."""

import asyncio
import sqlite3
from pathlib import Path
from textwrap import dedent
from uuid import uuid4

import pytest
from pamqp import commands

from postroom import events
from postroom.brokers.rabbitmq import RabbitmqBroker
from postroom.limits import Limits
from postroom.message import Message, State
from postroom.outbox import SyncOutbox
from postroom.store import Query
from postroom.stores.memory import MemoryStore
from tests.brokers.rabbit import TOPIC, at_port, bound_queue, count, do
from tests.brokers.relaying import paused, settled
from tests.programs.shop import Shop
from tests.rabbitmq import Ground


@pytest.fixture
def exchange() -> str:
    return f"test-{uuid4().hex[:8]}"


def put(store: MemoryStore, *payloads: bytes) -> None:
    """Commit messages, each with a key of its own."""
    with store.begin() as connection:
        SyncOutbox(store, limits=Limits(max_payload_bytes=10_000_000)).put(
            connection,
            *(Message(type=TOPIC, payload=each, key=each[:10].decode()) for each in payloads),
        )


async def test_the_message_that_closes_the_channel_is_found_and_the_others_leave(
    rabbit: Ground, exchange: str
) -> None:
    """It is over the server's limit, which ours does not know; 19 more are in the batch."""
    queue = await bound_queue(rabbit.url, exchange, TOPIC)
    broker = RabbitmqBroker(rabbit.url, exchange=exchange, max_message_bytes=2**40)
    await broker.open()
    store = MemoryStore()
    payloads = [b"%d" % number for number in range(19)]
    put(store, *payloads[:10], b"poison" + b"x" * 5_000_000, *payloads[10:])

    states = await settled(store, broker, sent=19, attempts=2)

    assert states.pop("poisonxxxx") is State.DEAD
    assert set(states.values()) == {State.SENT}
    assert await count(rabbit.url, queue) >= 19
    [dead] = await store.find(Query(states=(State.DEAD,)), limit=2)
    assert "PRECONDITION_FAILED" in (dead.error or "")
    await broker.close()


async def test_an_outage_of_the_exchange_spends_no_attempt(rabbit: Ground, exchange: str) -> None:
    broker = RabbitmqBroker(rabbit.url, exchange=exchange)
    await broker.open()
    store = MemoryStore()
    put(store, *(b"%d" % number for number in range(10)))
    seen: list[events.Event] = []
    relaying = asyncio.create_task(settled(store, broker, sent=10, observers=[seen.append]))
    await paused(seen)
    rows = await store.find(Query(), limit=100)
    assert {(row.state, row.attempts) for row in rows} == {(State.READY, 0)}

    await bound_queue(rabbit.url, exchange, TOPIC)

    assert set((await relaying).values()) == {State.SENT}
    await broker.close()


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


def test_from_the_topology_to_the_effect(shop: Shop, rabbit: Ground, exchange: str) -> None:
    """Nothing is made before `--apply`; then a relay and a consumer do their work."""
    environ = {"POSTROOM_BROKER": f"{rabbit.url}?exchange={exchange}&groups=billing"}
    early = shop.cli("init", **environ)
    assert early.code == 3
    assert "postroom topology --apply" in early.err

    shown = shop.cli("topology", "billing:consumer", **environ)
    assert shown.code == 0
    assert f"{exchange} -> {exchange}.billing" in shown.out
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


def test_a_group_is_named_by_hand(shop: Shop, rabbit: Ground, exchange: str) -> None:
    environ = {"POSTROOM_BROKER": f"{rabbit.url}?exchange={exchange}&queue_type=classic"}

    done = shop.cli("topology", "--group", "audit=a,b", "--apply", "--json", **environ)

    assert done.code == 0
    bindings = [
        one for one in done.json["parts"] if one["name"] == f"{exchange} -> {exchange}.audit"
    ]
    assert [one["detail"] for one in bindings] == ["a", "b"]
    [declared] = asyncio.run(
        do(rabbit.url, commands.Queue.Declare(queue=f"{exchange}.audit", passive=True))
    )
    assert isinstance(declared, commands.Queue.DeclareOk)


@pytest.mark.parametrize(
    ("arguments", "broker", "told"),
    [
        (("topology",), "sqlite:///broker.db", "needs nothing made beforehand"),
        (("topology", "--group", "audit"), "amqp://host", "'audit' is not NAME=TOPIC"),
        (("topology", "--group", "grün=a"), "amqp://host", "Invalid value for queue"),
        (("topology", "--group", f"a={'t' * 300}"), "amqp://host", "more than 255 bytes"),
    ],
)
def test_what_cannot_be_made_is_refused(
    shop: Shop, arguments: tuple[str, ...], broker: str, told: str
) -> None:
    done = shop.cli(*arguments, POSTROOM_BROKER=broker)

    assert (done.code, done.out) == (2, "")
    assert told in done.err


def test_a_refused_password_is_not_printed(shop: Shop, rabbit: Ground) -> None:
    port = int(rabbit.url.rpartition(":")[2].partition("/")[0])
    address = at_port(rabbit.url, port, user="ann:s3cr3t")

    for command in ("init", "status", "topology"):
        done = shop.cli(
            command, *(["--apply"] if command == "topology" else []), POSTROOM_BROKER=address
        )
        assert done.code in {1, 3}
        assert "ACCESS_REFUSED" in done.out + done.err
        assert "s3cr3t" not in done.out + done.err
