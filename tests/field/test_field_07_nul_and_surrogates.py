"""NUL and lone surrogates: an exact round trip, or refused at the put with a clear error."""

from dataclasses import dataclass
from typing import Any

import pytest

from postroom import Message, SyncOutbox, message
from postroom.codecs import decode
from postroom.connections import sqlite3_transactions
from postroom.errors import InvalidMessage
from postroom.store import Query
from postroom.stores.sqlite import SqliteStore

EMOJI = "🚀 \u2028 \U0010ffff é"
NUL = "before\0after"
SURROGATE = "before\udc80after"


@message("shop.note-written", key="author")
@dataclass
class NoteWritten:
    """A message with text that people write."""

    author: str
    text: str


async def written(store: SqliteStore, *events: object, **options: Any) -> list[Message]:
    """Put the events and return what the store holds after the commit."""
    begin = sqlite3_transactions(store.path)
    with begin() as connection:
        SyncOutbox(store).put(connection, *events, **options)
    begin.close()
    await store.open()
    entries = await store.find(Query(), limit=10)
    await store.close()
    return [entry.message for entry in entries]


@pytest.mark.parametrize("text", [EMOJI, NUL, f"{NUL}{EMOJI}\0"])
async def test_payloads_come_back(small_shop: Any, text: str) -> None:
    event = NoteWritten(author="ann", text=text)

    (found,) = await written(small_shop.store, event)

    assert decode(found, NoteWritten) == event


async def test_raw_bytes_come_back(small_shop: Any) -> None:
    raw = Message(type="raw", payload=bytes(range(256)), content_type="application/octet-stream")

    (found,) = await written(small_shop.store, raw)

    assert found.payload == raw.payload


async def test_names_keys_and_headers_come_back(small_shop: Any) -> None:
    event = Message(type=EMOJI, key=EMOJI, topic=EMOJI, payload=b"", headers={"note": EMOJI})

    (found,) = await written(small_shop.store, event)

    assert (found.type, found.key, found.topic) == (EMOJI, EMOJI, EMOJI)
    assert found.headers == {"note": EMOJI}
    assert found.id == event.id


@pytest.mark.parametrize("bad", [NUL, SURROGATE], ids=["NUL", "surrogate"])
@pytest.mark.parametrize("field", ["type", "key", "topic", "content_type", "id"])
async def test_fields_are_refused(small_shop: Any, field: str, bad: str) -> None:
    fields: dict[str, Any] = {"type": "a", "payload": b""} | {field: bad}

    with pytest.raises(InvalidMessage, match=field):
        await written(small_shop.store, Message(**fields))
    assert small_shop.query("select * from postroom_outbox") == []


@pytest.mark.parametrize("bad", [NUL, SURROGATE], ids=["NUL", "surrogate"])
@pytest.mark.parametrize("name", [True, False], ids=["name", "value"])
async def test_headers_are_refused(small_shop: Any, bad: str, *, name: bool) -> None:
    headers = {bad: "x"} if name else {"note": bad}

    with pytest.raises(InvalidMessage, match="header"):
        await written(small_shop.store, NoteWritten("ann", "hello"), headers=headers)
    assert small_shop.query("select * from postroom_outbox") == []


async def test_a_lone_surrogate_in_a_payload_is_refused(small_shop: Any) -> None:
    with pytest.raises(InvalidMessage, match=r"NoteWritten\.text .* U\+DC80 at position 6"):
        await written(small_shop.store, NoteWritten("ann", SURROGATE))
    assert small_shop.query("select * from postroom_outbox") == []
