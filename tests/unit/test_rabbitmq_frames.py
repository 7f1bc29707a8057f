"""Our own frames say to pamqp, which reads them by the book, what they should."""

from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pamqp import body, commands, frame, header

from postroom.brokers.rabbitmq import frames, mapping
from postroom.brokers.rabbitmq.frames import Malformed, Properties
from postroom.brokers.rabbitmq.packing import Packer
from postroom.errors import RefusedForGood
from postroom.message import Message

_TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
_MOMENTS = st.none() | st.datetimes(timezones=st.just(UTC))
MESSAGES = st.builds(
    Message,
    id=_TEXT,
    type=_TEXT,
    topic=_TEXT,
    payload=st.binary(max_size=200),
    content_type=_TEXT.filter(bool),
    key=st.none() | _TEXT,
    version=st.none() | st.integers(-(2**63), 2**63 - 1),
    headers=st.dictionaries(_TEXT | st.sampled_from(["CC", "x-death", "postroom-key"]), _TEXT),
    deliver_at=_MOMENTS,
    expires_at=_MOMENTS,
)


def unpacked(data: bytes) -> list[tuple[int, Any]]:
    """Return the channels and frames in these bytes, read by pamqp."""
    found = []
    while data:
        size, channel, each = frame.unmarshal(data)
        found.append((channel, each))
        data = data[size:]
    return found


@given(message=MESSAGES, most=st.integers(4096, 131_072))
def test_a_message_is_what_pamqp_reads_and_what_we_read_back(message: Message, most: int) -> None:
    [outgoing] = Packer("shop", 1000).pack([message], channel=7, most=most)
    assert not isinstance(outgoing, RefusedForGood)

    (channel, method), (_, head), *pieces = unpacked(outgoing.data)

    assert isinstance(method, commands.Basic.Publish)
    assert isinstance(head, header.ContentHeader)
    assert (channel, method.exchange, method.mandatory) == (7, "shop", True)
    assert method.routing_key == message.topic
    assert head.body_size == len(message.payload)
    assert (head.properties.message_id or "") == message.id
    assert (head.properties.message_type or "") == message.type
    assert head.properties.delivery_mode == 2
    assert b"".join(piece.value for _, piece in pieces) == message.payload
    # The frame of the properties stands after that of the method.
    start = 7 + int.from_bytes(outgoing.data[3:7]) + 1
    size = int.from_bytes(outgoing.data[start + 3 : start + 7])
    _, properties = frames.read_header(outgoing.data[start + 7 : start + 7 + size])
    routing_key = message.topic.encode()
    assert mapping.message_of(properties, routing_key, message.payload) == message


def test_a_large_body_is_cut_into_frames() -> None:
    data = frames.content_frames(1, b"", 0, bytes(range(250)) * 100, 4096)

    (_, head), *pieces = unpacked(data)

    assert head.body_size == 25_000
    assert all(isinstance(piece, body.ContentBody) for _, piece in pieces)
    assert [len(piece.value) for _, piece in pieces] == [4088] * 6 + [472]


@given(properties=st.binary(max_size=60))
def test_whatever_arrives_is_read_or_called_malformed(properties: bytes) -> None:
    """Nothing else may come out: the frames of the next message follow."""
    try:
        _, found = frames.read_header(properties)
        mapping.message_of(found, b"topic", b"")
    except Malformed:
        pass


@given(value=st.binary(min_size=1, max_size=60))
def test_whatever_stands_in_a_table_is_read_or_called_malformed(value: bytes) -> None:
    table = frames.pack_table({b"x": value})[4:]
    try:
        entries = frames.read_table(table)
        for each in entries.values():
            frames.as_text(each)
    except Malformed:
        pass


def test_a_table_of_every_kind_reads_as_pamqp_wrote_it() -> None:
    values: dict[str, Any] = {
        "text": "Grüße",
        "whole": -(2**40),
        "small": 3,
        "true": True,
        "real": 0.5,
        "moment": datetime(2030, 1, 1, tzinfo=UTC),
        "list": ["a", 1, {"b": "c"}],
        "table": {"a": {"b": 1}},
        "nothing": None,
        "bytes": bytearray(b"\x00\xff"),
    }
    head = header.ContentHeader(0, 0, commands.Basic.Properties(headers=values))
    content = frame.marshal(head, 1)[7:-1]

    _, properties = frames.read_header(content)

    found = {name.decode(): frames.decoded(value) for name, value in properties.headers.items()}
    assert found == {**values, "moment": "2030-01-01T00:00:00Z", "bytes": "\x00\\xff"}


def test_other_properties_survive_a_copy() -> None:
    sent = commands.Basic.Properties(
        content_type="a/b",
        content_encoding="gzip",
        headers={"mine": 1},
        priority=5,
        correlation_id="c",
        reply_to="r",
        expiration="60000",
        message_id="m",
        message_type="t",
        user_id="guest",
        app_id="app",
    )
    content = frame.marshal(header.ContentHeader(0, 0, sent), 1)[7:-1]
    _, properties = frames.read_header(content)

    copy = mapping.copy_of(properties, b"body", mapping.extras(attempts=2, reason="why"))

    data = frames.content_frames(1, copy.properties, copy.flags, copy.body, 131_072)
    (_, head), (_, piece) = unpacked(data)
    assert piece.value == b"body"
    assert copy.id == "m"
    found = head.properties
    assert (found.priority, found.correlation_id, found.reply_to) == (5, "c", "r")
    assert (found.content_encoding, found.app_id, found.message_id) == ("gzip", "app", "m")
    assert (found.expiration, found.user_id) in {(None, None), ("", "")}
    assert found.headers == {"mine": 1, "postroom-attempts": 2, "postroom-reason": "why"}


def test_what_rabbitmq_wrote_does_not_travel_with_a_copy() -> None:
    table = {b"x-death": b"V", b"x-first-death-queue": b"V", b"x-own": frames.text_value("1")}

    copy = mapping.copy_of(Properties(fields={}, headers=table), b"", {})

    head = frames.content_frames(1, copy.properties, copy.flags, b"", 131_072)[7:-1]
    assert frames.read_header(head)[1].headers == {b"x-own": frames.text_value("1")}


@pytest.mark.parametrize("size", [255, 256])
def test_a_short_text_has_255_bytes_at_most(size: int) -> None:
    text = "x" * size
    if size <= 255:
        assert frames.short(text) == b"\xff" + text.encode()
    else:
        with pytest.raises(ValueError, match="256 bytes"):
            frames.short(text)
