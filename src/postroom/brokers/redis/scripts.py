"""The scripts that run within Redis, each as a whole: what they check stays true until they act."""

from collections.abc import Sequence
from functools import cached_property
from hashlib import sha1
from importlib.resources import files

from postroom.brokers.redis.wire import command


class Script:
    """A file of the folder `scripts`, behind what all of them share."""

    def __init__(self, name: str) -> None:
        """Take the one of that name."""
        self._name = name

    @cached_property
    def text(self) -> bytes:
        """What Redis is given."""
        folder = files(__package__).joinpath("scripts")
        parts = (folder.joinpath(f"{name}.lua") for name in ("shared", self._name))
        return b"\n".join(part.read_bytes() for part in parts)

    def by_name(self, keys: Sequence[bytes], arguments: Sequence[str | bytes | int]) -> bytes:
        """Return the command that runs it, where Redis knows it."""
        digest = sha1(self.text, usedforsecurity=False).hexdigest()
        return command("EVALSHA", digest, len(keys), *keys, *arguments)

    def in_full(self, keys: Sequence[bytes], arguments: Sequence[str | bytes | int]) -> bytes:
        """Return the command that runs it, and makes it known."""
        return command("EVAL", self.text, len(keys), *keys, *arguments)


ACK = Script("ack")
BURY = Script("bury")
DELAY = Script("delay")
GIVE_BACK = Script("give_back")
HOLD = Script("hold")
LEAD = Script("lead")
REPLAY = Script("replay")
TAKE = Script("take")
TIDY = Script("tidy")
