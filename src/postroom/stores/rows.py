"""Rows of the outbox and the values they stand for."""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields, replace
from datetime import datetime
from hashlib import sha256
from typing import Any

from postroom._clock import from_micros, nearest_moment, to_micros
from postroom.lane import Lane, lane_of
from postroom.message import NO_HEADERS, Entry, Message, State
from postroom.statement import Scalar
from postroom.store import Addressed, AuditRecord

_SHOWN_ID = 255
_ATTEMPTS, _VERSION, _HEADERS, _PAYLOAD = 6, 7, 18, 19
"""Where the columns stand that are looked at before the rest."""
_WHOLE = {int, type(None)}
_STATES = {str(state): state for state in State}
_decode = json.JSONDecoder().decode


def micros(moment: datetime | None) -> int | None:
    """Return the moment as the tables keep it."""
    return None if moment is None else to_micros(moment)


def new_row(addressed: Addressed, now: int) -> Mapping[str, Scalar]:
    """Return the values of the row that a message begins as."""
    message = addressed.message
    deliver_at = micros(message.deliver_at)
    later = deliver_at is not None and deliver_at > now
    return {
        "id": message.id,
        "route": addressed.route,
        "lane": lane_of(message.key, message.id),
        "state": "scheduled" if later else "ready",
        "version": message.version,
        "due_at": deliver_at if later else None,
        "deliver_at": deliver_at,
        "expires_at": micros(message.expires_at),
        "created_at": now,
        "key": message.key,
        "type": message.type,
        "topic": message.topic,
        "content_type": message.content_type,
        "headers": _headers_text(message.headers),
        "payload": message.payload,
    }


def inbox_row(consumer: str, message_id: str, now: int) -> Mapping[str, Scalar]:
    """Return the values of the row that says this consumer has seen this id."""
    text = message_id.encode("utf-8", "surrogatepass")
    return {
        "consumer": consumer,
        "message_key": sha256(text).digest(),
        "message_id": message_id[:_SHOWN_ID].encode("utf-8", "replace").decode(),
        "handled_at": now,
    }


def entry_of(row: Sequence[Any], *, typed: bool = False) -> Entry:
    """Return the entry of a row; `typed` where the database lets nothing into a wrong column.

    A row that another writer filled with something else than the schema means still becomes an
    entry: with what can be read, without headers, and with the reason in `unreadable`.
    """
    try:
        if not typed:
            _check(row)
        return _entry(row, _headers(row[_HEADERS]), _moment)
    except (ValueError, TypeError, OverflowError, OSError) as cause:
        entry = _entry(_cleaned(row), NO_HEADERS, _moment_or_none)
        return replace(entry, unreadable=f"{type(cause).__name__}: {cause}")


def _entry(
    row: Sequence[Any], headers: Mapping[str, str], moment: Callable[[Any], datetime | None]
) -> Entry:
    message = _blank(Message)
    _type(message, row[14])
    _payload(message, row[_PAYLOAD])
    _id(message, row[1])
    _content_type(message, row[16])
    _key(message, row[13])
    _version(message, row[_VERSION])
    _headers_of(message, headers)
    _topic(message, row[15])
    _deliver_at(message, None if row[9] is None else moment(row[9]))
    _expires_at(message, None if row[10] is None else moment(row[10]))
    entry = _blank(Entry)
    _seq(entry, row[0])
    _route(entry, row[2])
    _lane(entry, row[3])
    _state(entry, _STATES[row[4]])
    _message(entry, message)
    _attempts(entry, row[_ATTEMPTS])
    _blocks(entry, bool(row[5]))
    _behind(entry, bool(row[20]))
    _unreadable(entry, None)
    _created_at(entry, moment(row[11]))
    _due_at(entry, None if row[8] is None else moment(row[8]))
    _settled_at(entry, None if row[12] is None else moment(row[12]))
    _error(entry, row[17])
    return entry


def _setters(cls: type) -> Iterator[Callable[[object, object], None]]:
    """Return what fills each field of a new object, in the order of the fields.

    An entry is made of every row that is ever sent. The constructor of a frozen class takes
    more than twice as long, and would be half of what reading and settling cost.
    """
    return (cls.__dict__[field.name].__set__ for field in fields(cls))


_blank = object.__new__
_type, _payload, _id, _content_type, _key, *_more = _setters(Message)
_version, _headers_of, _topic, _deliver_at, _expires_at = _more
_seq, _route, _lane, _state, _message, _attempts, _blocks, *_more = _setters(Entry)
_behind, _unreadable, _created_at, _due_at, _settled_at, _error = _more


def record_of(row: Sequence[Any]) -> AuditRecord:
    """Return what the audit says of one change."""
    at, actor, action, detail, count = row
    return AuditRecord(
        at=nearest_moment(at), actor=actor, action=action, detail=detail, count=count
    )


def used_lanes(lanes: Iterable[Lane], entries: Iterable[Entry]) -> list[Lane]:
    """Return those of the lanes that these entries stand in."""
    places = {(entry.route, entry.lane) for entry in entries}
    return [lane for lane in lanes if (lane.route, lane.number) in places]


def text_of(value: Any) -> Any:
    """Return bytes that stand for a text as one, with a backslash where they are no UTF-8."""
    return value.decode("utf-8", "backslashreplace") if isinstance(value, bytes) else value


def _check(row: Sequence[Any]) -> None:
    """Raise TypeError where SQLite let a value of another type into a column."""
    if type(row[_PAYLOAD]) is not bytes:
        raise TypeError(f"the payload is {type(row[_PAYLOAD]).__name__}, not bytes")
    if bytes in map(type, row[:_PAYLOAD]):
        raise TypeError("a text is not UTF-8")
    if type(row[_ATTEMPTS]) is not int or type(row[_VERSION]) not in _WHOLE:
        raise TypeError("attempts or version is not a whole number")


def _cleaned(row: Sequence[Any]) -> Sequence[Any]:
    """Return the row with every value as near to its type as can be."""
    values = [text_of(value) for value in row[:_PAYLOAD]]
    for place in (_VERSION, _ATTEMPTS):
        if not isinstance(values[place], int):
            values[place] = None if place == _VERSION else 0
    payload = row[_PAYLOAD]
    return [*values, payload if isinstance(payload, bytes) else str(payload).encode(), row[20]]


def _headers_text(headers: Mapping[str, str]) -> str:
    if not headers:
        return "{}"
    return json.dumps(dict(headers), ensure_ascii=False, separators=(",", ":"))


def _headers(text: str) -> Mapping[str, str]:
    if text == "{}":
        return NO_HEADERS
    headers = _decode(text)
    if not isinstance(headers, dict):
        raise TypeError("headers are not an object of texts")
    for value in headers.values():
        if not isinstance(value, str):
            raise TypeError("a header is not text")
    return headers


def _moment(value: Any) -> datetime | None:
    return None if value is None else from_micros(value)


def _moment_or_none(value: Any) -> datetime | None:
    try:
        return _moment(value)
    except (ValueError, TypeError, OverflowError, OSError):
        return None
