"""Messages as Kafka records, and back."""

from collections.abc import Iterable, Mapping
from datetime import datetime
from functools import lru_cache
from typing import NamedTuple

from postroom._clock import nearest_moment, to_micros
from postroom.errors import RefusedForGood
from postroom.message import NO_HEADERS, Message

PREFIX = "postroom-"
ID, TYPE, CONTENT_TYPE = "postroom-id", "postroom-type", "postroom-content-type"
VERSION = "postroom-version"
DELIVER_AT, EXPIRES_AT = "postroom-deliver-at", "postroom-expires-at"

# What a dead letter carries besides: where it was, and why it is dead.
TOPIC, PARTITION, OFFSET = "postroom-topic", "postroom-partition", "postroom-offset"
REASON, DIED_AT, GROUP = "postroom-reason", "postroom-died-at", "postroom-group"

OURS = frozenset(
    {ID, TYPE, CONTENT_TYPE, VERSION, DELIVER_AT, EXPIRES_AT}
    | {TOPIC, PARTITION, OFFSET, REASON, DIED_AT, GROUP}
)
_ESCAPE = "postroom-header-"
"""Before the name of a header that would mean something to the driver."""
_LONGEST_TOPIC = 249
_TOPIC_SIGNS = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-")

Headers = list[tuple[str, bytes | None]]


_UNBOUND = 2**63
_BATCH, _MARGIN, _HEADER, _WIDEST = 61, 100, 10, 4


class Record(NamedTuple):
    """One record as it goes out."""

    topic: str
    key: bytes | None
    value: bytes | None
    headers: Headers
    bound: int = _UNBOUND
    """A number that `size` does not exceed."""

    @property
    def size(self) -> int:
        """Bytes of a batch that holds this record alone, as the broker counts them."""
        body = 3 + _counted(self.key) + _counted(self.value) + _varint(len(self.headers))
        for name, value in self.headers:
            body += _counted(name.encode()) + _counted(value)
        return _BATCH + _varint(body) + body


def _counted(data: bytes | None) -> int:
    return 1 if data is None else _varint(len(data)) + len(data)


def _varint(number: int) -> int:
    """Return how many bytes a length takes: zigzag, seven bits in each."""
    return max(1, -(-(number * 2).bit_length() // 7))


def record_of(message: Message) -> Record:
    """Return the message as a record. Raises RefusedForGood, which names the field."""
    check_topic(message.topic)
    try:
        identity = message.id.encode()
        kind, content_type, bound = _kinds(message.type, message.content_type)
        headers: Headers = [(ID, identity), kind, content_type]
        bound += len(identity) + len(message.payload)
        for name, text in message.headers.items():
            data = text.encode()
            headers.append((_named(name), data))
            bound += _HEADER + _WIDEST * len(name) + len(data)
        key = None
        if message.key is not None:
            key = message.key.encode()
            bound += len(key)
    except UnicodeEncodeError as error:
        raise RefusedForGood(
            "a field of it is not valid Unicode (an unpaired surrogate)"
        ) from error
    if message.version is not None:
        headers.append((VERSION, b"%d" % message.version))
        bound += len(headers[-1][1] or b"")
    if message.deliver_at is not None:
        headers.append((DELIVER_AT, b"%d" % to_micros(message.deliver_at)))
    if message.expires_at is not None:
        headers.append((EXPIRES_AT, b"%d" % to_micros(message.expires_at)))
    return Record(message.topic, key, message.payload, headers, bound)


@lru_cache(maxsize=4096)
def check_topic(topic: str) -> None:
    """Raise RefusedForGood for a name that no topic of Kafka can have."""
    if (
        not topic
        or len(topic) > _LONGEST_TOPIC
        or topic in {".", ".."}
        or set(topic) - _TOPIC_SIGNS
    ):
        raise RefusedForGood(
            f"{topic[:100]!r} cannot be a topic of Kafka: up to {_LONGEST_TOPIC} letters, digits "
            "and the signs . _ -"
        )


@lru_cache(maxsize=4096)
def _kinds(kind: str, content_type: str) -> tuple[tuple[str, bytes], tuple[str, bytes], int]:
    """Return two headers, and a bound for what all headers of ours but the id take."""
    data, second = kind.encode(), content_type.encode()
    bound = _BATCH + _MARGIN + len(data) + len(second) + _OURS
    return (TYPE, data), (CONTENT_TYPE, second), bound


_OURS = sum(_HEADER + len(name) + len(str(2**63)) + 10 for name in OURS)


@lru_cache(maxsize=4096)
def _named(name: str) -> str:
    """Return the name of a header for the wire."""
    if "\0" in name:
        raise RefusedForGood("the name of a header has a NUL in it")
    name.encode()
    return _ESCAPE + name if name in OURS or name.startswith(_ESCAPE) else name


def message_of(
    topic: str, key: bytes | None, value: bytes | None, headers: Iterable[tuple[str, bytes | None]]
) -> Message:
    """Return what arrived as a message, whoever sent it; never fails.

    A record without `postroom-type` has its topic for a type; one without an id has the empty
    id, which a consumer never takes for one; a tombstone has an empty payload.
    """
    found = {name: data or b"" for name, data in headers}
    said = {name: found.pop(name) for name in OURS if name in found} if found else {}
    version = _number(said.get(VERSION))
    return Message(
        id=_readable(said.get(ID, b"")),
        type=_readable(said[TYPE]) if TYPE in said else topic,
        content_type=_readable(said.get(CONTENT_TYPE) or b"application/octet-stream"),
        payload=value or b"",
        topic=_readable(said[TOPIC]) if TOPIC in said else topic,
        key=None if key is None else _readable(key),
        version=version,
        headers=_user_headers(found),
        deliver_at=_moment(said.get(DELIVER_AT)),
        expires_at=_moment(said.get(EXPIRES_AT)),
    )


def dead_letter(
    record: Record,
    *,
    topic: str,
    group: str,
    partition: int,
    offset: int,
    reason: str,
    at: datetime,
) -> Record:
    """Return the record as it came, for a topic of dead letters, with what became of it."""
    kept = [one for one in record.headers if one[0] not in _ABOUT_DEATH]
    if not any(name == TOPIC for name, _ in kept):
        kept.append((TOPIC, record.topic.encode()))
    kept += [
        (PARTITION, b"%d" % partition),
        (OFFSET, b"%d" % offset),
        (GROUP, group.encode("utf-8", "backslashreplace")),
        (REASON, reason.encode("utf-8", "backslashreplace")),
        (DIED_AT, b"%d" % to_micros(at)),
    ]
    return Record(topic, record.key, record.value, kept)


_ABOUT_DEATH = frozenset({PARTITION, OFFSET, GROUP, REASON, DIED_AT})


def _user_headers(found: Mapping[str, bytes]) -> Mapping[str, str]:
    if not found:
        return NO_HEADERS
    return {name.removeprefix(_ESCAPE): _readable(data) for name, data in found.items()}


def _readable(data: bytes) -> str:
    return data.decode("utf-8", "backslashreplace")


def _number(data: bytes | None) -> int | None:
    try:
        return None if data is None else int(data)
    except ValueError:
        return None


def _moment(data: bytes | None) -> datetime | None:
    micros = _number(data)
    return None if micros is None else nearest_moment(micros)
