"""One consumer of a group, as Redis knows it: what it may do with the group's entries."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime

from redis.exceptions import ResponseError

from postroom.brokers.redis import mapping, scripts
from postroom.brokers.redis.link import Link
from postroom.brokers.redis.mapping import Fields
from postroom.brokers.redis.names import Names
from postroom.brokers.redis.scripts import Script
from postroom.brokers.redis.wire import GONE, Reply, command, says, told
from postroom.errors import BrokerUnavailable

_APPLY = "`postroom topology --apply` makes what is missing"
_UNPACKED = 7000
"""Parts of a command that a script can make."""


class GroupGone(Exception):
    """The stream or the group does not exist any more."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry of a stream, in our hands."""

    topic: str
    id: bytes
    fields: Fields
    attempt: int = 1
    again: bool = False
    """Whether it was handed out before."""
    place: tuple[int, int] = field(init=False, default=(0, 0))
    """Its place in the order of all streams of a server."""

    def __post_init__(self) -> None:
        """Read the id: a time in milliseconds, and a number."""
        at, _, number = self.id.partition(b"-")
        object.__setattr__(self, "place", (int(at), int(number or 0)))


@dataclass(frozen=True, slots=True)
class Taken:
    """What was taken over, and when to look again."""

    entries: list[Entry]
    due_in: float | None
    """Seconds until the next delay ends."""


class Member:
    """Speaks for one consumer. Every call raises BrokerUnavailable or GroupGone."""

    def __init__(
        self, link: Link, names: Names, *, group: str, name: str, lease: float, delete: bool
    ) -> None:
        """Be the consumer of that name; after `lease` seconds of silence others take over."""
        self.group = group
        self.name = name
        self._link = link
        self._names = names
        self._lease = int(lease * 1000)
        self._delete = "1" if delete else "0"

    async def check(self, topic: str) -> None:
        """Raise GroupGone where stream or group are missing."""
        [reply] = await self._link.run(command("XPENDING", self._names.stream(topic), self.group))
        self._checked(reply)

    async def create(self, topic: str) -> None:
        """Make the group, and the stream, where they are missing; it begins with the oldest."""
        made = command(
            *("XGROUP", "CREATE", self._names.stream(topic), self.group, "0", "MKSTREAM")
        )
        [reply] = await self._link.run(made)
        if not says(reply, ("BUSYGROUP",)):
            self._checked(reply)

    async def register(self, topic: str) -> None:
        """Let people find the topic."""
        await self._link.run(command("SADD", self._names.topics, topic))

    async def lead(self, *, end: bool = False) -> bool:
        """Become or stay the one consumer of the group that receives; say whether we are."""
        key = self._names.active(self.group)
        reply = await self._link.script(scripts.LEAD, [key], self.name, 0 if end else self._lease)
        return bool(self._checked(reply))

    async def take(
        self, topic: str, limit: int, *, takeover: bool, everything: bool = False
    ) -> Taken:
        """Take what is due, was given back, or is held by consumers that are dead.

        With `everything` every other consumer is taken for dead.
        """
        keys = [
            self._names.stream(topic),
            self._names.delayed(self.group, topic),
            self._names.dead(self.group),
        ]
        found, due = await self._script(
            scripts.TAKE,
            keys,
            0 if everything else self._lease,
            limit,
            topic,
            "1" if takeover else "0",
        )
        entries = [
            Entry(topic, place, fields, max(int(attempt), 1), again=True)
            for place, attempt, fields in found
        ]
        return Taken(entries, None if due < 0 else due / 1000)

    async def hold(self, topic: str, entries: Sequence[bytes]) -> set[bytes]:
        """Show that we live; return what is not ours any more."""
        stream = self._names.stream(topic)
        return set(await self._script(scripts.HOLD, [stream], *entries))

    async def ack(self, topic: str, entries: Sequence[bytes]) -> list[bool]:
        """Let go of what is done; say of each whether it was ours."""
        stream = self._names.stream(topic)
        answers = await self._script(scripts.ACK, [stream], self._delete, *entries)
        return [answer == 1 for answer in answers]

    async def delay(self, entry: Entry, attempt: int, milliseconds: int) -> bool:
        """Let it wait; say whether it was ours. Raises Trimmed."""
        keys = [
            self._names.stream(entry.topic),
            self._names.delayed(self.group, entry.topic),
        ]
        answer = await self._script(scripts.DELAY, keys, entry.id, attempt, milliseconds)
        if answer < 0:
            raise Trimmed
        return bool(answer)

    async def bury(self, entry: Entry, reason: str, attempts: int) -> bool:
        """Move it to the dead letters of the group; say whether it was ours."""
        stream, dead = self._names.stream(entry.topic), self._names.dead(self.group)
        fields = mapping.dead_fields(
            entry.fields,
            topic=entry.topic,
            entry=entry.id,
            reason=reason,
            attempts=attempts,
            at=datetime.now(UTC),
        )
        if len(fields) > _UNPACKED:
            await self._link.call("XADD", dead, "*", *fields)
            return (await self.ack(entry.topic, [entry.id]))[0]
        return bool(
            await self._script(scripts.BURY, [stream, dead], self._delete, entry.id, *fields)
        )

    async def give_back(self, topic: str) -> None:
        """Give everything back, and forget our name."""
        await self._script(scripts.GIVE_BACK, [self._names.stream(topic)])

    async def tidy(self, topic: str, silent: float) -> None:
        """Forget the names of consumers that hold nothing and were silent for so long."""
        stream = self._names.stream(topic)
        reply = await self._link.script(scripts.TIDY, [stream], self.group, int(silent * 1000))
        self._checked(reply)

    def read(self, topics: Sequence[str], count: int, block: int) -> bytes:
        """Return the command that waits for new entries."""
        streams = [self._names.stream(topic) for topic in topics]
        return command(
            *("XREADGROUP", "GROUP", self.group, self.name, "COUNT", count, "BLOCK", block),
            "STREAMS",
            *streams,
            *(b">" for _ in streams),
        )

    def arrived(self, topics: Sequence[str], reply: Reply) -> list[Entry]:
        """Return what the answer to `read` brings, in order."""
        by_stream = {self._names.stream(topic): topic for topic in topics}
        found = [
            Entry(by_stream[stream], place, fields or ())
            for stream, entries in self._checked(reply) or ()
            for place, fields in entries
        ]
        found.sort(key=lambda entry: entry.place)
        return found

    def gone(self, topic: str) -> BrokerUnavailable:
        """Return what is said where nothing may be made."""
        stream = self._names.stream(topic).decode()
        return BrokerUnavailable(f"the stream {stream!r} has no group {self.group!r}; {_APPLY}")

    async def _script(
        self, script: Script, keys: list[bytes], *arguments: str | bytes | int
    ) -> Reply:
        reply = await self._link.script(script, keys, self.group, self.name, *arguments)
        return self._checked(reply)

    def _checked(self, reply: Reply) -> Reply:
        if says(reply, GONE):
            raise GroupGone
        if isinstance(reply, ResponseError):
            raise BrokerUnavailable(f"{self._link.place}: {told(reply)}") from reply
        return reply


class Trimmed(Exception):
    """The stream has the entry no more; only we do."""
