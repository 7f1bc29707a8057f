"""What a put decides before it writes: topics, routes, limits, options."""

from dataclasses import dataclass
from typing import Any

import pytest

from postroom import Limits, Message, Outbox, Route, Routes, SyncOutbox, message
from postroom.errors import InvalidMessage, MessageTooLarge, NoTransaction, PutRefused
from postroom.store import Query
from postroom.stores.memory import MemoryStore


@message("shop.order-placed", key="id")
@dataclass
class OrderPlaced:
    """An event that leaves its topic to the route."""

    id: str


@message("audit.logged", topic="audit-log")
@dataclass
class Logged:
    """An event that names its topic."""

    text: str


async def put(*events: object, routes: Routes | None = None, **options: Any) -> list[Any]:
    """Put the events, commit, and return the rows of the outbox."""
    store = MemoryStore()
    with store.begin() as connection:
        SyncOutbox(store, routes=routes).put(connection, *events, **options)
    return list(await store.find(Query(), limit=10))


async def test_a_topic_is_named_like_the_type() -> None:
    (entry,) = await put(OrderPlaced("a"))

    assert (entry.route, entry.message.topic) == ("default", "shop.order-placed")


@pytest.mark.parametrize(
    ("event", "options", "topic"),
    [
        (OrderPlaced("a"), {}, "shop"),
        (Logged("a"), {}, "audit-log"),
        (OrderPlaced("a"), {"topic": "mine"}, "mine"),
        (Message(type="x", payload=b""), {}, "shop"),
        (Message(type="x", payload=b"", topic="ready"), {}, "ready"),
    ],
)
async def test_who_decides_about_the_topic(event: object, options: Any, topic: str) -> None:
    """The call, else the class or the message, else the route, else the type."""
    (entry,) = await put(event, routes=Routes([Route(topic="shop")]), **options)

    assert entry.message.topic == topic


async def test_the_first_route_that_matches_takes_it() -> None:
    routes = Routes(
        [Route(name="audit", types=("audit.*",)), Route(name="shop", types=("shop.*",))]
    )

    entries = await put(
        Logged("a"), OrderPlaced("a"), Message(type="x", payload=b""), routes=routes
    )

    assert [entry.route for entry in entries] == ["audit", "shop", "default"]


async def test_a_type_without_a_route_is_refused() -> None:
    routes = Routes([Route(types=("shop.*",))])

    with pytest.raises(PutRefused, match=r"no route takes messages of type audit\.logged"):
        await put(OrderPlaced("a"), Logged("a"), routes=routes)


async def test_options_beside_a_ready_message_are_refused() -> None:
    with pytest.raises(InvalidMessage, match="says headers, key itself"):
        await put(Message(type="x", payload=b""), key="a", headers={})


async def test_an_unknown_option_is_refused() -> None:
    with pytest.raises(TypeError, match="kye"):
        await put(OrderPlaced("a"), kye="b")


async def test_one_id_twice_in_a_call_is_refused() -> None:
    ready = Message(type="x", payload=b"")

    with pytest.raises(InvalidMessage, match="same id"):
        await put(ready, ready)


def test_limits_hold_before_anything_is_written() -> None:
    store = MemoryStore()
    with store.begin() as connection:
        outbox = SyncOutbox(store, limits=Limits(max_payload_bytes=5))

        with pytest.raises(MessageTooLarge):
            outbox.put(connection, Message(type="x", payload=b"1"), OrderPlaced("a"))


def test_an_ended_memory_transaction_is_refused() -> None:
    store = MemoryStore()
    with store.begin() as connection:
        pass

    with pytest.raises(NoTransaction):
        SyncOutbox(store).put(connection, OrderPlaced("a"))


async def test_memory_serves_async_callers_too() -> None:
    store = MemoryStore()
    async with store.begin() as connection:
        (written,) = await Outbox(store).put(connection, OrderPlaced("a"))

    (entry,) = await store.find(Query(), limit=10)
    assert entry.message == written


@pytest.mark.parametrize("stranger", [object(), None, "sqlite:///shop.db", MemoryStore()])
async def test_what_is_no_connection_is_refused(stranger: Any) -> None:
    with pytest.raises(PutRefused, match="pass a connection"):
        SyncOutbox(MemoryStore()).put(stranger, OrderPlaced("a"))
    with pytest.raises(PutRefused, match="pass a connection"):
        await Outbox(MemoryStore()).put(stranger, OrderPlaced("a"))
