"""The headers of a message as bytes: any text survives them, and any bytes can be read.

NATS itself only asks for lines of `Name: value`. Clients of other languages trim blanks and know
no names beyond ASCII, so what is not plain is written with %XX, and says so.
"""

import re
from functools import lru_cache
from urllib.parse import quote, unquote_to_bytes

from postroom.errors import RefusedForGood

VERSION_LINE = b"NATS/1.0\r\n"
LARGEST = 65_535
"""Bytes of all headers of a message; JetStream takes no more."""

_TOKEN_SIGNS = "!#$&'*+-.^_`|~"  # noqa: S105 - the signs of a name, as RFC 9110 calls it
_PLAIN_NAME = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
_PLAIN_VALUE = re.compile(r"(?:[^\x00-\x20\x7f](?:[^\x00-\x1f\x7f]*[^\x00-\x20\x7f])?)?")
_AWKWARD = re.compile(rb"[\x00-\x1f\x7f%]|^ +| +$")

OWN = "postroom-header-"
"""Before a header whose name or value could not travel as it is: both are written with %XX."""
_SPECIAL = (OWN, "nats-")
_STATUS = frozenset({"status", "description"})
"""Names that clients give to what a server says."""


def quoted(text: str) -> bytes:
    """Return a text for a header of ours: UTF-8, with %XX for what is awkward in a line."""
    data = text.encode()
    return _AWKWARD.sub(_escaped, data) if _AWKWARD.search(data) else data


def unquoted(data: bytes) -> str:
    """Return the text that `quoted` wrote; bytes that are no UTF-8 become backslash escapes."""
    return readable(unquote_to_bytes(data) if b"%" in data else data)


def readable(data: bytes) -> str:
    """Return bytes as text, whatever they are."""
    return data.decode("utf-8", "backslashreplace")


def line(name: bytes, value: bytes) -> bytes:
    """Return one header."""
    return b"%b: %b\r\n" % (name, value)


def user_line(name: str, value: str, reserved: frozenset[str]) -> bytes:
    """Return a header of the caller's, under its own name if both name and value are plain."""
    start = _plain(name, reserved)
    if start is not None and _PLAIN_VALUE.fullmatch(value):
        return b"%b: %b\r\n" % (start, value.encode())
    return line(OWN.encode() + quote(name, safe=_TOKEN_SIGNS).encode(), quoted(value))


@lru_cache(maxsize=4096)
def _plain(name: str, reserved: frozenset[str]) -> bytes | None:
    lower = name.lower()
    if lower in reserved or lower in _STATUS or lower.startswith(_SPECIAL):
        return None
    return name.encode() if _PLAIN_NAME.fullmatch(name) else None


def user_name(name: bytes) -> str | None:
    """Return the caller's name of an escaped header; None for any other."""
    start = OWN.encode()
    return unquoted(name.removeprefix(start)) if name.startswith(start) else None


Lines = list[tuple[bytes, bytes]]


def parsed(raw: bytes) -> Lines:
    """Return names and values in their order; what is no line of `Name: value` is left out."""
    found: Lines = []
    for each in raw.split(b"\r\n")[1:]:
        name, colon, value = each.partition(b":")
        if colon:
            found.append((name.strip(b" \t"), value.strip(b" \t")))
    return found


def block(lines: bytes) -> bytes:
    """Return lines as the headers of a message. Raises RefusedForGood where they are too many."""
    whole = VERSION_LINE + lines + b"\r\n"
    if len(whole) > LARGEST:
        raise RefusedForGood(f"its headers have {len(whole)} bytes, JetStream takes {LARGEST}")
    return whole


def _escaped(match: re.Match[bytes]) -> bytes:
    return b"".join(b"%%%02X" % byte for byte in match[0])
