"""Commands as bytes, and what a server's errors mean."""

from collections.abc import Iterable
from typing import Any

from redis.exceptions import (
    AuthenticationError,
    BusyLoadingError,
    ExecAbortError,
    MasterDownError,
    MovedError,
    NoPermissionError,
    OutOfMemoryError,
    ReadOnlyError,
    RedisError,
    ResponseError,
)

Reply = Any
"""What a server answered: bytes, a number, a list, None, or an error as a value."""

QUEUED = b"QUEUED"
MULTI, EXEC, DISCARD = b"*1\r\n$5\r\nMULTI\r\n", b"*1\r\n$4\r\nEXEC\r\n", b"*1\r\n$7\r\nDISCARD\r\n"

_CURES = {
    OutOfMemoryError: "OOM: it is short of memory (maxmemory), and takes no messages",
    ReadOnlyError: "READONLY: it is a replica, which takes no messages",
    BusyLoadingError: "LOADING: it reads its data from disk, and takes no messages yet",
    MasterDownError: "MASTERDOWN: it is a replica that has lost its primary",
    MovedError: "MOVED: it is a node of a Redis Cluster, which this driver cannot use",
    AuthenticationError: "it does not believe who we are",
    NoPermissionError: "NOPERM: we have no right to do this",
}
_EVERY_MESSAGE = (
    *("MISCONF", "NOREPLICAS", "BUSY", "CLUSTERDOWN", "CROSSSLOT", "ASK", "TRYAGAIN"),
    *("UNKILLABLE", "NOAUTH", "WRONGPASS", "unknown command"),
)
_KEY_RIGHTS = ("one of the keys", "access a key")
GONE = ("NOGROUP", "UNBLOCKED")
"""How errors begin that say that a stream or a group is not there any more."""


def bulk(data: bytes) -> bytes:
    """Return one part of a command."""
    return b"$%d\r\n%b\r\n" % (len(data), data)


def command(*parts: str | bytes | int) -> bytes:
    """Return a command as it goes on the wire."""
    return b"*%d\r\n%b" % (len(parts), b"".join(map(_part, parts)))


def _part(part: str | bytes | int) -> bytes:
    match part:
        case bytes():
            return bulk(part)
        case str():
            return bulk(part.encode("utf-8", "surrogateescape"))
        case _:
            return bulk(b"%d" % part)


def told(error: RedisError) -> str:
    """Return what an error says, with what it means where that is not plain."""
    said = str(error)
    for kind, cure in _CURES.items():
        if isinstance(error, kind):
            return f"{cure} ({said})" if said else cure
    return said or type(error).__name__


def says(error: object, beginnings: Iterable[str]) -> bool:
    """Say whether it is an error that begins like that."""
    return isinstance(error, ResponseError) and str(error).startswith(tuple(beginnings))


def is_about_message(error: ResponseError) -> bool:
    """Say whether the server said no to this one command, or to everything just now."""
    if isinstance(error, NoPermissionError):
        return any(words in str(error) for words in _KEY_RIGHTS)
    if isinstance(error, (ExecAbortError, *_CURES)):
        return False
    return not says(error, _EVERY_MESSAGE)
