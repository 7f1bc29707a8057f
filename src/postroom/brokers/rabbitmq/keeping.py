"""What people see of the queues, and what they do with dead letters, by AMQP alone.

AMQP can count a queue and take messages out of it. Whoever looks at dead letters takes them in
hand and gives them back, so two people who look at the same time see each a part.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from zlib import crc32

from pamqp import commands

from postroom._clock import nearest_moment
from postroom.broker import ALL_TOPICS, DeadLetter, QueueStatus
from postroom.brokers.rabbitmq import frames, mapping
from postroom.brokers.rabbitmq.channel import Arrived, Channel, ChannelLost, GetOk
from postroom.brokers.rabbitmq.connection import Connection
from postroom.brokers.rabbitmq.frames import Properties
from postroom.brokers.rabbitmq.link import MISSING, passive
from postroom.brokers.rabbitmq.mapping import Copy
from postroom.brokers.rabbitmq.topology import Names
from postroom.errors import BrokerUnavailable
from postroom.message import Message

_AT_ONCE = 100
"""Messages that are asked for before the first answer is there."""

_MULTIPLE_REQUEUE = b"\3"
_LOOKS, _PAUSE = 40, 0.025
"""How long to wait for what was given back."""

_REASONS = {
    "rejected": "rejected by the broker or another program, without a reason",
    "expired": "expired in the broker",
    "maxlen": "its queue was full",
    "delivery_limit": "delivered more often than its queue allows",
}


class Held:
    """A message that was taken out of a queue and is not given back yet."""

    def __init__(self, content: Arrived) -> None:
        """Read it, as far as it can be read."""
        self.content = content
        self.properties = Properties(fields={}, headers={})
        self.unreadable: str | None = None
        try:
            _, self.properties = frames.read_header(content.header)
            self.message = mapping.message_of(self.properties, content.routing_key, content.body)
        except frames.Malformed as error:
            self.unreadable = f"it cannot be read: {error}"
            self.message = Message(
                id="",
                type="",
                topic="",
                payload=content.body,
                content_type="application/octet-stream",
            )

    @property
    def position(self) -> int:
        """Its number among the dead letters; of one without, the same at every look."""
        said = self.properties.number(mapping.POSITION)
        if said is not None:
            return said
        return crc32(self.content.header + self.content.body)

    def letter(self, group: str) -> DeadLetter:
        """Return it as people see it."""
        moved = mapping.first_death(self.properties, newest=True)
        said = moved.get("reason")
        reason = self.properties.header(mapping.REASON) or self.unreadable
        died = mapping.moment_of(self.properties, mapping.DIED_AT)
        at = moved.get("time")
        if died is None and isinstance(at, str):
            died = datetime.fromisoformat(at)
        return DeadLetter(
            group=group,
            position=self.position,
            message=self.message,
            reason=reason or _REASONS.get(str(said), str(said or "unknown")),
            attempts=self.properties.number(mapping.ATTEMPTS) or 0,
            died_at=died or nearest_moment(0).astimezone(UTC),
        )


class Sieve:
    """Goes through a queue, oldest first; what is not taken away is given back at the end."""

    def __init__(self, channel: Channel, queue: str) -> None:
        """Use that channel for that queue."""
        self._channel = channel
        self._queue = queue
        self._out = 0

    async def pass_by(self) -> AsyncIterator[Held]:
        """Yield what is ready, each message once."""
        count = await self.count()
        while count > 0:
            asked = [
                self._channel.begin(commands.Basic.Get(queue=self._queue))
                for _ in range(min(count, _AT_ONCE))
            ]
            self._out += len(asked)
            for number, call in enumerate(asked):
                answer = await call
                if not isinstance(answer, GetOk):  # somebody else has taken the rest
                    self._out -= len(asked) - number
                    return
                yield Held(answer.content)
            count -= len(asked)

    def take_away(self, held: Held) -> None:
        """Delete it from the queue."""
        tag = held.content.tag
        self._channel.write(frames.tagged_method(frames.ACK, self._channel.number, tag, b"\0"))
        self._out -= 1

    async def give_back(self) -> None:
        """Put back what was not taken away, and wait a while until it is there again.

        A quorum queue does so in its own time, and who looks next must not miss it.
        """
        if not self._out:
            return
        everything = frames.tagged_method(frames.NACK, self._channel.number, 0, _MULTIPLE_REQUEUE)
        self._channel.write(everything)
        for _ in range(_LOOKS):
            if await self.count() >= self._out:
                return
            await asyncio.sleep(_PAUSE)

    async def count(self) -> int:
        """Return how many are ready; 0 where there is no queue."""
        try:
            declared = await self._channel.call(
                commands.Queue.Declare(queue=self._queue, passive=True), commands.Queue.DeclareOk
            )
        except ChannelLost as lost:
            if lost.closed.code == MISSING:
                return 0
            raise
        return declared.message_count or 0


Wanted = Callable[[Held], bool]
_ALL = 2**31


class Keeping:
    """The queues of the groups, and their dead letters."""

    def __init__(
        self,
        names: Names,
        *,
        connect: Callable[[], Awaitable[Connection]],
        copy: Callable[[str, str, Copy], Awaitable[None]],
    ) -> None:
        """Look through that connection, and put back by `copy` (exchange, routing key, what)."""
        self._names = names
        self._connect = connect
        self._copy = copy

    async def status(self, group: str, *, out: int) -> QueueStatus | None:
        """Count the queues of a group; None where it has none."""
        connection = await self._connect()
        queue = await passive(connection, self._names.queue(group))
        if queue is None:
            return None
        dead = await passive(connection, self._names.dead(group))
        return QueueStatus(
            group=group,
            topic=ALL_TOPICS,
            ready=queue.message_count or 0,
            out=out,
            delayed=None,
            dead=(dead.message_count or 0) if dead is not None else 0,
            oldest_at=None,
            consumers=queue.consumer_count,
        )

    async def letters(self, group: str, limit: int) -> list[DeadLetter]:
        """Return the dead letters of a group, the oldest first."""
        found: list[DeadLetter] = []
        async with self._sieve(self._names.dead(group)) as look:
            async for held in look.pass_by():
                found.append(held.letter(group))
                if len(found) >= limit:
                    break
        return found

    async def replay(self, group: str, wanted: Wanted, limit: int) -> int:
        """Put dead letters at the end of their group's queue."""
        done = 0
        async with self._sieve(self._names.dead(group)) as look:
            async for held in look.pass_by():
                if done >= limit:
                    break
                if wanted(held) and held.unreadable is None:
                    headers = mapping.extras(topic=held.message.topic)
                    copy = mapping.copy_of(held.properties, held.content.body, headers)
                    await self._copy("", self._names.queue(group), copy)
                    look.take_away(held)
                    done += 1
        return done

    async def discard(self, queue: str, wanted: Wanted, limit: int = _ALL) -> int:
        """Delete messages of a queue."""
        done = 0
        async with self._sieve(queue) as look:
            async for held in look.pass_by():
                if done >= limit:
                    break
                if wanted(held):
                    look.take_away(held)
                    done += 1
        return done

    async def drop(self, group: str, topics: Sequence[str] | None) -> int:
        """Delete the queues of a group, or the bindings and dead letters of these topics."""
        queue, dead = self._names.queue(group), self._names.dead(group)
        channel = await (await self._connect()).channel()
        try:
            if topics is not None:
                for topic in topics:
                    await channel.begin(
                        commands.Queue.Unbind(
                            queue=queue, exchange=self._names.exchange, routing_key=topic
                        )
                    )
                return await self.discard(dead, chosen(None, topics))
            calls = [channel.begin(commands.Queue.Delete(queue=each)) for each in (queue, dead)]
            answers = [await call for call in calls]
            return sum(
                answer.message_count or 0
                for answer in answers
                if isinstance(answer, commands.Queue.DeleteOk)
            )
        finally:
            await channel.close()

    @asynccontextmanager
    async def _sieve(self, queue: str) -> AsyncIterator[Sieve]:
        channel = await (await self._connect()).channel()
        sieve = Sieve(channel, queue)
        try:
            yield sieve
            await sieve.give_back()
        except ChannelLost as lost:
            raise BrokerUnavailable(lost.closed.reason) from lost
        finally:
            await channel.close()


def chosen(positions: Sequence[int] | None, topics: Sequence[str] | None = None) -> Wanted:
    """Return which of them are meant."""
    numbers = None if positions is None else frozenset(positions)
    names = None if topics is None else frozenset(topics)
    return lambda held: (
        (numbers is None or held.position in numbers)
        and (names is None or held.message.topic in names)
    )
