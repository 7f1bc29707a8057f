"""Lanes: the shares in which relays divide a route between them."""

from dataclasses import dataclass
from zlib import crc32

LANES = 64
"""Lanes of every route. A constant: writers in any language must agree with every relay."""


@dataclass(frozen=True, slots=True, order=True)
class Lane:
    """One lane as its owner knows it; `epoch` rises at every change of owner."""

    route: str
    number: int
    epoch: int


def lane_of(key: str | None, message_id: str) -> int:
    """Return the lane of a key: CRC-32 of its UTF-8 bytes modulo 64; keyless go by their id.

    The id counts in its canonical text form (lower case, with hyphens).
    """
    return crc32((message_id if key is None else key).encode()) % LANES
