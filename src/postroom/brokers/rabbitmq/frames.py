"""AMQP 0-9-1 on the wire, where it must be fast or forgiving: contents, tables, frames.

Control methods are left to pamqp. What a batch is made of is packed here, because a batch has
hundreds; what others have sent is read here, because it may be anything.
"""

import json
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from struct import Struct
from struct import error as StructError  # noqa: N812 - it is a class

METHOD, HEADER, BODY, HEARTBEAT = 1, 2, 3, 8
END = b"\xce"
OVERHEAD = 8
"""Bytes of a frame besides its content."""

FRAME = Struct(">BHI")
METHOD_ID = Struct(">I")
LONG = Struct(">I")
LONGLONG = Struct(">Q")
SIGNED = Struct(">q")
_HEAD = Struct(">BHIHHQH")
_CONTENT = Struct(">HHQH")
_SHORT = [bytes((size,)) for size in range(256)]

PUBLISH, RETURN, DELIVER, GET_OK = 0x3C0028, 0x3C0032, 0x3C003C, 0x3C0047
ACK, REJECT, NACK = 0x3C0050, 0x3C005A, 0x3C0078

CONTENT_TYPE, HEADERS, DELIVERY_MODE = 1 << 15, 1 << 13, 1 << 12
MESSAGE_ID, TIMESTAMP, TYPE = 1 << 7, 1 << 6, 1 << 5
EXPIRATION, USER_ID = 1 << 8, 1 << 4
# Each property by its flag, in the order of the wire: s(hort text), t(able), o(ctet), m(oment).
_PROPERTIES = dict(
    zip((1 << bit for bit in range(15, 1, -1)), "sstoossssmssss", strict=True),
)

Table = dict[bytes, bytes]
"""Names, and values as they are on the wire, with their kind."""


class Malformed(ValueError):
    """Bytes that are not what AMQP says."""


def short(text: str) -> bytes:
    """Return a short text; raises ValueError where it has more than 255 bytes."""
    data = text.encode()
    if len(data) > 255:  # noqa: PLR2004 - one byte holds the length
        raise ValueError(f"has {len(data)} bytes, 255 are possible")
    return _SHORT[len(data)] + data


def text_value(text: str) -> bytes:
    """Return a text as a value of a table."""
    data = text.encode()
    return b"S" + LONG.pack(len(data)) + data


def number_value(number: int) -> bytes:
    """Return a whole number of up to 64 bits as a value of a table."""
    return b"l" + SIGNED.pack(number)


def frame(kind: int, channel: int, content: bytes) -> bytes:
    """Return a frame."""
    return FRAME.pack(kind, channel, len(content)) + content + END


def publish_method(channel: int, exchange: str, routing_key: str, *, mandatory: bool) -> bytes:
    """Return the frame of `basic.publish`."""
    names = short(exchange) + short(routing_key)
    content = METHOD_ID.pack(PUBLISH) + b"\0\0" + names + (b"\x01" if mandatory else b"\0")
    return frame(METHOD, channel, content)


def tagged_method(method: int, channel: int, tag: int, flags: bytes) -> bytes:
    """Return the frame of `basic.ack`, `basic.reject` or `basic.nack`."""
    return frame(METHOD, channel, METHOD_ID.pack(method) + LONGLONG.pack(tag) + flags)


def content_frames(channel: int, properties: bytes, flags: int, body: bytes, most: int) -> bytes:
    """Return the frames of a content, none of them larger than `most`."""
    return message_frames(b"", channel, (properties,), flags, body, most)


def message_frames(
    method: bytes, channel: int, properties: Iterable[bytes], flags: int, body: bytes, most: int
) -> bytes:
    """Return the frame of a method, and those of its content; the properties are in pieces.

    Raises ValueError where the properties do not fit into one frame of `most` bytes.
    """
    size, length = len(body), 14 + sum(map(len, properties))
    if length + OVERHEAD > most:
        raise ValueError("the properties do not fit")
    head = _HEAD.pack(HEADER, channel, length, 60, 0, size, flags)
    room = most - OVERHEAD
    if 0 < size <= room:
        # One join, because a batch has hundreds: every step here counts.
        return b"".join(
            (method, head, *properties, END, FRAME.pack(BODY, channel, size), body, END)
        )
    pieces = [body[start : start + room] for start in range(0, size, room)]
    bodies = [frame(BODY, channel, piece) for piece in pieces]
    return b"".join((method, head, *properties, END, *bodies))


@dataclass(frozen=True, slots=True, kw_only=True)
class Properties:
    """The properties of a content, each as it is on the wire."""

    fields: Mapping[int, bytes]
    """By their flags; the headers are apart."""
    headers: Table

    def text(self, flag: int) -> str | None:
        """Return a short text, None where there is none."""
        data = self.fields.get(flag)
        return None if data is None else readable(data[1:])

    def header(self, name: bytes) -> str | None:
        """Return a header as text, None where there is none."""
        value = self.headers.get(name)
        return None if value is None else as_text(value)

    def number(self, name: bytes) -> int | None:
        """Return a header as a number, None where there is none or it is something else."""
        value = self.headers.get(name)
        if value is None:
            return None
        found = decoded(value)
        return found if isinstance(found, int) and not isinstance(found, bool) else None

    def packed(self, *, without: int = 0, extra: Table | None = None) -> tuple[int, bytes]:
        """Return flags and bytes, without some fields and with more headers."""
        fields = {flag: data for flag, data in self.fields.items() if not flag & without}
        table = {**self.headers, **(extra or {})}
        if table:
            fields[HEADERS] = pack_table(table)
        ordered = [flag for flag in _PROPERTIES if flag in fields]
        return sum(ordered), b"".join(fields[flag] for flag in ordered)


def read_header(content: bytes) -> tuple[int, Properties]:
    """Return the size of the body and the properties. Raises Malformed."""
    try:
        _, _, size, flags = _CONTENT.unpack_from(content)
        if flags & 1:
            raise Malformed("more properties than AMQP 0-9-1 has")
        at, fields, headers = _CONTENT.size, {}, Table()
        for flag, kind in _PROPERTIES.items():
            if not flags & flag:
                continue
            end = _property_end(content, at, kind)
            if end > len(content):
                raise Malformed("a property ends too early")
            if flag == HEADERS:
                headers = read_table(content[at + 4 : end])
            else:
                fields[flag] = content[at:end]
            at = end
    except (StructError, IndexError) as error:
        raise Malformed(f"properties that end too early: {error}") from error
    return size, Properties(fields=fields, headers=headers)


def _property_end(content: bytes, at: int, kind: str) -> int:
    match kind:
        case "s":
            return at + 1 + content[at]
        case "t":
            return at + 4 + int(LONG.unpack_from(content, at)[0])
        case "o":
            return at + 1
        case _:
            return at + 8


def pack_table(table: Table) -> bytes:
    """Return a table."""
    entries = b"".join(_SHORT[len(name)] + name + value for name, value in table.items())
    return LONG.pack(len(entries)) + entries


def read_table(data: bytes) -> Table:
    """Return the entries of a table, without its length. Raises Malformed."""
    found, at = Table(), 0
    try:
        while at < len(data):
            start = at + 1 + data[at]
            end = _value_end(data, start)
            if end > len(data):
                raise Malformed("a table that ends too early")
            found[data[at + 1 : start]] = data[start:end]
            at = end
    except (StructError, IndexError) as error:
        raise Malformed(f"a table that ends too early: {error}") from error
    return found


_NUMBERS = {
    ord(kind): Struct(f">{code}")
    for kind, code in {
        "b": "b",
        "B": "B",
        "s": "h",
        "u": "H",
        "I": "i",
        "i": "I",
        "l": "q",
        "f": "f",
        "d": "d",
        "T": "Q",
        "t": "?",
    }.items()
}
_SIZED = frozenset(b"SxFA")


def _value_end(data: bytes, at: int) -> int:
    kind = data[at]
    if kind in _SIZED:
        return at + 5 + int(LONG.unpack_from(data, at + 1)[0])
    if kind in _NUMBERS:
        return at + 1 + _NUMBERS[kind].size
    if kind == ord("D"):
        return at + 6
    if kind == ord("V"):
        return at + 1
    raise Malformed(f"a value of the unknown kind {chr(kind)!r}")


def decoded(value: bytes) -> object:
    """Return a value of a table as Python has it. Raises Malformed."""
    kind = value[0]
    if kind in _NUMBERS:
        number = _NUMBERS[kind].unpack_from(value, 1)[0]
        return _moment(number) if kind == ord("T") else number
    match chr(kind):
        case "S" | "x":
            return readable(value[5:])
        case "F":
            table = read_table(value[5:])
            return {readable(name): decoded(item) for name, item in table.items()}
        case "A":
            return [decoded(item) for item in _items(value[5:])]
        case "D":
            scale, unscaled = value[1], int.from_bytes(value[2:6], signed=True)
            return unscaled / 10**scale
        case _:
            return None


def as_text(value: bytes) -> str:
    """Return a value of a table as text: text as it is, everything else as JSON."""
    if value[:1] in {b"S", b"x"}:
        return readable(value[5:])
    found = decoded(value)
    return found if isinstance(found, str) else json.dumps(_plain(found), ensure_ascii=False)


def readable(data: bytes) -> str:
    """Return the text of these bytes; what is not UTF-8 becomes backslash escapes."""
    return data.decode("utf-8", "backslashreplace")


def _items(data: bytes) -> Iterator[bytes]:
    at = 0
    while at < len(data):
        end = _value_end(data, at)
        yield data[at:end]
        at = end


def _moment(seconds: int) -> str:
    try:
        moment = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(seconds=seconds)
    except OverflowError:
        return str(seconds)
    return moment.isoformat().replace("+00:00", "Z")


def _plain(value: object) -> object:
    """Return the value without the numbers that JSON has no word for."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, dict):
        return {name: _plain(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_plain(item) for item in value]
    return value
