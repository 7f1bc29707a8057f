"""What people see of the groups, and what they do with dead letters."""

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any, NamedTuple

from postroom.broker import ALL_TOPICS, DeadLetter, QueueStatus
from postroom.brokers.nats import mapping
from postroom.brokers.nats.api import Api, Stored
from postroom.brokers.nats.books import joined
from postroom.brokers.nats.headers import Lines, quoted
from postroom.brokers.nats.mapping import Read, around, to_subject
from postroom.brokers.nats.topology import Names, filters
from postroom.errors import BrokerUnavailable

_ALL = 2**31


class Letter(NamedTuple):
    """A dead letter as it lies in its stream."""

    stored: Stored
    read: Read

    def told(self) -> DeadLetter:
        """Return it as people see it."""
        reason = self.read.text(mapping.REASON) or "unknown"
        if (left_out := self.read.number(mapping.LEFT_OUT)) is not None:
            at = self.read.number(mapping.SEQUENCE)
            reason += f" (its payload of {left_out} bytes lies in the stream at {at})"
        return DeadLetter(
            group=self.read.text(mapping.GROUP) or "",
            position=self.stored.sequence,
            message=self.read.message,
            reason=reason,
            attempts=self.read.number(mapping.ATTEMPTS) or 0,
            died_at=self.read.moment(mapping.DIED_AT) or self.stored.at,
        )


Wanted = Callable[[Letter], bool]


class Keeping:
    """The groups of one stream, and their dead letters."""

    def __init__(self, names: Names, reach: Callable[[], Awaitable[Api]]) -> None:
        """Look by that; it raises BrokerUnavailable."""
        self._names = names
        self._reach = reach

    async def queues(self) -> list[QueueStatus]:
        """Return the state of every group of the stream, all topics of a group together."""
        api = await self._reach()
        dead = await self._dead(api)
        found = []
        for info in await api.consumers(self._names.stream):
            name = str(info["name"])
            group = self._names.group(name)
            if self._names.again(group) not in filters(info["config"]):
                continue  # somebody else's consumer
            status = QueueStatus(
                group=group,
                topic=ALL_TOPICS,
                ready=int(info["num_pending"]),
                out=int(info["num_ack_pending"]),
                delayed=None,
                dead=dead.get(self._names.letters(group), 0),
                oldest_at=None,
            )
            found.append(status)
        return found

    async def letters(self, group: str | None, limit: int) -> list[DeadLetter]:
        """Return dead letters, the oldest first."""
        found: list[DeadLetter] = []
        async for letter in self._each(await self._reach(), group):
            if len(found) >= limit:
                break
            found.append(letter.told())
        return found

    async def replay(self, group: str, wanted: Wanted, limit: int) -> int:
        """Put dead letters at the end of what their group has to do."""
        api = await self._reach()
        subject, done = self._names.again(group), 0
        async for letter in self._each(api, group):
            if done >= limit:
                break
            if wanted(letter):
                await self._put_back(api, letter, subject)
                await api.delete_message(self._names.dead, letter.stored.sequence)
                done += 1
        return done

    async def discard(self, group: str, wanted: Wanted, limit: int = _ALL) -> int:
        """Delete dead letters."""
        api, done = await self._reach(), 0
        async for letter in self._each(api, group):
            if done >= limit:
                break
            if wanted(letter):
                done += await api.delete_message(self._names.dead, letter.stored.sequence)
        return done

    async def drop(self, group: str, topics: Sequence[str] | None) -> int:
        """End a group, or what it receives of these topics."""
        api = await self._reach()
        name = self._names.consumer(group)
        info = await api.consumer(self._names.stream, name)
        if topics is not None:
            if info is not None:
                await self._narrow(api, info["config"], frozenset(topics))
            return await self.discard(group, chosen(None, topics))
        waiting = 0 if info is None else int(info["num_pending"]) + int(info["num_ack_pending"])
        await api.delete_consumer(self._names.stream, name)
        await api.purge(self._names.tries, f"{self._names.tries}.{name}.>")
        return waiting + await api.purge(self._names.dead, self._names.letters(group))

    async def _narrow(self, api: Api, config: dict[str, Any], without: frozenset[str]) -> None:
        left = [each for each in filters(config) if each not in without]
        kept = {name: value for name, value in config.items() if name != "filter_subject"}
        await api.make_consumer(self._names.stream, {**kept, "filter_subjects": left})

    async def _put_back(self, api: Api, letter: Letter, subject: str) -> None:
        read, payload = letter.read, letter.stored.data
        if read.number(mapping.LEFT_OUT) is not None:
            raise BrokerUnavailable(
                f"dead letter {letter.stored.sequence} has no payload: {letter.told().reason}"
            )
        # Stored once, also where the answer is lost and somebody tries again.
        native = f"{self._names.dead}.{letter.stored.sequence}.{letter.stored.at.timestamp()}"
        extra: Lines = [
            (mapping.NATIVE_ID, native.encode()),
            (mapping.TOPIC, quoted(read.message.topic)),
        ]
        lines = joined([*read.kept(), *extra])
        limit = api.connection.max_payload
        packed = around(to_subject(subject), subject, lines, payload, limit=limit)
        await api.store(packed, self._names.stream)

    async def _each(self, api: Api, group: str | None) -> AsyncIterator[Letter]:
        subject, at = self._names.letters(group), 1
        while True:
            question = {"seq": at, "next_by_subj": subject}
            stored = await api.message(self._names.dead, question)
            if stored is None:
                return
            yield Letter(stored, Read(stored.subject, stored.headers, stored.data))
            at = stored.sequence + 1

    async def _dead(self, api: Api) -> dict[str, int]:
        info = await api.stream(self._names.dead, subjects=self._names.letters(None))
        if info is None:
            return {}
        return {
            str(name): int(count) for name, count in (info["state"].get("subjects") or {}).items()
        }


def chosen(positions: Sequence[int] | None, topics: Sequence[str] | None = None) -> Wanted:
    """Return which of them are meant."""
    numbers = None if positions is None else frozenset(positions)
    names = None if topics is None else frozenset(topics)
    return lambda letter: (
        (numbers is None or letter.stored.sequence in numbers)
        and (names is None or letter.read.message.topic in names)
    )
