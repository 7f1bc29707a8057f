"""The Redis driver: both sides of the contract, and the groups for people."""

import asyncio
import os
import socket
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from datetime import timedelta
from itertools import count
from secrets import token_hex
from typing import Literal

from postroom._clock import LONGEST_PATIENCE, check_span
from postroom.broker import BrokerFeatures, DeadLetter, Delivery, QueueStatus, TopologyPart
from postroom.brokers.redis import topology
from postroom.brokers.redis.address import parse
from postroom.brokers.redis.keeping import Keeping
from postroom.brokers.redis.link import Link, Options
from postroom.brokers.redis.member import GroupGone, Member
from postroom.brokers.redis.names import Names
from postroom.brokers.redis.sending import Publishing, Sending
from postroom.brokers.redis.subscription import Subscription
from postroom.brokers.tls import Tls
from postroom.errors import BrokerError, BrokerUnavailable
from postroom.message import Message

_ANSWER_EARLY = 0.98
"""The part of a time-out after which a call answers: the caller's own clock runs too."""


class RedisBroker:
    """Topics are streams, groups are consumer groups of them; for Redis 7 and Valkey.

    Nothing is made unless asked: `postroom topology --apply`, `apply_topology`, or the option
    `declare`. Publishing, telling and each subscription have a connection of their own.

    Example:
        broker = RedisBroker("redis://user:password@host/0")
    """

    name = "redis"

    def __init__(  # noqa: PLR0913 - the options of an address
        self,
        url: str = "redis://localhost:6379/0",
        *,
        prefix: str = "postroom",
        declare: bool = False,
        missing_stream: Literal["refuse", "create"] = "refuse",
        max_message_bytes: int = 16_777_216,
        max_in_flight: int = 1000,
        maxlen: int | None = None,
        replicas: int = 0,
        fsync: bool = False,
        delete_acked: bool = False,
        single_active_consumer: bool = False,
        lease: timedelta = timedelta(seconds=30),
        connect_timeout: timedelta = timedelta(seconds=5),
        cacertfile: str | None = None,
        certfile: str | None = None,
        keyfile: str | None = None,
        verify: bool = True,
    ) -> None:
        """Use the server at that address; nothing connects before it is needed.

        A message is sent when `replicas` replicas have it, and with `fsync` when it is on disk.
        `maxlen` trims streams to about so many entries, whether they were read or not.
        `delete_acked` deletes an entry when it is done, where its stream has one group only.
        With `single_active_consumer` one consumer of a group receives at a time, and keys keep
        their order. A consumer that was silent for the `lease` is dead.
        Raises ValueError for what could not work.
        """
        address = parse(url)
        check_span("lease", lease, least=timedelta(seconds=1), most=timedelta(days=1))
        check_span(
            "connect_timeout", connect_timeout, least=timedelta(seconds=0.1), most=LONGEST_PATIENCE
        )
        if missing_stream not in {"refuse", "create"}:
            raise ValueError(f"missing_stream must be refuse or create, not {missing_stream!r}")
        if not prefix:
            raise ValueError("prefix must not be empty: keys of other programs are there too")
        tls = Tls(cacertfile=cacertfile, certfile=certfile, keyfile=keyfile, verify=verify)
        if not address.secure and tls != Tls():
            raise ValueError("certificates need a rediss:// address")
        tls.check_files()
        self.place = address.place
        self._names = Names(prefix)
        self._options = Options(
            address=address, tls=tls if address.secure else None, connect_timeout=connect_timeout
        )
        self._sending = Sending(
            window=max_in_flight,
            limit=max_message_bytes,
            create=missing_stream == "create",
            maxlen=maxlen,
            replicas=replicas,
            fsync=fsync,
        )
        self._sending.check()
        self._declare = declare
        self._delete = delete_acked
        self._single = single_active_consumer
        self._lease = lease.total_seconds()
        self._identity = f"{socket.gethostname()}-{os.getpid()}-{token_hex(4)}"
        self._out: Link | None = None
        self._in: Link | None = None
        self._publishing: Publishing | None = None
        self._subscriptions: dict[Subscription, str] = {}
        self._joined: set[tuple[str, str]] = set()
        """Groups, with a topic, that we have received from: if one is missing it was deleted."""

    def __repr__(self) -> str:
        """Return where it is, without any secret."""
        return f"{type(self).__name__}({self.place!r}, prefix={self._names.prefix!r})"

    @property
    def features(self) -> BrokerFeatures:
        """What this broker can do."""
        return BrokerFeatures(
            durable=True,
            refusal_stops_key=True,
            ordered_by_key=self._single,
            spreads_keys=False,
            retry_holds_key=False,
            counts_attempts=True,
            delays_retry=True,
            dead_letters=True,
            reports_unroutable=not self._sending.create,
            max_message_bytes=self._sending.limit,
        )

    async def open(self) -> None:
        """Get ready; the connections are made when they are needed."""
        if self._in is None:
            self._in = Link(self._options, "postroom-consumer")
            self._out = Link(self._options, "postroom-publisher")
            self._publishing = Publishing(self._out, self._names, self._sending)

    async def close(self) -> None:
        """Disconnect; what is out is given back."""
        for subscription in list(self._subscriptions):
            subscription.fail("the broker was closed")
            await subscription.leave()
        links, self._in, self._out, self._publishing = (self._in, self._out), None, None, None
        for link in links:
            if link is not None:
                await link.close()

    async def ping(self) -> None:
        """Return once a publish has a chance: the server would take a message from us now."""
        if self._publishing is None:
            raise _closed()
        await self._publishing.probe()

    async def publish(
        self, messages: Sequence[Message], *, timeout: timedelta
    ) -> Sequence[BrokerError | None]:
        """Send the messages in order, and return what the server answered to each.

        Of two messages of a key the second is not sent where the first was refused.
        """
        if not messages:
            return []
        if self._publishing is None:
            return [_closed()] * len(messages)
        until = asyncio.get_running_loop().time() + timeout.total_seconds() * _ANSWER_EARLY
        return await self._publishing.publish(messages, until)

    def subscribe(
        self, topics: Sequence[str], *, group: str, prefetch: int
    ) -> AbstractAsyncContextManager[AsyncIterator[Delivery]]:
        """Receive what is sent to these topics; a new group begins with the oldest."""
        if prefetch < 1:
            raise ValueError("prefetch must be at least 1")
        return self._subscribe(tuple(topics), group, prefetch)

    def topology(self, groups: Mapping[str, Sequence[str]]) -> Sequence[TopologyPart]:
        """Return what these groups need, with the topics of each."""
        return topology.parts(self._names, groups)

    async def apply_topology(self, groups: Mapping[str, Sequence[str]]) -> None:
        """Make what is missing of it."""
        link = self._telling()
        for group, topics in groups.items():
            member = self._member(link, group, "")
            for topic in topics:
                try:
                    await member.create(topic)
                except GroupGone as error:
                    raise member.gone(topic) from error
                await member.register(topic)

    async def queues(self) -> Sequence[QueueStatus]:
        """Return what every group still has to do of each topic; dead letters of all topics."""
        return await self._keeping().status()

    async def dead_letters(
        self, group: str | None = None, *, limit: int = 100
    ) -> Sequence[DeadLetter]:
        """Return what was given up, the oldest first."""
        keeping = self._keeping()
        groups = [group] if group is not None else sorted(await keeping.groups())
        found = [letter for each in groups for letter in await keeping.letters(each, limit)]
        return sorted(found, key=lambda letter: letter.died_at)[:limit]

    async def replay_dead(
        self, group: str, positions: Sequence[int] | None = None, *, limit: int = 1000
    ) -> int:
        """Put dead letters at the end of their stream, for this group alone; return how many."""
        return await self._keeping().replay(group, _chosen(positions), limit)

    async def discard_dead(
        self, group: str, positions: Sequence[int] | None = None, *, limit: int = 1000
    ) -> int:
        """Delete dead letters for good; return how many."""
        return await self._keeping().discard(group, _chosen(positions), limit)

    async def drop_group(self, group: str, topics: Sequence[str] | None = None) -> int:
        """End a group's subscription, of all topics or of these; its consumers must have ended.

        Returns how many messages it had not done, dead letters included.
        """
        for each in {pair for pair in self._joined if pair[0] == group}:
            if topics is None or each[1] in topics:
                self._joined.discard(each)
        return await self._keeping().drop(group, topics)

    @asynccontextmanager
    async def _subscribe(
        self, topics: Sequence[str], group: str, prefetch: int
    ) -> AsyncIterator[AsyncIterator[Delivery]]:
        link = self._telling()
        taken = set(self._subscriptions.values())
        name = next(
            each for each in (f"{self._identity}-{n}" for n in count(1)) if each not in taken
        )
        member = self._member(link, group, name)
        reading = Link(self._options, "postroom-reader")
        subscription = Subscription(
            member,
            reading,
            topics,
            prefetch=prefetch,
            lease=self._lease,
            patience=self._options.patience,
            single=self._single,
        )
        self._subscriptions[subscription] = name
        try:
            for topic in topics:
                await self._ready(member, topic)
            try:
                await subscription.join()
            except GroupGone as error:
                raise BrokerUnavailable("a stream was deleted at this moment") from error
            yield subscription
        finally:
            self._subscriptions.pop(subscription, None)
            await subscription.leave()

    async def _ready(self, member: Member, topic: str) -> None:
        """See that the group is there. Raises BrokerUnavailable."""
        mine = (member.group, topic)
        try:
            await member.check(topic)
        except GroupGone as error:
            if not self._declare and mine not in self._joined:
                raise member.gone(topic) from error
            await member.create(topic)
            if mine in self._joined:
                raise BrokerUnavailable(
                    f"the group {member.group!r} of topic {topic!r} was not there any more "
                    "(deleted, flushed, or a server that does not have it); it was made again, "
                    "and begins with the oldest entry that there is"
                ) from error
        self._joined.add(mine)
        await member.register(topic)

    def _member(self, link: Link, group: str, name: str) -> Member:
        return Member(
            link, self._names, group=group, name=name, lease=self._lease, delete=self._delete
        )

    def _keeping(self) -> Keeping:
        return Keeping(self._telling(), self._names)

    def _telling(self) -> Link:
        if self._in is None:
            raise _closed()
        return self._in


def _chosen(positions: Sequence[int] | None) -> frozenset[int] | None:
    return None if positions is None else frozenset(positions)


def _closed() -> BrokerUnavailable:
    return BrokerUnavailable("the broker is not open: call `await broker.open()`")
