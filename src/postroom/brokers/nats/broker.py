"""The NATS driver: both sides of the contract."""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from datetime import timedelta

from postroom.broker import BrokerFeatures, DeadLetter, Delivery, QueueStatus, TopologyPart
from postroom.brokers.nats import keeping, topology
from postroom.brokers.nats.address import parse
from postroom.brokers.nats.api import Api, taken
from postroom.brokers.nats.connection import Options
from postroom.brokers.nats.link import Link, PublishingLink
from postroom.brokers.nats.mapping import Packed, packed
from postroom.brokers.nats.publishing import Outgoing
from postroom.brokers.nats.refusals import Unrouted
from postroom.brokers.nats.subscription import Subscription
from postroom.brokers.nats.topology import Making, Names, check_stream_name
from postroom.brokers.tls import Tls
from postroom.errors import BrokerError, BrokerUnavailable, RefusedForGood, RefusedForNow
from postroom.message import Message

_ANSWER_EARLY = 0.95
"""The part of a time-out after which a call answers: the caller's own clock runs too."""
_ROOM = 8192
"""Bytes left free in a message, for the reason of a dead letter."""


class NatsBroker:
    """Topics are subjects of one stream, groups are its durable pull consumers.

    Nothing is made unless asked: `postroom topology --apply`, `apply_topology`, or the option
    `declare`. Publishing and consuming have a connection each.

    Example:
        broker = NatsBroker("nats://user:password@host")
    """

    name = "nats"

    def __init__(  # noqa: PLR0913 - the options of an address
        self,
        url: str = "nats://localhost",
        *,
        stream: str = "postroom",
        subjects: Sequence[str] = (),
        declare: bool = False,
        replicas: int | None = None,
        max_age: timedelta | None = None,
        duplicate_window: timedelta | None = None,
        ack_wait: timedelta | None = None,
        max_message_bytes: int | None = None,
        max_in_flight: int = 1000,
        heartbeat: timedelta = timedelta(seconds=10),
        connect_timeout: timedelta = timedelta(seconds=5),
        inbox_prefix: str = "_INBOX",
        cacertfile: str | None = None,
        certfile: str | None = None,
        keyfile: str | None = None,
        verify: bool = True,
        tls_first: bool = False,
    ) -> None:
        """Use the servers at that address; nothing connects before it is needed.

        `subjects`, `replicas`, `max_age`, `duplicate_window` and `ack_wait` are for what is made;
        the server's own without them. A payload over `max_message_bytes` is refused for good, and
        so is without it what the server's `max_payload` does not allow. The files are in PEM form
        and need a `tls://` address. Raises ValueError for what could not work.
        """
        address = parse(url)
        check_stream_name(stream)
        if max_in_flight < 1 or (max_message_bytes is not None and max_message_bytes < 1):
            raise ValueError("max_in_flight and max_message_bytes must be at least 1")
        tls = Tls(cacertfile=cacertfile, certfile=certfile, keyfile=keyfile, verify=verify)
        if not address.secure and (tls != Tls() or tls_first):
            raise ValueError("certificates and tls_first need a tls:// address")
        self.place = address.place
        self._names = Names(stream=stream)
        self._making = Making(
            replicas=replicas,
            max_age=max_age,
            duplicate_window=duplicate_window,
            ack_wait=ack_wait,
            subjects=tuple(subjects),
        )
        self._options = Options(
            address=address,
            tls=tls if address.secure else None,
            tls_first=tls_first,
            heartbeat=heartbeat,
            connect_timeout=connect_timeout,
            inbox_prefix=inbox_prefix,
        )
        self._declare = declare
        self._limit = max_message_bytes
        self._window = max_in_flight
        self._out: PublishingLink | None = None
        self._in: Link | None = None
        self._subscriptions: set[Subscription] = set()
        self._keeping = keeping.Keeping(self._names, lambda: self._consuming().api())

    def __repr__(self) -> str:
        """Return where it is, without any secret."""
        return f"{type(self).__name__}({self.place!r}, stream={self._names.stream!r})"

    @property
    def features(self) -> BrokerFeatures:
        """What this broker can do."""
        return BrokerFeatures(
            durable=True,
            refusal_stops_key=True,
            ordered_by_key=False,
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
                stream=self._names.stream,
                window=self._window,
                prepare=self._prepare,
            )

    async def close(self) -> None:
        """Disconnect; what is out goes back."""
        incoming, self._in = self._in, None
        outgoing, self._out = self._out, None
        for subscription in tuple(self._subscriptions):
            subscription.fail("the broker was closed")
            await subscription.leave()
        for link in (incoming, outgoing):
            if link is not None:
                await link.close()

    async def ping(self) -> None:
        """Return once a publish has a chance: the stream is there, and JetStream answers."""
        link = self._publishing()
        patience = self._options.connect_timeout.total_seconds() * 2
        try:
            async with asyncio.timeout(patience):
                await link.probe()
        except TimeoutError as error:
            raise BrokerUnavailable(f"{self.place} did not answer within {patience:g} s") from error

    async def publish(
        self, messages: Sequence[Message], *, timeout: timedelta
    ) -> Sequence[BrokerError | None]:
        """Send the messages, and return what the stream confirmed of each.

        Of two messages of a key the second is written once the first is confirmed.
        """
        if not messages:
            return []
        until = asyncio.get_running_loop().time() + timeout.total_seconds() * _ANSWER_EARLY
        try:
            link = self._publishing()
            async with asyncio.timeout_at(until):
                publishing = await link.publishing()
        except BrokerError as error:
            return [error] * len(messages)
        except TimeoutError:
            return [BrokerUnavailable(f"{self.place} did not answer in time")] * len(messages)
        limit = publishing.connection.max_payload
        outgoing: list[Outgoing] = [(self._packed(each, limit), each.key) for each in messages]
        results = await publishing.publish(outgoing, until=until)
        if any(isinstance(each, Unrouted) for each in results):
            return await self._explained(results, link, until)
        return results

    def subscribe(
        self, topics: Sequence[str], *, group: str, prefetch: int
    ) -> AbstractAsyncContextManager[AsyncIterator[Delivery]]:
        """Receive what the consumer of this group has.

        Which topics these are is said by its filter, not here: only with the option `declare`
        are missing ones added.
        """
        if prefetch < 1:
            raise ValueError("prefetch must be at least 1")
        return self._subscribe(tuple(topics), group, prefetch)

    def topology(self, groups: Mapping[str, Sequence[str]]) -> Sequence[TopologyPart]:
        """Return what these groups need, with the topics of each."""
        return topology.parts(self._names, self._making, groups)

    async def apply_topology(self, groups: Mapping[str, Sequence[str]]) -> None:
        """Make what is missing of it; subjects are added, and never removed.

        Raises SettingsError where something is made differently, and changes it not.
        """
        await topology.make(await self._consuming().api(), self._names, self._making, groups)

    async def queues(self) -> Sequence[QueueStatus]:
        """Return what the groups of the stream have to do, all topics of a group together.

        JetStream counts what waits for a retry with what is in a consumer's hands.
        """
        return await self._keeping.queues()

    async def dead_letters(
        self, group: str | None = None, *, limit: int = 100
    ) -> Sequence[DeadLetter]:
        """Return what was given up, the oldest first."""
        return await self._keeping.letters(group, limit)

    async def replay_dead(
        self, group: str, positions: Sequence[int] | None = None, *, limit: int = 1000
    ) -> int:
        """Put dead letters at the end of what their group has to do, attempts 0."""
        return await self._keeping.replay(group, keeping.chosen(positions), limit)

    async def discard_dead(
        self, group: str, positions: Sequence[int] | None = None, *, limit: int = 1000
    ) -> int:
        """Delete dead letters for good; return how many."""
        return await self._keeping.discard(group, keeping.chosen(positions), limit)

    async def drop_group(self, group: str, topics: Sequence[str] | None = None) -> int:
        """End a group: its consumer and its dead letters are deleted, or those of these topics.

        Returns how many messages it had not done (of single topics: only its dead letters). The
        messages themselves stay in the stream.
        """
        return await self._keeping.drop(group, topics)

    @asynccontextmanager
    async def _subscribe(
        self, topics: Sequence[str], group: str, prefetch: int
    ) -> AsyncIterator[AsyncIterator[Delivery]]:
        link = self._consuming()
        if self._declare:
            await self.apply_topology({group: topics})
        subscription = Subscription(
            link,
            self._names,
            group,
            prefetch=prefetch,
            inbox_prefix=self._options.inbox_prefix,
        )
        self._subscriptions.add(subscription)
        try:
            await subscription.join()
            yield subscription
        finally:
            self._subscriptions.discard(subscription)
            await subscription.leave()

    def _packed(self, message: Message, limit: int) -> Packed | RefusedForGood:
        size = len(message.payload)
        if self._limit is not None and size > self._limit:
            return RefusedForGood(f"its payload of {size} bytes is over the limit of {self._limit}")
        try:
            return packed(message, stream=self._stream, limit=limit - min(_ROOM, limit // 8))
        except RefusedForGood as error:
            return error

    async def _explained(
        self, results: Sequence[BrokerError | None], link: PublishingLink, until: float
    ) -> Sequence[BrokerError | None]:
        """Find out why nobody answered: no message is to blame where the stream itself is away."""
        away: BrokerUnavailable | None = None
        subjects: list[str] = []
        try:
            async with asyncio.timeout_at(until):
                subjects = await link.look(await link.api())
        except BrokerUnavailable as error:
            away = error
        except TimeoutError:
            away = BrokerUnavailable(
                f"{self.place} did not say in time whether its stream is there"
            )
        return [
            _judged(each, away, subjects) if isinstance(each, Unrouted) else each
            for each in results
        ]

    async def _prepare(self, api: Api) -> None:
        """With the option `declare`: make the streams, once for each connection."""
        if self._declare:
            await topology.make(api, self._names, self._making, {})

    @property
    def _stream(self) -> bytes:
        return self._names.stream.encode()

    def _publishing(self) -> PublishingLink:
        if self._out is None:
            raise BrokerUnavailable("the broker is not open")
        return self._out

    def _consuming(self) -> Link:
        if self._in is None:
            raise BrokerUnavailable("the broker is not open")
        return self._in


def _judged(
    unrouted: Unrouted, away: BrokerUnavailable | None, subjects: Sequence[str]
) -> BrokerError:
    if away is not None:
        return away
    if taken(subjects, unrouted.subject):
        return BrokerUnavailable(
            f"nobody took {unrouted.subject!r}, though the stream does: it has no leader now"
        )
    return RefusedForNow(unrouted.reason)
