"""Messages as NATS messages, and back."""

import re
from collections.abc import Mapping
from datetime import datetime
from functools import lru_cache
from typing import NamedTuple

from postroom._clock import nearest_moment, to_micros
from postroom.brokers.nats import headers
from postroom.brokers.nats.headers import Lines, block, line, quoted, readable, unquoted, user_line
from postroom.errors import RefusedForGood
from postroom.message import NO_HEADERS, Message

NATIVE_ID = b"Nats-Msg-Id"
"""The server drops a copy by it, within the stream's window; it is the message's id."""
EXPECTED_STREAM = b"Nats-Expected-Stream"
ID = b"postroom-id"
"""The id where it could not be told by the native header alone."""
TYPE, CONTENT_TYPE = b"postroom-type", b"postroom-content-type"
KEY, VERSION = b"postroom-key", b"postroom-version"
DELIVER_AT, EXPIRES_AT = b"postroom-deliver-at", b"postroom-expires-at"

# What the driver adds to a dead letter, and to one that is put back.
TOPIC = b"postroom-topic"
"""Where the message was published, once its subject says something else."""
GROUP, SEQUENCE = b"postroom-group", b"postroom-sequence"
REASON, DIED_AT, ATTEMPTS = b"postroom-reason", b"postroom-died-at", b"postroom-attempts"
LEFT_OUT = b"postroom-left-out"
"""Bytes of a payload that did not fit beside the reason."""
ADDED = frozenset({TOPIC, GROUP, SEQUENCE, REASON, DIED_AT, ATTEMPTS, LEFT_OUT})

_OURS = frozenset({ID, TYPE, CONTENT_TYPE, KEY, VERSION, DELIVER_AT, EXPIRES_AT}) | ADDED
_RESERVED = frozenset(name.decode() for name in _OURS)
_SERVERS = b"nats-"
_SUBJECT = re.compile(r"[^\s\x00-\x20\x7f.*>]+(?:\.[^\s\x00-\x20\x7f.*>]+)*")
_LONGEST_SUBJECT = 1024
_TAKEN = ("$JS.", "$SYS.", "$KV.", "$O.", "_INBOX.")
_LARGEST = 2**63


class Packed(NamedTuple):  # made in a third of a dataclass's time, for every message
    """A message as it goes on the wire, around the place that its answer goes to."""

    before: bytes
    after: bytes
    subject: str

    def sent(self, reply: bytes) -> bytes:
        """Return the bytes that publish it."""
        return b"%b%b%b" % (self.before, reply, self.after)


def packed(message: Message, *, stream: bytes, limit: int) -> Packed:
    """Return the message for that stream. Raises RefusedForGood, which names the field.

    `limit` is for headers and payload together, in bytes.
    """
    try:
        before = _before(message.topic)
        lines = b"".join(_lines(message, stream))
    except UnicodeEncodeError as error:
        raise RefusedForGood(
            "a field of it is not valid Unicode (an unpaired surrogate)"
        ) from error
    return around(before, message.topic, lines, message.payload, limit=limit)


def around(before: bytes, subject: str, lines: bytes, payload: bytes, *, limit: int) -> Packed:
    """Return a message of these headers. Raises RefusedForGood where it is too large."""
    head = block(lines)
    size = len(head) + len(payload)
    if size > limit:
        raise RefusedForGood(
            f"with its headers it has {size} bytes, the server takes {limit} of a message"
        )
    return Packed(before, b" %d %d\r\n%b%b\r\n" % (len(head), size, head, payload), subject)


def to_subject(subject: str) -> bytes:
    """Return what publishes to a subject of ours."""
    return b"HPUB %b " % subject.encode()


@lru_cache(maxsize=4096)
def _before(topic: str) -> bytes:
    if not is_subject(topic):
        raise RefusedForGood(
            f"its topic {topic[:100]!r} cannot be a subject: words without blanks, * and >, with "
            f"dots between them, at most {_LONGEST_SUBJECT} bytes, and none of the server's own"
        )
    return to_subject(topic)


def is_subject(topic: str) -> bool:
    """Whether messages of that topic can be published at all."""
    return (
        _SUBJECT.fullmatch(topic) is not None
        and len(topic.encode()) <= _LONGEST_SUBJECT
        and not topic.startswith(_TAKEN)
    )


def _lines(message: Message, stream: bytes) -> list[bytes]:
    found = [_first(stream, message.type, message.content_type)]
    if message.id:
        name = quoted(message.id)
        found.append(b"Nats-Msg-Id: %b\r\n" % name)
        if name != message.id.encode():
            found.append(line(ID, name))
    if message.key is not None:
        found.append(b"postroom-key: %b\r\n" % quoted(message.key))
    if message.version is not None:
        if not -_LARGEST <= message.version < _LARGEST:
            raise RefusedForGood("its version does not fit into 64 bits")
        found.append(b"postroom-version: %d\r\n" % message.version)
    if message.deliver_at is not None:
        found.append(line(DELIVER_AT, b"%d" % to_micros(message.deliver_at)))
    if message.expires_at is not None:
        found.append(line(EXPIRES_AT, b"%d" % to_micros(message.expires_at)))
    for name_, value in message.headers.items():
        found.append(user_line(name_, value, _RESERVED))
    return found


@lru_cache(maxsize=4096)
def _first(stream: bytes, kind: str, content_type: str) -> bytes:
    """Return what many messages have in common."""
    return (
        line(EXPECTED_STREAM, stream)
        + line(TYPE, quoted(kind))
        + line(CONTENT_TYPE, quoted(content_type))
    )


class Read:
    """A message that arrived, with the headers as they came."""

    __slots__ = ("_found", "lines", "message")

    def __init__(self, subject: bytes, raw: bytes, payload: bytes) -> None:
        """Read it, whoever sent it and whatever is in it.

        A message without a type has its topic for one; one without an id has the empty id, which
        a consumer never takes for one.
        """
        self.lines = headers.parsed(raw)
        self._found = dict(self.lines)
        topic = self.text(TOPIC)
        if topic is None:
            topic = readable(subject)
        kind = self.text(TYPE)
        self.message = Message(
            id=self._id(),
            type=topic if kind is None else kind,
            content_type=self.text(CONTENT_TYPE) or "application/octet-stream",
            payload=payload,
            topic=topic,
            key=self.text(KEY),
            version=self.number(VERSION),
            headers=self._user_headers(),
            deliver_at=self.moment(DELIVER_AT),
            expires_at=self.moment(EXPIRES_AT),
        )

    def text(self, name: bytes) -> str | None:
        """Return a header of ours as text, None where there is none."""
        value = self._found.get(name)
        return None if value is None else unquoted(value)

    def number(self, name: bytes) -> int | None:
        """Return a header as a whole number of 64 bits, None where it is none."""
        try:
            number = int(self._found[name])
        except (KeyError, ValueError):
            return None
        return number if -_LARGEST <= number < _LARGEST else None

    def moment(self, name: bytes) -> datetime | None:
        """Return a header as a moment, None where there is none."""
        micros = self.number(name)
        return None if micros is None else nearest_moment(micros)

    def kept(self) -> Lines:
        """Return the headers that a copy keeps: all but what would mean something to the server.

        The id is among them, by our own name, also where it is empty.
        """
        found = [
            (name, value)
            for name, value in self.lines
            if not name.lower().startswith(_SERVERS) and name not in ADDED and name != ID
        ]
        return [*found, (ID, quoted(self.message.id))]

    def _id(self) -> str:
        own = self.text(ID)
        return own if own is not None else readable(self._found.get(NATIVE_ID, b""))

    def _user_headers(self) -> Mapping[str, str]:
        found: dict[str, str] = {}
        for name, value in self.lines:
            if name in _OURS or name.lower().startswith(_SERVERS):
                continue
            theirs = headers.user_name(name)
            if theirs is None:
                found[readable(name)] = readable(value)
            else:
                found[theirs] = unquoted(value)
        return found or NO_HEADERS
