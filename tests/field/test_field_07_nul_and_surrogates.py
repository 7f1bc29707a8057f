"""NUL and lone surrogates: an exact round trip, or refused at the put with a clear error."""

from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pytest

from postroom import Consumer, Message, Relay, RetryPolicy, State, SyncOutbox, message
from postroom.brokers.memory import MemoryBroker
from postroom.codecs import decode, encode
from postroom.errors import InvalidMessage
from postroom.store import Query
from postroom.testing.scripted import ScriptedBroker

EMOJI = "🚀 \u2028 \U0010ffff é"
NUL = "before\0after"
SURROGATE = "before\udc80after"


@message("shop.note-written", key="author")
@dataclass
class NoteWritten:
    """A message with text that people write."""

    author: str
    text: str


async def written(shop: Any, *events: object, **options: Any) -> list[Message]:
    """Put the events and return what the store holds after the commit."""
    with shop.begin() as connection:
        SyncOutbox(shop.store).put(connection, *events, **options)
    await shop.store.open()
    entries = await shop.store.find(Query(), limit=10)
    await shop.store.close()
    return [entry.message for entry in entries]


@pytest.mark.parametrize("text", [EMOJI, NUL, f"{NUL}{EMOJI}\0"])
async def test_payloads_come_back(shop: Any, text: str) -> None:
    event = NoteWritten(author="ann", text=text)

    (found,) = await written(shop, event)

    assert decode(found, NoteWritten) == event


async def test_raw_bytes_come_back(shop: Any) -> None:
    raw = Message(type="raw", payload=bytes(range(256)), content_type="application/octet-stream")

    (found,) = await written(shop, raw)

    assert found.payload == raw.payload


async def test_names_keys_and_headers_come_back(shop: Any) -> None:
    event = Message(type=EMOJI, key=EMOJI, topic=EMOJI, payload=b"", headers={"note": EMOJI})

    (found,) = await written(shop, event)

    assert (found.type, found.key, found.topic) == (EMOJI, EMOJI, EMOJI)
    assert found.headers == {"note": EMOJI}
    assert found.id == event.id


@pytest.mark.parametrize("bad", [NUL, SURROGATE], ids=["NUL", "surrogate"])
@pytest.mark.parametrize("field", ["type", "key", "topic", "content_type", "id"])
async def test_fields_are_refused(shop: Any, field: str, bad: str) -> None:
    fields: dict[str, Any] = {"type": "a", "payload": b""} | {field: bad}

    with pytest.raises(InvalidMessage, match=field):
        await written(shop, Message(**fields))
    assert shop.query("select * from postroom_outbox") == []


@pytest.mark.parametrize("bad", [NUL, SURROGATE], ids=["NUL", "surrogate"])
@pytest.mark.parametrize("name", [True, False], ids=["name", "value"])
async def test_headers_are_refused(shop: Any, bad: str, *, name: bool) -> None:
    headers = {bad: "x"} if name else {"note": bad}

    with pytest.raises(InvalidMessage, match="header"):
        await written(shop, NoteWritten("ann", "hello"), headers=headers)
    assert shop.query("select * from postroom_outbox") == []


async def test_a_lone_surrogate_in_a_payload_is_refused(shop: Any) -> None:
    with pytest.raises(InvalidMessage, match=r"NoteWritten\.text .* U\+DC80 at position 6"):
        await written(shop, NoteWritten("ann", SURROGATE))
    assert shop.query("select * from postroom_outbox") == []


async def test_an_error_with_such_text_is_kept(shop: Any) -> None:
    """The broker's words come from elsewhere and may hold anything."""
    broker = ScriptedBroker()
    broker.refuse_for_good(lambda _message: True, reason=f"{NUL} {SURROGATE} {EMOJI}")
    await written(shop, NoteWritten("ann", "hello"))
    await shop.store.open()
    await broker.open()
    relay = Relay(shop.store, broker)
    while not (dead := await shop.store.find(Query(states=[State.DEAD]), limit=1)):
        await relay.step()
    await broker.close()
    await shop.store.close()

    assert dead[0].error == f"before\\x00after before\\udc80after {EMOJI}"


async def test_a_handler_that_raises_such_text(shop: Any) -> None:
    """It ends with the reason in the dead letters, and the inbox holds no trace of it."""
    consumer = Consumer(
        "notes", begin=shop.begin, store=shop.store, retry=RetryPolicy(max_attempts=1)
    )

    @consumer.on(NoteWritten)
    def handle(_note: NoteWritten, _context: object) -> None:
        raise ValueError(f"{NUL} {SURROGATE} {EMOJI}")

    broker = MemoryBroker()
    await broker.open()
    async with broker.subscribe(consumer.topics, group="notes", prefetch=1) as deliveries:
        note = encode(NoteWritten("ann", "hello"), topic="shop.note-written")
        await broker.publish([note], timeout=timedelta(seconds=5))
        await consumer.step(await anext(deliveries))
    consumer.close()
    (letter,) = await broker.dead_letters()
    await broker.close()

    assert letter.reason == f"ValueError: before\\x00after before\\udc80after {EMOJI}"
    assert shop.seen() == 0
