"""Messages as AMQP contents, and back."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache

from postroom._clock import nearest_moment, to_micros
from postroom.brokers.rabbitmq import frames
from postroom.brokers.rabbitmq.frames import Properties, Table, number_value, text_value
from postroom.errors import RefusedForGood
from postroom.message import NO_HEADERS, Message

PREFIX = "postroom-"
KEY, VERSION = b"postroom-key", b"postroom-version"
DELIVER_AT, EXPIRES_AT = b"postroom-deliver-at", b"postroom-expires-at"

# What a copy carries that the driver itself publishes: for a retry, or as a dead letter.
TOPIC = b"postroom-topic"
"""Where the message was published, once the routing key says something else."""
ATTEMPTS = b"postroom-attempts"
"""Failed attempts so far."""
DUE_AT = b"postroom-due-at"
REASON, DIED_AT, POSITION = b"postroom-reason", b"postroom-died-at", b"postroom-position"

OURS = frozenset(
    {KEY, VERSION, DELIVER_AT, EXPIRES_AT, TOPIC, ATTEMPTS, DUE_AT, REASON, DIED_AT, POSITION}
)
_ESCAPE = b"postroom-header-"
"""Before the name of a header that would mean something to the driver or to RabbitMQ."""
_SPECIAL = (
    b"postroom-header-",
    *(b"x-death", b"x-first-death-", b"x-last-death-", b"x-delivery-count", b"x-acquired-count"),
    *(b"x-delay", b"x-opt-", b"x-stream-"),
)
_ROUTING = frozenset({b"CC", b"BCC"})
_FLAGS = (
    frames.CONTENT_TYPE | frames.DELIVERY_MODE | frames.MESSAGE_ID | frames.TIMESTAMP | frames.TYPE
)
_PERSISTENT = b"\x02"
_LONGEST = 255
_LARGEST = 2**63


def properties_of(message: Message, stamp: bytes) -> tuple[int, tuple[bytes, ...]]:
    """Return flags and properties, in pieces. Raises RefusedForGood, which names the field.

    `stamp` is the time of publishing as it goes on the wire.
    """
    try:
        table = _table(message)
        kind, name = _short(message.content_type), _short(message.type)
        message_id = frames.short(message.id)
    except UnicodeEncodeError as error:
        raise RefusedForGood(
            "a field of it is not valid Unicode (an unpaired surrogate)"
        ) from error
    except ValueError as error:
        raise RefusedForGood(f"its type, id or content type {error}") from error
    if not table:
        return _FLAGS, (kind, _PERSISTENT, message_id, stamp, name)
    size = frames.LONG.pack(len(table))
    return _FLAGS | frames.HEADERS, (kind, size, table, _PERSISTENT, message_id, stamp, name)


def _table(message: Message) -> bytes:
    """Return the headers, without the length of all."""
    pack = frames.LONG.pack
    entries: list[bytes] = []
    for name, text in message.headers.items():
        data = text.encode()
        entries += (_name(name), pack(len(data)), data)
    if message.key is not None:
        data = message.key.encode()
        entries += (_KEY_ENTRY, pack(len(data)), data)
    if message.version is not None:
        if not -_LARGEST <= message.version < _LARGEST:
            raise RefusedForGood("its version does not fit into 64 bits")
        entries += (_VERSION_NAME, number_value(message.version))
    if message.deliver_at is not None:
        entries += (_DELIVER_AT_NAME, number_value(to_micros(message.deliver_at)))
    if message.expires_at is not None:
        entries += (_EXPIRES_AT_NAME, number_value(to_micros(message.expires_at)))
    return b"".join(entries)


@lru_cache(maxsize=4096)
def _short(text: str) -> bytes:
    return frames.short(text)


@lru_cache(maxsize=4096)
def _name(name: str) -> bytes:
    """Return the name of a header for the wire, and the kind of a text."""
    data = name.encode()
    if data in OURS or data in _ROUTING or data.lower().startswith(_SPECIAL):
        data = _ESCAPE + data
    if len(data) > _LONGEST:
        raise RefusedForGood(f"the name of a header has {len(data)} bytes, {_LONGEST} are possible")
    return bytes((len(data),)) + data + b"S"


_KEY_ENTRY = frames.short(KEY.decode()) + b"S"
_VERSION_NAME = frames.short(VERSION.decode())
_DELIVER_AT_NAME = frames.short(DELIVER_AT.decode())
_EXPIRES_AT_NAME = frames.short(EXPIRES_AT.decode())


def message_of(properties: Properties, routing_key: bytes, payload: bytes) -> Message:
    """Return what arrived as a message, whoever sent it. Raises Malformed.

    A content without `type` has its topic for a type; one without an id has the empty id, which
    a consumer never takes for one.
    """
    topic = topic_of(properties, routing_key)
    kind = properties.text(frames.TYPE)
    return Message(
        id=properties.text(frames.MESSAGE_ID) or "",
        type=topic if kind is None else kind,
        content_type=properties.text(frames.CONTENT_TYPE) or "application/octet-stream",
        payload=payload,
        topic=topic,
        key=properties.header(KEY),
        version=properties.number(VERSION),
        headers=_user_headers(properties.headers),
        deliver_at=moment_of(properties, DELIVER_AT),
        expires_at=moment_of(properties, EXPIRES_AT),
    )


def topic_of(properties: Properties, routing_key: bytes) -> str:
    """Return where the message was published, also after it was moved to another queue."""
    said = properties.header(TOPIC)
    if said is not None:
        return said
    death = first_death(properties)
    keys = death.get("routing-keys")
    if isinstance(keys, list) and keys and isinstance(keys[0], str):
        return keys[0]
    return frames.readable(routing_key)


def first_death(properties: Properties, *, newest: bool = False) -> dict[str, object]:
    """Return what RabbitMQ wrote when it moved the message first, or last; empty if never."""
    value = properties.headers.get(b"x-death")
    deaths = frames.decoded(value) if value is not None else None
    if isinstance(deaths, list) and deaths:
        death = deaths[0 if newest else -1]
        if isinstance(death, dict):
            return death
    return {}


def moment_of(properties: Properties, name: bytes) -> datetime | None:
    """Return a header as a moment, None where there is none."""
    micros = properties.number(name)
    return None if micros is None else nearest_moment(micros)


def _user_headers(table: Table) -> Mapping[str, str]:
    found = {
        frames.readable(name.removeprefix(_ESCAPE)): frames.as_text(value)
        for name, value in table.items()
        if name not in OURS and not _is_rabbits(name)
    }
    return found or NO_HEADERS


def _is_rabbits(name: bytes) -> bool:
    """Whether RabbitMQ wrote this header; ours of such names are escaped."""
    return not name.startswith(_ESCAPE) and name.startswith(_SPECIAL)


@dataclass(frozen=True, slots=True)
class Copy:
    """A message that the driver itself publishes, in its original form."""

    id: str
    flags: int
    properties: bytes
    body: bytes


def copy_of(properties: Properties, body: bytes, extra: Table) -> Copy:
    """Return a copy with everything of the original, and these headers.

    What RabbitMQ wrote when it moved the original is left out (it would take the copy for one
    that goes round in circles), and so is a time to live, which has done its work.
    """
    kept = {
        name: value
        for name, value in properties.headers.items()
        if not _is_rabbits(name) and name not in {DUE_AT, REASON, DIED_AT, POSITION, ATTEMPTS}
    }
    fields = {**properties.fields, frames.DELIVERY_MODE: _PERSISTENT}
    # A foreign user id would be checked against ours, and the channel closed.
    flags, packed = Properties(fields=fields, headers=kept).packed(
        without=frames.EXPIRATION | frames.USER_ID, extra=extra
    )
    return Copy(properties.text(frames.MESSAGE_ID) or "", flags, packed, body)


def extras(**values: str | int | None) -> Table:
    """Return headers by the last parts of their names, without those that are None."""
    return {
        f"{PREFIX}{name.replace('_', '-')}".encode(): (
            text_value(value) if isinstance(value, str) else number_value(value)
        )
        for name, value in values.items()
        if value is not None
    }
