"""Events to messages and back: JSON at the edge, and only what comes back unchanged."""

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import UTC, datetime
from decimal import Decimal
from functools import cache, lru_cache
from types import MappingProxyType
from typing import Any, TypedDict, TypeVar, Unpack, cast
from uuid import UUID

import msgspec

from postroom._timed import timed_fields
from postroom.errors import InvalidMessage, Undecodable
from postroom.message import NO_HEADERS, Message, MessageType, message_type

T = TypeVar("T")

JSON = "application/json"
MAX_TYPE_BYTES = 255
MAX_TOPIC_BYTES = 255
MAX_KEY_BYTES = 512
MAX_CONTENT_TYPE_BYTES = 255
RESERVED = "postroom-"
"""Header names that begin so are Postroom's own."""


class PutOptions(TypedDict, total=False):
    """What may be said of an event when it is put; a ready `Message` says it itself."""

    type: "type | str | None"
    """The stamped class, or the name, of an event that does not tell (a TypedDict, a dict)."""
    key: str | UUID | int | None
    """The ordering key, instead of the field that the type names."""
    version: int | None
    """The aggregate's version, instead of the field that the type names."""
    headers: Mapping[str, str] | None
    """Text that travels along, such as `correlation-id`."""
    topic: str | None
    """Where it goes, instead of where its type or route says."""
    deliver_at: datetime | None
    """Not sent before this moment."""
    expires_at: datetime | None
    """Given up when it was not sent by this moment."""


def encode(event: object, **options: Unpack[PutOptions]) -> Message:
    """Return the event as a message, with a new id.

    Raises `InvalidMessage`, which names the field and the cure, for whatever would not come back
    unchanged: NaN, lone surrogates, times without a zone, values that the annotations do not fit.
    """
    return encode_to(event, options, _undecided)


def encode_to(event: object, options: PutOptions, topic_of: Callable[[str], str]) -> Message:
    """Return the event as a message; where nothing names a topic, that of its type's name."""
    if options and (unknown := options.keys() - PutOptions.__annotations__.keys()):
        raise TypeError(f"put() has no option {', '.join(sorted(unknown))}")
    stamp, cls = _described(event, options.get("type"))
    key, version = options.get("key"), options.get("version")
    if key is None and stamp.key is not None:
        key = _field(event, stamp.key)
    if version is None and stamp.version is not None:
        version = _field(event, stamp.version)
    message = Message(
        type=stamp.name,
        payload=_json(event, cls),
        key=_key(key),
        version=version,
        headers=_headers(options.get("headers")),
        topic=options.get("topic") or stamp.topic or topic_of(stamp.name),
        deliver_at=options.get("deliver_at"),
        expires_at=options.get("expires_at"),
    )
    _check_fields(message)
    return message


def _undecided(_name: str) -> str:
    return ""


def decode(message: Message, cls: type[T]) -> T:
    """Return the payload as the class; `bytes` gives it untouched, whatever its content type.

    Fields that the class does not know are ignored. Raises `Undecodable` with the path of what
    does not fit.
    """
    if cls is bytes:
        return cast("T", message.payload)
    if message.content_type.partition(";")[0].strip().lower() != JSON:
        raise Undecodable(
            f"{message.type} has content type {message.content_type!r}, not {JSON}; handle it as "
            "bytes"
        )
    try:
        return cast("T", _decoder(cast("Any", cls))(message.payload))
    except (msgspec.MsgspecError, UnicodeDecodeError, ValueError, TypeError) as error:
        raise Undecodable(f"{message.type} as {cls.__qualname__}: {error}") from error


def check(message: Message) -> None:
    """Raise `InvalidMessage` unless every field makes the round trip unchanged."""
    if not isinstance(message.payload, bytes):
        raise InvalidMessage("payload must be bytes; encode it, or put the event itself")
    if not isinstance(message.id, str) or not _ID.fullmatch(message.id):
        raise InvalidMessage(
            f"id {message.id!r:.80} is not a UUID in lower case with hyphens; use str(new_id())"
        )
    _check_fields(message)


def _check_fields(message: Message) -> None:
    """Check everything but payload and id, which are right where we made them ourselves."""
    _check_name("type", message.type, MAX_TYPE_BYTES)
    _check_name("content_type", message.content_type, MAX_CONTENT_TYPE_BYTES)
    if message.topic != "":
        _check_name("topic", message.topic, MAX_TOPIC_BYTES)
    if message.key is not None:
        _check_text("key", message.key, MAX_KEY_BYTES, empty="use None for a message without a key")
    if message.version is not None:
        _check_version(message.version)
    if message.headers:
        _check_headers(message.headers)
    if message.deliver_at is not None or message.expires_at is not None:
        _check_times(message)


_ID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
_HEADER_NAME = re.compile(r"[!-9;-~]+")
_VERSIONS = range(-(2**63), 2**63)


def _check_name(field: str, value: object, limit: int) -> None:
    """Check a text of which a process has few; those that were right are remembered."""
    (_remembered if type(value) is str else _check_text)(field, value, limit)


def _check_text(field: str, value: object, limit: int, *, empty: str = "give it a name") -> None:
    if not isinstance(value, str):
        raise InvalidMessage(f"{field} must be text, not {type(value).__name__}")
    if not value:
        raise InvalidMessage(f"{field} is empty; {empty}")
    if "\0" in value:
        raise InvalidMessage(f"{field} contains NUL (U+0000), which databases cannot keep")
    if value.isascii():
        size = len(value)
    else:
        try:
            size = len(value.encode())
        except UnicodeEncodeError as error:
            raise InvalidMessage(f"{field} {_surrogate(error)}") from error
    if size > limit:
        raise InvalidMessage(f"{field} has {size} bytes in UTF-8, {limit} allowed")


_remembered = lru_cache(maxsize=1024)(_check_text)


def _surrogate(error: UnicodeEncodeError) -> str:
    return (
        f"contains the lone surrogate U+{ord(error.object[error.start]):04X} at position "
        f"{error.start}, which is no character; decode the text with errors='replace'"
    )


def _check_version(version: object) -> None:
    if type(version) is not int or version not in _VERSIONS:
        raise InvalidMessage("version must be an int of at most 64 bits")


def _check_headers(headers: Mapping[str, str]) -> None:
    if not isinstance(headers, Mapping):
        raise InvalidMessage(f"headers must be a mapping, not {type(headers).__name__}")
    for name, value in headers.items():
        if not isinstance(name, str) or not _HEADER_NAME.fullmatch(name):
            raise InvalidMessage(
                f"header name {name!r:.80} must be visible ASCII without spaces and colons"
            )
        if name.lower().startswith(RESERVED):
            raise InvalidMessage(f"header {name}: names that begin with {RESERVED} are reserved")
        if not isinstance(value, str):
            raise InvalidMessage(f"header {name} must be text, not {type(value).__name__}; use str")
        if value:
            _check_text(f"header {name}", value, len(value) * 4)


def _check_times(message: Message) -> None:
    for field in ("deliver_at", "expires_at"):
        moment = getattr(message, field)
        if moment is None:
            continue
        if not isinstance(moment, datetime):
            raise InvalidMessage(f"{field} must be a datetime, not {type(moment).__name__}")
        if moment.utcoffset() is None:
            raise InvalidMessage(f"{field} has no time zone; use datetime.now(UTC) + timedelta(…)")
        try:
            moment.astimezone(UTC)
        except OverflowError as error:
            raise InvalidMessage(
                f"{field} {moment} is outside of the years 1 to 9999 in UTC; "
                "leave it out for a message without such a limit"
            ) from error
    deliver_at, expires_at = message.deliver_at, message.expires_at
    if deliver_at is not None and expires_at is not None and expires_at <= deliver_at:
        raise InvalidMessage("expires_at is not after deliver_at: it could never be sent")


# What an event says of itself


def _described(event: object, named: "type | str | None") -> tuple[MessageType, Any]:
    """Return the type's description, and what to decode the payload as."""
    if isinstance(named, str):
        stamp = message_type(type(event))
        cls = type(event) if stamp is not None or not isinstance(event, dict) else Any
        return MessageType(name=named) if stamp is None else _renamed(stamp, named), cls
    cls = type(event) if named is None else named
    stamp = message_type(cls)
    if stamp is None:
        raise InvalidMessage(
            f'{cls.__qualname__} has no message type; put @message("your.name") above the class, '
            "or name it: put(..., type=...)"
        )
    return stamp, cls


def _renamed(stamp: MessageType, name: str) -> MessageType:
    return MessageType(name=name, key=stamp.key, version=stamp.version, topic=stamp.topic)


def _field(event: object, name: str) -> Any:
    try:
        return event[name] if isinstance(event, Mapping) else getattr(event, name)
    except (AttributeError, KeyError) as error:
        raise InvalidMessage(
            f"{type(event).__qualname__} has no field {name!r}, which its @message names"
        ) from error


def _key(value: object) -> str | None:
    if value is None or type(value) is str:
        return value
    if isinstance(value, str):  # an enum's member is text and more; drivers know plain text
        return str.__str__(value)
    if isinstance(value, UUID) or (isinstance(value, int) and not isinstance(value, bool)):
        return str(value)
    raise InvalidMessage(f"key must be text, a UUID or an int, not {type(value).__name__}")


def _headers(headers: Mapping[str, str] | None) -> Mapping[str, str]:
    if not headers:
        return NO_HEADERS
    if not isinstance(headers, Mapping):
        raise InvalidMessage(f"headers must be a mapping, not {type(headers).__name__}")
    return MappingProxyType(dict(headers))


# JSON


_encoder = msgspec.json.Encoder()


@cache
def _decoder(cls: Any) -> Callable[[bytes], object]:
    return msgspec.json.Decoder(cls).decode


def _json(event: object, cls: Any) -> bytes:
    try:
        payload = _encoder.encode(event)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise InvalidMessage(_cause(event, error)) from error
    try:
        back = _decoder(cls)(payload)
    except (msgspec.MsgspecError, TypeError, ValueError, OverflowError) as error:
        raise InvalidMessage(_cause(event, error)) from error
    if not _same(event, back):
        raise InvalidMessage(_cause(event, None))
    if cls is not Any:
        _refuse_naive(event, cls)
    return payload


def _same(event: object, back: object) -> bool:
    config = getattr(event, "__struct_config__", None)
    if type(event).__eq__ is object.__eq__ or (config is not None and not config.eq):
        event, back = msgspec.to_builtins(event), msgspec.to_builtins(back)
    try:
        return bool(event == back)
    except (ArithmeticError, TypeError, ValueError):  # a signaling NaN cannot even be compared
        return False


def _refuse_naive(event: object, cls: Any) -> None:
    fields = timed_fields(cls)
    if fields is None or type(event) is not cls:
        _refuse_naive_in(event, "")
        return
    for name in fields:
        value = getattr(event, name)
        if type(value) is not datetime or value.tzinfo is not UTC:
            _refuse_naive_in(value, f".{name}")


def _refuse_naive_in(whole: object, path: str) -> None:
    for place, value in _walk(whole, path):
        if isinstance(value, datetime) and value.utcoffset() is None:
            raise InvalidMessage(f"{place} {_NAIVE}")


_NAIVE = "is a time without a zone; use datetime.now(UTC)"


def _cause(event: object, error: Exception | None) -> str:
    """Say which field does not come back unchanged, and what to do."""
    name = type(event).__qualname__
    try:
        for path, value in _walk(event, ""):
            if said := _wrong(value):
                return f"{name}{path} {said}"
    except RecursionError:
        return f"{name} contains itself, which JSON cannot hold; refer to it by an id"
    if error is not None:
        return f"{name} would not come back unchanged: {error}"
    return (
        f"{name} would come back different from what was put; annotate its fields with the types "
        "that they hold (sets, tuples, UUIDs and times need it), and let it compare by value"
    )


def _wrong(value: object) -> str | None:
    lost = isinstance(value, float) and not math.isfinite(value)
    if lost or (isinstance(value, Decimal) and not value.is_finite()):
        return f"is {value}, which does not come back unchanged; use None or text"
    if isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError as error:
            return _surrogate(error)
    if isinstance(value, datetime) and value.utcoffset() is None:
        return _NAIVE
    if not list(_parts(value)):
        try:
            _encoder.encode(value)
        except (TypeError, ValueError) as error:
            return f"is a {type(value).__qualname__}, which JSON cannot hold ({error})"
    return None


def _walk(value: object, path: str) -> Iterator[tuple[str, object]]:
    yield path, value
    if type(value) not in _LEAVES:
        for step, part in _parts(value):
            yield from _walk(part, path + step)


_LEAVES = frozenset({str, int, float, bool, bytes, type(None), Decimal, UUID, datetime})
"""What most values are; those have no parts, which takes long to find out otherwise."""


def _parts(value: object) -> Iterator[tuple[str, object]]:
    """Go through what a value is made of: fields, items, keys."""
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield f" key {key!r:.40}", key
            yield f"[{key!r:.40}]", item
    elif isinstance(value, list | tuple | set | frozenset):
        for index, item in enumerate(value):
            yield f"[{index}]", item
    else:
        fields: Iterable[str] = getattr(type(value), "__dataclass_fields__", ())
        for name in getattr(type(value), "__struct_fields__", fields):
            if hasattr(value, name):
                yield f".{name}", getattr(value, name)
