"""The RabbitMQ driver: both sides of the contract, and the queues for people."""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from datetime import timedelta

from postroom._clock import LONGEST_PATIENCE, check_span
from postroom.broker import (
    BrokerFeatures,
    DeadLetter,
    Delivery,
    QueueStatus,
    TopologyPart,
)
from postroom.brokers.rabbitmq import keeping
from postroom.brokers.rabbitmq.address import parse
from postroom.brokers.rabbitmq.confirms import Outgoing
from postroom.brokers.rabbitmq.connection import Connection
from postroom.brokers.rabbitmq.link import (
    Link,
    Options,
    PublishingLink,
    apply,
    consume,
)
from postroom.brokers.rabbitmq.mapping import Copy
from postroom.brokers.rabbitmq.packing import Packer, packed_copy
from postroom.brokers.rabbitmq.subscription import Copies, OversizedError, Subscription
from postroom.brokers.rabbitmq.topology import Names, QueueType, declarations, delay_route
from postroom.brokers.tls import Tls
from postroom.errors import BrokerError, BrokerUnavailable
from postroom.message import Message

_ANSWER_EARLY = 0.98
"""The part of a time-out after which a call answers: the caller's own clock runs too."""


class RabbitmqBroker:
    """Topics are routing keys of one exchange, groups are queues that are bound by them.

    Nothing is declared unless asked: `postroom topology --apply`, `apply_topology`, or the
    option `declare`. Publishing and consuming have a connection each.

    Example:
        broker = RabbitmqBroker("amqp://user:password@host/vhost")
    """

    name = "amqp"

    def __init__(  # noqa: PLR0913 - the options of an address
        self,
        url: str = "amqp://guest:guest@localhost/",
        *,
        exchange: str = "postroom",
        queue_type: QueueType = "quorum",
        single_active_consumer: bool = True,
        declare: bool = False,
        groups: Sequence[str] = (),
        max_message_bytes: int = 16_777_216,
        max_in_flight: int = 1000,
        heartbeat: timedelta = timedelta(seconds=10),
        connect_timeout: timedelta = timedelta(seconds=5),
        cacertfile: str | None = None,
        certfile: str | None = None,
        keyfile: str | None = None,
        verify: bool = True,
        external: bool = False,
    ) -> None:
        """Use the server at that address; nothing connects before it is needed.

        `groups` are those whose queues and dead letters people want to see, besides those that
        subscribe here. The files are in PEM form and need an `amqps://` address; without `verify`
        any server is believed. With `external` the client certificate says who we are. Raises
        ValueError for what could not work.
        """
        address = parse(url)
        check_span("heartbeat", heartbeat, least=timedelta(seconds=1), most=timedelta(hours=1))
        check_span(
            "connect_timeout", connect_timeout, least=timedelta(seconds=0.1), most=LONGEST_PATIENCE
        )
        if queue_type not in {"classic", "quorum"}:
            raise ValueError(f"queue_type must be classic or quorum, not {queue_type!r}")
        if max_in_flight < 1 or max_message_bytes < 1:
            raise ValueError("max_in_flight and max_message_bytes must be at least 1")
        if not exchange:
            raise ValueError("exchange needs a name; the default exchange knows no topics")
        tls = Tls(cacertfile=cacertfile, certfile=certfile, keyfile=keyfile, verify=verify)
        if not address.secure and (tls != Tls() or external):
            raise ValueError("certificates need an amqps:// address")
        self.place = address.place
        self._names = Names(
            exchange=exchange, queue_type=queue_type, single_active=single_active_consumer
        )
        self._options = Options(
            address=address,
            tls=tls if address.secure else None,
            heartbeat=heartbeat,
            connect_timeout=connect_timeout,
            external=external,
        )
        self._declare = declare
        self._groups = set(groups)
        self._limit = max_message_bytes
        self._window = max_in_flight
        self._out: PublishingLink | None = None
        self._in: Link | None = None
        self._subscriptions: dict[Subscription, str] = {}
        self._packer = Packer(exchange, max_message_bytes)
        self._keeping = keeping.Keeping(
            self._names, connect=lambda: self._consuming().connection(), copy=self._copy
        )
        self._prepared: Connection | None = None

    def __repr__(self) -> str:
        """Return where it is, without any secret."""
        return f"{type(self).__name__}({self.place!r}, exchange={self._names.exchange!r})"

    @property
    def features(self) -> BrokerFeatures:
        """What this broker can do."""
        return BrokerFeatures(
            durable=True,
            refusal_stops_key=False,
            ordered_by_key=self._names.single_active,
            spreads_keys=False,
            retry_holds_key=False,
            counts_attempts=True,
            delays_retry=True,
            dead_letters=True,
            reports_unroutable=True,
            max_message_bytes=self._limit,
        )

    async def open(self) -> None:
        """Get ready; the connections are made when they are needed."""
        if self._in is None:
            self._in = Link(self._options, "postroom consumer")
            self._out = PublishingLink(
                self._options,
                "postroom publisher",
                exchange=self._names.exchange,
                window=self._window,
            )

    async def close(self) -> None:
        """Disconnect; what is out goes back to the queues."""
        incoming, self._in = self._in, None
        outgoing, self._out = self._out, None
        for subscription in list(self._subscriptions):
            subscription.fail("the broker was closed")
        for link in (incoming, outgoing):
            if link is not None:
                await link.close()

    async def ping(self) -> None:
        """Return once a publish has a chance: the exchange is there, and takes from us."""
        link = self._publishing()
        patience = self._options.connect_timeout.total_seconds() * 2
        try:
            async with asyncio.timeout(patience):
                await self._prepare(link)
                await link.probe()
        except TimeoutError as error:
            raise BrokerUnavailable(f"{self.place} did not answer within {patience:g} s") from error

    async def publish(
        self, messages: Sequence[Message], *, timeout: timedelta
    ) -> Sequence[BrokerError | None]:
        """Send the messages in one write, and return what the broker confirmed of each."""
        if not messages:
            return []
        until = asyncio.get_running_loop().time() + timeout.total_seconds() * _ANSWER_EARLY
        try:
            link = self._publishing()
            async with asyncio.timeout_at(until):
                await self._prepare(link)
                channel = await link.confirms(copies=False)
        except BrokerError as error:
            return [error] * len(messages)
        except TimeoutError:
            return [BrokerUnavailable(f"{self.place} did not answer in time")] * len(messages)
        packed = self._packer.pack(
            messages, channel=channel.number, most=channel.connection.frame_max
        )
        outgoing = [each for each in packed if isinstance(each, Outgoing)]
        answers = iter(await channel.publish(outgoing, until=until) if outgoing else ())
        return [each if isinstance(each, BrokerError) else next(answers) for each in packed]

    def subscribe(
        self, topics: Sequence[str], *, group: str, prefetch: int
    ) -> AbstractAsyncContextManager[AsyncIterator[Delivery]]:
        """Receive what is in the queue of this group.

        Which topics these are is said by the bindings, not here: only with the option `declare`
        are missing ones made.
        """
        if prefetch < 1:
            raise ValueError("prefetch must be at least 1")
        return self._subscribe(tuple(topics), group, prefetch)

    def topology(self, groups: Mapping[str, Sequence[str]]) -> Sequence[TopologyPart]:
        """Return what these groups need, with the topics of each."""
        return [each.part for each in declarations(self._names, groups)]

    async def apply_topology(self, groups: Mapping[str, Sequence[str]]) -> None:
        """Make what is missing of it.

        Raises SettingsError where something is made differently, and changes it not.
        """
        connection = await self._consuming().connection()
        wanted = declarations(self._names, groups, version=connection.version)
        await apply(connection, wanted)

    async def queues(self) -> Sequence[QueueStatus]:
        """Return what the queues of the known groups hold, all topics of a group together.

        AMQP does not tell what other processes have in their hands, nor for which group a
        message in the delay queues waits.
        """
        found = []
        for group in sorted(self._groups):
            out = sum(one.out for one, name in self._subscriptions.items() if name == group)
            if (status := await self._keeping.status(group, out=out)) is not None:
                found.append(status)
        return found

    async def dead_letters(
        self, group: str | None = None, *, limit: int = 100
    ) -> Sequence[DeadLetter]:
        """Return what was given up, the oldest first; without a group of those it knows."""
        groups = [group] if group is not None else sorted(self._groups)
        found = [letter for each in groups for letter in await self._keeping.letters(each, limit)]
        return sorted(found, key=lambda letter: letter.died_at)[:limit]

    async def replay_dead(
        self, group: str, positions: Sequence[int] | None = None, *, limit: int = 1000
    ) -> int:
        """Put dead letters at the end of their group's queue, attempts 0; return how many."""
        return await self._keeping.replay(group, keeping.chosen(positions), limit)

    async def discard_dead(
        self, group: str, positions: Sequence[int] | None = None, *, limit: int = 1000
    ) -> int:
        """Delete dead letters for good; return how many."""
        dead = self._names.dead(group)
        return await self._keeping.discard(dead, keeping.chosen(positions), limit)

    async def drop_group(self, group: str, topics: Sequence[str] | None = None) -> int:
        """End a group's subscription: its queues are deleted, or the bindings of these topics.

        Returns how many messages that deleted. What waits for a retry is lost without a count.
        Of single topics only dead letters are deleted: AMQP cannot pick messages out of a queue
        that has a single active consumer.
        """
        if topics is None:
            self._groups.discard(group)
        return await self._keeping.drop(group, topics)

    @asynccontextmanager
    async def _subscribe(
        self, topics: Sequence[str], group: str, prefetch: int
    ) -> AsyncIterator[AsyncIterator[Delivery]]:
        connection = await self._consuming().connection()
        if self._declare:
            await self.apply_topology({group: topics})
        subscription = Subscription(self._copies(group))
        channel = await connection.channel(subscription)
        subscription.attach(channel)
        self._groups.add(group)
        self._subscriptions[subscription] = group
        try:
            await consume(channel, self._names.queue(group), prefetch)
            yield subscription
        finally:
            self._subscriptions.pop(subscription, None)
            await subscription.leave()

    def _copies(self, group: str) -> Copies:
        async def delayed(copy: Copy, delay: timedelta) -> None:
            exchange, key = delay_route(self._names, group, delay)
            await self._copy(exchange, key, copy)

        async def dead(copy: Copy) -> None:
            await self._copy("", self._names.dead(group), copy)

        return Copies(delayed=delayed, dead=dead)

    async def _copy(self, exchange: str, key: str, copy: Copy) -> None:
        """Publish a copy and wait for its confirm. Raises BrokerUnavailable."""
        patience = self._options.connect_timeout.total_seconds()
        until = asyncio.get_running_loop().time() + patience
        try:
            async with asyncio.timeout_at(until):
                channel = await self._publishing().confirms(copies=True)
        except TimeoutError as error:
            raise BrokerUnavailable(f"{self.place} did not answer within {patience:g} s") from error
        most = channel.connection.frame_max
        packed = packed_copy(
            copy, exchange=exchange, routing_key=key, channel=channel.number, most=most
        )
        if packed is None:
            raise OversizedError
        [refusal] = await channel.publish([packed], until=until)
        if refusal is not None:
            raise BrokerUnavailable(
                f"no copy could be kept in {exchange or key}: {refusal.reason}"
            ) from refusal

    async def _prepare(self, link: PublishingLink) -> None:
        """With the option `declare`: make the exchange, once for each connection."""
        if self._declare and (connection := await link.connection()) is not self._prepared:
            await apply(connection, declarations(self._names, {}))
            self._prepared = connection

    def _publishing(self) -> PublishingLink:
        if self._out is None:
            raise BrokerUnavailable("the broker is not open")
        return self._out

    def _consuming(self) -> Link:
        if self._in is None:
            raise BrokerUnavailable("the broker is not open")
        return self._in
