"""What people see of the groups, and what they do with dead letters."""

from collections.abc import AsyncIterator, Collection, Sequence
from datetime import datetime
from typing import Any

from redis.exceptions import ResponseError

from postroom._clock import nearest_moment
from postroom.broker import ALL_TOPICS, DeadLetter, QueueStatus
from postroom.brokers.redis import mapping, scripts
from postroom.brokers.redis.link import Link
from postroom.brokers.redis.mapping import Fields
from postroom.brokers.redis.names import GIVEN_BACK, LATER, Names
from postroom.brokers.redis.wire import command

_PAGE = 200
_SEQUENCES = 2**20
"""A dead letter is known by its time in milliseconds and a number below this."""
_UNPACKED = 7000


class Keeping:
    """Looks and acts through one link. Every call raises BrokerUnavailable."""

    def __init__(self, link: Link, names: Names) -> None:
        """Look at what has these names."""
        self._link = link
        self._names = names

    async def topics(self) -> list[str]:
        """Return the topics that groups were made for."""
        found = await self._link.call("SMEMBERS", self._names.topics)
        return sorted(map(mapping.readable, found))

    async def groups(self) -> dict[str, list[str]]:
        """Return the groups that there are, with their topics."""
        found: dict[str, list[str]] = {}
        for topic in await self.topics():
            for one in await self._groups_of(topic):
                found.setdefault(mapping.readable(one[b"name"]), []).append(topic)
        return found

    async def status(self) -> list[QueueStatus]:
        """Count what each group still has to do of each topic, and its dead letters."""
        found = []
        groups: set[str] = set()
        for topic in await self.topics():
            for one in await self._groups_of(topic):
                group = mapping.readable(one[b"name"])
                groups.add(group)
                found.append(await self._status(topic, group, one))
        buried = {group: await self._link.call("XLEN", self._names.dead(group)) for group in groups}
        found += [_buried(group, dead) for group, dead in buried.items() if dead]
        return sorted(found, key=lambda status: (status.group, status.topic))

    async def letters(self, group: str, limit: int) -> list[DeadLetter]:
        """Return the dead letters of a group, the oldest first."""
        found: list[DeadLetter] = []
        async for entry, fields in self._buried(group):
            if len(found) >= limit:
                break
            found.append(_letter(group, entry, fields))
        return found

    async def replay(self, group: str, positions: Collection[int] | None, limit: int) -> int:
        """Put dead letters at the end of their topic's stream, for their group alone."""
        done = 0
        async for entry, fields in self._buried(group):
            if done >= limit:
                break
            topic = mapping.named(fields).get(mapping.TOPIC)
            if topic is None or not _wanted(entry, positions):
                continue
            again = mapping.replayed_fields(fields, group)
            stream, dead = self._names.stream(mapping.readable(topic)), self._names.dead(group)
            if mapping.PAYLOAD not in again[::2] and not again[2:]:
                continue  # it was trimmed: nothing of it is left but when and where
            done += await self._again(dead, stream, entry, again)
        return done

    async def discard(
        self,
        group: str,
        positions: Collection[int] | None,
        limit: int,
        topics: Collection[str] | None = None,
    ) -> int:
        """Delete dead letters for good."""
        done, dead = 0, self._names.dead(group)
        async for entry, fields in self._buried(group):
            if done >= limit:
                break
            topic = mapping.named(fields).get(mapping.TOPIC, b"")
            if _wanted(entry, positions) and (topics is None or mapping.readable(topic) in topics):
                done += await self._link.call("XDEL", dead, entry)
        return done

    async def drop(self, group: str, topics: Sequence[str] | None) -> int:
        """End a group, of all topics or of these; return how many messages that forgot."""
        done = 0
        for topic in (await self.groups()).get(group, []):
            if topics is not None and topic not in topics:
                continue
            for one in await self._groups_of(topic):
                if mapping.readable(one[b"name"]) == group:
                    done += int(one.get(b"lag") or 0) + int(one[b"pending"])
            await self._link.call("XGROUP", "DESTROY", self._names.stream(topic), group)
            await self._link.call("DEL", self._names.delayed(group, topic))
        limit = await self._link.call("XLEN", self._names.dead(group))
        return done + await self.discard(group, None, limit, topics)

    async def _again(self, dead: bytes, stream: bytes, entry: bytes, fields: list[bytes]) -> int:
        if len(fields) > _UNPACKED:
            await self._link.call("XADD", stream, "*", *fields)
            return int(await self._link.call("XDEL", dead, entry))
        answer = await self._link.script(scripts.REPLAY, [dead, stream], entry, *fields)
        return int(self._link.checked(answer))

    async def _groups_of(self, topic: str) -> list[dict[bytes, Any]]:
        [reply] = await self._link.run(command("XINFO", "GROUPS", self._names.stream(topic)))
        if isinstance(reply, ResponseError) and "no such key" in str(reply):
            return []
        return [mapping.named(one) for one in self._link.checked(reply)]

    async def _status(self, topic: str, group: str, one: dict[bytes, Any]) -> QueueStatus:
        stream, delayed = self._names.stream(topic), self._names.delayed(group, topic)
        last = one[b"last-delivered-id"]
        replies = await self._link.run(
            command("XINFO", "CONSUMERS", stream, group),
            command("ZCARD", delayed),
            command("XRANGE", stream, b"(" + last, "+", "COUNT", 1),
            command("XPENDING", stream, group),
            command("XLEN", stream),
        )
        consumers, waiting, unread, pending, length = map(self._link.checked, replies)
        holders = {row[b"name"]: row[b"pending"] for row in map(mapping.named, consumers)}
        given_back = int(holders.pop(GIVEN_BACK, 0))
        later = int(holders.pop(LATER, 0))
        unread_count = one.get(b"lag")
        if unread_count is None:  # Redis does not know after entries were deleted
            unread_count = length if unread else 0
        firsts = [entry[0] for entry in unread[:1]] + ([pending[1]] if pending[0] else [])
        return QueueStatus(
            group=group,
            topic=topic,
            ready=int(unread_count) + given_back + max(later - waiting, 0),
            out=sum(map(int, holders.values())),
            delayed=min(waiting, later),
            dead=0,
            oldest_at=min(map(_moment, firsts), default=None),
            consumers=len(holders),
        )

    async def _buried(self, group: str) -> AsyncIterator[tuple[bytes, Fields]]:
        dead, after = self._names.dead(group), b"-"
        while True:
            page = await self._link.call("XRANGE", dead, after, "+", "COUNT", _PAGE)
            for entry, fields in page:
                yield entry, fields
            if len(page) < _PAGE:
                return
            after = b"(" + page[-1][0]


def _wanted(entry: bytes, positions: Collection[int] | None) -> bool:
    return positions is None or _position(entry) in positions


def _position(entry: bytes) -> int:
    at, _, number = entry.partition(b"-")
    return int(at) * _SEQUENCES + int(number) % _SEQUENCES


def _moment(entry: bytes) -> datetime:
    return nearest_moment(int(entry.partition(b"-")[0]) * 1000)


def _buried(group: str, dead: int) -> QueueStatus:
    return QueueStatus(
        group=group, topic=ALL_TOPICS, ready=0, out=0, delayed=None, dead=dead, oldest_at=None
    )


def _letter(group: str, entry: bytes, fields: Fields) -> DeadLetter:
    found = mapping.named(fields)
    topic = mapping.readable(found.get(mapping.TOPIC, b""))
    return DeadLetter(
        group=group,
        position=_position(entry),
        message=mapping.message_of(topic, fields),
        reason=mapping.readable(found.get(mapping.REASON, b"unknown")),
        attempts=mapping.number(found.get(mapping.ATTEMPTS)) or 0,
        died_at=mapping.moment(found.get(mapping.DIED_AT)) or _moment(entry),
    )
