"""Messages as rows of the file, and back."""

import json
from datetime import datetime
from typing import Any

from postroom._clock import from_micros, to_micros
from postroom.errors import RefusedForGood
from postroom.message import NO_HEADERS, Message

COLUMNS = "topic, key, id, type, version, content_type, payload, headers, deliver_at, expires_at"
"""What a message is made of, in the order of `to_row` and `from_row`."""
PLACES = ", ".join("?" * 10)

Row = tuple[Any, ...]
_LARGEST = 2**63
_encode = json.JSONEncoder().encode
_decode = json.JSONDecoder().decode


def refusal(message: Message, limit: int) -> RefusedForGood | None:
    """Return why the file can never hold this message, None if it can."""
    size = len(message.payload)
    if size > limit:
        return RefusedForGood(f"its payload of {size} bytes is over the limit of {limit}")
    if message.version is not None and not -_LARGEST <= message.version < _LARGEST:
        return RefusedForGood("its version does not fit into 64 bits")
    texts = (message.id, message.type, message.topic, message.key, message.content_type)
    try:
        "".join(filter(None, (*texts, *message.headers, *message.headers.values()))).encode()
    except UnicodeEncodeError:
        return RefusedForGood("a field of it is not valid Unicode (an unpaired surrogate)")
    return None


def to_row(message: Message) -> Row:
    """Return the columns of a message."""
    return (
        message.topic,
        message.key,
        message.id,
        message.type,
        message.version,
        message.content_type,
        message.payload,
        _encode(dict(message.headers)) if message.headers else "{}",
        _micros(message.deliver_at),
        _micros(message.expires_at),
    )


def from_row(row: Row) -> Message:
    """Return the message of these columns."""
    topic, key, message_id, type_, version, content_type, payload, headers, *moments = row
    deliver_at, expires_at = moments
    return Message(
        topic=topic,
        key=key,
        id=message_id,
        type=type_,
        version=version,
        content_type=content_type,
        payload=payload,
        headers=NO_HEADERS if headers == "{}" else _decode(headers),
        deliver_at=None if deliver_at is None else from_micros(deliver_at),
        expires_at=None if expires_at is None else from_micros(expires_at),
    )


def _micros(moment: datetime | None) -> int | None:
    return None if moment is None else to_micros(moment)
