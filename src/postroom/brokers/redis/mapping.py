"""Messages as entries of a stream, and back."""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from functools import lru_cache

from postroom._clock import nearest_moment, to_micros
from postroom.brokers.redis.wire import bulk
from postroom.errors import RefusedForGood
from postroom.message import NO_HEADERS, Message

ID, TYPE, CONTENT_TYPE, PAYLOAD = b"id", b"type", b"content_type", b"payload"
KEY, VERSION = b"key", b"version"
DELIVER_AT, EXPIRES_AT = b"deliver_at", b"expires_at"
HEADER = b"header:"
"""Before the name of a header; a field of another name is a header too, of somebody else."""

# What a dead letter, or one that is replayed, carries besides.
TOPIC, ENTRY = b"postroom-topic", b"postroom-entry"
REASON, ATTEMPTS, DIED_AT = b"postroom-reason", b"postroom-attempts", b"postroom-died-at"
ONLY = b"postroom-only"
"""The one group that is meant by an entry that was replayed; the others pass it over."""

_ABOUT_DEATH = frozenset({TOPIC, ENTRY, REASON, ATTEMPTS, DIED_AT})
_OURS = frozenset({ID, TYPE, CONTENT_TYPE, PAYLOAD, KEY, VERSION, DELIVER_AT, EXPIRES_AT})
_MOST = 1_000_000_000
"""Bytes of an entry; Redis keeps no larger ones."""

Fields = Sequence[bytes]
"""Names and values in turn, as they are in a stream."""


def packed(message: Message, largest: int | None) -> tuple[int, bytes]:
    """Return how many parts the fields are in a command, and these parts.

    `largest` is the longest part that the server takes. Raises RefusedForGood, which says why.
    """
    try:
        parts = [_ID, bulk(message.id.encode()), *_kinds(message.type, message.content_type)]
        if message.key is not None:
            parts += (_KEY, bulk(message.key.encode()))
        for name, text in message.headers.items():
            parts += (_header(name), bulk(text.encode()))
    except UnicodeEncodeError as error:
        raise RefusedForGood(
            "a field of it is not valid Unicode (an unpaired surrogate)"
        ) from error
    if message.version is not None:
        parts += (_VERSION, bulk(b"%d" % message.version))
    if message.deliver_at is not None:
        parts += (_DELIVER_AT, bulk(b"%d" % to_micros(message.deliver_at)))
    if message.expires_at is not None:
        parts += (_EXPIRES_AT, bulk(b"%d" % to_micros(message.expires_at)))
    parts += (_PAYLOAD, bulk(message.payload))
    data = b"".join(parts)
    most = min(largest or _MOST, _MOST)
    if len(data) > most:
        _check_parts(parts, most)
    return len(parts), data


def _check_parts(parts: Iterable[bytes], most: int) -> None:
    longest = max(map(len, parts))
    if longest > most or sum(map(len, parts)) > _MOST:
        raise RefusedForGood(f"a part of it, or all of it, is over the server's limit of {most}")


@lru_cache(maxsize=4096)
def _kinds(kind: str, content_type: str) -> tuple[bytes, ...]:
    return (bulk(TYPE), bulk(kind.encode()), bulk(CONTENT_TYPE), bulk(content_type.encode()))


@lru_cache(maxsize=4096)
def _header(name: str) -> bytes:
    return bulk(HEADER + name.encode())


_ID, _PAYLOAD, _KEY, _VERSION = bulk(ID), bulk(PAYLOAD), bulk(KEY), bulk(VERSION)
_DELIVER_AT, _EXPIRES_AT = bulk(DELIVER_AT), bulk(EXPIRES_AT)


def message_of(topic: str, fields: Fields) -> Message:
    """Return an entry as a message, whoever wrote it; never fails.

    One without `type` has its topic for a type; one without an id has the empty id, which a
    consumer never takes for one.
    """
    found = named(fields)
    kind, content_type, key = found.get(TYPE), found.get(CONTENT_TYPE), found.get(KEY)
    return Message(
        id=readable(found.get(ID, b"")),
        type=topic if kind is None else readable(kind),
        content_type=readable(content_type or b"application/octet-stream"),
        payload=found.get(PAYLOAD, b""),
        topic=topic,
        key=None if key is None else readable(key),
        version=number(found.get(VERSION)),
        headers=_headers(found),
        deliver_at=moment(found.get(DELIVER_AT)),
        expires_at=moment(found.get(EXPIRES_AT)),
    )


def named(fields: Fields) -> dict[bytes, bytes]:
    """Return the fields by name; of two of one name the last."""
    pairs = iter(fields)
    return dict(zip(pairs, pairs, strict=False))


def dead_fields(
    fields: Fields, *, topic: str, entry: bytes, reason: str, attempts: int, at: datetime
) -> list[bytes]:
    """Return the entry as it came, for a stream of dead letters, with what became of it."""
    return [
        *_without(fields, _ABOUT_DEATH | {ONLY}),
        *(TOPIC, _bytes(topic)),
        *(ENTRY, entry),
        *(ATTEMPTS, b"%d" % attempts),
        *(REASON, _bytes(reason)),
        *(DIED_AT, b"%d" % to_micros(at)),
    ]


def replayed_fields(fields: Fields, group: str) -> list[bytes]:
    """Return a dead letter as it was, meant for that group alone."""
    return [*_without(fields, _ABOUT_DEATH | {ONLY}), ONLY, _bytes(group)]


def _without(fields: Fields, names: frozenset[bytes]) -> list[bytes]:
    pairs = iter(fields)
    return [
        part
        for name, value in zip(pairs, pairs, strict=False)
        if name not in names
        for part in (name, value)
    ]


def _headers(found: Mapping[bytes, bytes]) -> Mapping[str, str]:
    mine = {
        readable(name.removeprefix(HEADER)): readable(value)
        for name, value in found.items()
        if name not in _OURS and name not in _ABOUT_DEATH and name != ONLY
    }
    return mine or NO_HEADERS


def readable(data: bytes) -> str:
    """Return bytes as text; what is not UTF-8 becomes backslash escapes."""
    return data.decode("utf-8", "backslashreplace")


def number(data: bytes | None) -> int | None:
    """Return a number, None where there is none or it is something else."""
    try:
        return None if data is None or len(data) > _DIGITS else int(data)
    except ValueError:
        return None


_DIGITS = 40


def moment(data: bytes | None) -> datetime | None:
    """Return microseconds since 1970 as a moment, None where there are none."""
    micros = number(data)
    return None if micros is None else nearest_moment(micros)


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "backslashreplace")
