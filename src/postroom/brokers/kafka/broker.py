"""The Kafka driver: both sides of the contract."""

import asyncio
import time
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from datetime import UTC, datetime, timedelta
from typing import Any

from postroom._clock import LONGEST_PATIENCE, check_span
from postroom.broker import BrokerFeatures, Delivery, TopologyPart
from postroom.brokers.kafka import topology
from postroom.brokers.kafka.address import Security, client_config, parse
from postroom.brokers.kafka.mapping import Record, dead_letter
from postroom.brokers.kafka.partition import Partition, Received
from postroom.brokers.kafka.producing import Deadline, Producing
from postroom.brokers.kafka.subscription import Subscription
from postroom.brokers.kafka.topics import Topics
from postroom.errors import BrokerError, BrokerUnavailable, SettingsError
from postroom.message import Message

_BURYING = 10.0


class KafkaBroker:
    """Topics are topics, groups are consumer groups; a key's messages are in one partition.

    Nothing is made unless asked: `postroom topology --apply`, `apply_topology`, or the option
    `declare`.

    Example:
        broker = KafkaBroker("kafka://one:9092,two:9092")
    """

    name = "kafka"

    def __init__(  # noqa: PLR0913 - the options of an address
        self,
        url: str = "kafka://localhost:9092",
        *,
        group_prefix: str = "",
        declare: bool = False,
        partitions: int | None = None,
        replication: int | None = None,
        max_message_bytes: int | None = None,
        session_timeout: timedelta = timedelta(seconds=45),
        connect_timeout: timedelta = timedelta(seconds=5),
        tls: bool = False,
        cacertfile: str | None = None,
        certfile: str | None = None,
        keyfile: str | None = None,
        verify: bool = True,
        sasl: str | None = None,
    ) -> None:
        """Use the cluster at that address; nothing connects before it is needed.

        `group_prefix` stands before the name of every group and of its dead letters.
        `partitions` and `replication` are for topics that are made; the broker's own without
        them. A payload over `max_message_bytes` is refused for good, and so is without it what
        the topic's `max.message.bytes` does not allow. The files are in PEM form and need `tls`.
        Raises ValueError for what could not work.
        """
        address = parse(url)
        security = Security(
            tls=tls,
            cacertfile=cacertfile,
            certfile=certfile,
            keyfile=keyfile,
            verify=verify,
            sasl=sasl,
        )
        security.check(address)
        check_span(
            "connect_timeout", connect_timeout, least=timedelta(seconds=0.1), most=LONGEST_PATIENCE
        )
        check_span(
            "session_timeout",
            session_timeout,
            least=timedelta(seconds=1),
            most=timedelta(minutes=30),
        )
        for what, number in (
            ("partitions", partitions),
            ("replication", replication),
            ("max_message_bytes", max_message_bytes),
        ):
            if number is not None and number < 1:
                raise ValueError(f"{what} must be at least 1")
        self.place = address.place
        self._config = client_config(address, security)
        self._names = topology.Names(group_prefix)
        self._declare = declare
        self._partitions = partitions
        self._replication = replication
        self._limit = max_message_bytes
        self._session = session_timeout.total_seconds()
        self._patience = connect_timeout.total_seconds()
        self._topics: Topics | None = None
        self._producing: Producing | None = None
        self._subscriptions: set[Subscription] = set()
        self._made: set[str] = set()
        """Topics that the option `declare` has made, or found."""

    def __repr__(self) -> str:
        """Return where it is, without any secret."""
        return f"{type(self).__name__}({self.place!r})"

    @property
    def features(self) -> BrokerFeatures:
        """What this broker can do."""
        return BrokerFeatures(
            durable=True,
            refusal_stops_key=True,
            ordered_by_key=True,
            spreads_keys=self._partitions != 1,
            retry_holds_key=True,
            counts_attempts=False,
            delays_retry=True,
            dead_letters=True,
            reports_unroutable=False,
            max_message_bytes=self._limit,
        )

    async def open(self) -> None:
        """Get ready; the connections are made when they are needed."""
        if self._topics is None:
            self._topics = Topics(self._config, self.place)
            self._producing = Producing(self._config, self._topics, limit=self._limit)

    async def close(self) -> None:
        """Disconnect; what is out goes to other consumers of the group."""
        topics, self._topics = self._topics, None
        producing, self._producing = self._producing, None
        for subscription in tuple(self._subscriptions):
            subscription.fail("the broker was closed")
        if producing is not None:
            await producing.close()
        if topics is not None:
            await topics.close()

    async def ping(self) -> None:
        """Return once a publish has a chance: a broker answers, and knows us."""
        await self._known().ping(self._patience)

    async def publish(
        self, messages: Sequence[Message], *, timeout: timedelta
    ) -> Sequence[BrokerError | None]:
        """Send the messages in order, and return what the broker confirmed of each.

        Of two messages of a key the second is not sent, or not kept, where the first was not.
        """
        if not messages:
            return []
        deadline = Deadline.after(timeout.total_seconds())
        producing = self._producing
        if producing is None:
            return [_closed()] * len(messages)
        if self._declare:
            # The publish itself says of which messages anything is wrong.
            with suppress(BrokerUnavailable, SettingsError, ValueError, TimeoutError):
                async with asyncio.timeout(deadline.sending - time.monotonic()):
                    await self._declared({message.topic for message in messages})
        return await producing.publish(messages, deadline)

    def subscribe(
        self, topics: Sequence[str], *, group: str, prefetch: int
    ) -> AbstractAsyncContextManager[AsyncIterator[Delivery]]:
        """Receive what is sent to these topics; a new group begins with the oldest."""
        if prefetch < 1:
            raise ValueError("prefetch must be at least 1")
        return self._subscribe(tuple(topics), group, prefetch)

    def topology(self, groups: Mapping[str, Sequence[str]]) -> Sequence[TopologyPart]:
        """Return what these groups need, with the topics of each."""
        return topology.parts(
            self._names, groups, partitions=self._partitions, replication=self._replication
        )

    async def apply_topology(self, groups: Mapping[str, Sequence[str]]) -> None:
        """Make what is missing of it.

        Raises SettingsError for a topic that has another number of partitions than we were
        told, and changes it not.
        """
        await self._make(groups, ())

    async def _declared(self, topics: set[str]) -> None:
        if missing := topics - self._made:
            await self._make({}, missing)
            self._made |= missing

    async def _make(self, groups: Mapping[str, Sequence[str]], topics: Iterable[str]) -> None:
        await topology.make(
            self._known(),
            topology.wanted(self._names, groups, topics),
            partitions=self._partitions,
            replication=self._replication,
            timeout=self._patience,
        )

    @asynccontextmanager
    async def _subscribe(
        self, topics: Sequence[str], group: str, prefetch: int
    ) -> AsyncIterator[AsyncIterator[Delivery]]:
        if self._declare:
            await self._make({group: topics}, ())
        await self._check(topics)
        subscription = Subscription(
            self._consumer_config(group, prefetch),
            topics,
            prefetch=prefetch,
            patience=self._session,
            bury=lambda partition, record, reason: self._bury(group, partition, record, reason),
            probe=self.ping,
        )
        self._subscriptions.add(subscription)
        try:
            await subscription.join()
            yield subscription
        finally:
            self._subscriptions.discard(subscription)
            await subscription.leave()

    async def _check(self, topics: Sequence[str]) -> None:
        """Raise BrokerUnavailable where a topic is missing: it would never come by itself."""
        for answer in (await self._known().look(topics, self._patience, to_read=True)).values():
            if isinstance(answer, BrokerError):
                raise BrokerUnavailable(answer.reason)

    def _consumer_config(self, group: str, prefetch: int) -> dict[str, Any]:
        session = int(self._session * 1000)
        return {
            **self._config,
            "group.id": self._names.group(group),
            "partition.assignment.strategy": "cooperative-sticky",
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            "auto.offset.reset": "earliest",
            "isolation.level": "read_committed",
            "session.timeout.ms": session,
            "heartbeat.interval.ms": min(max(session // 10, 100), 500),
            # The thread polls whatever the handlers do; where it does not, we are frozen.
            "max.poll.interval.ms": session,
            "fetch.wait.max.ms": 500,
            "queued.min.messages": max(2 * prefetch, 1000),
            "queued.max.messages.kbytes": 16_384,
            "topic.metadata.refresh.interval.ms": 10_000,
        }

    async def _bury(self, group: str, partition: Partition, record: Received, reason: str) -> None:
        """Keep a dead letter. Raises BrokerUnavailable where it was not confirmed."""
        if self._producing is None:
            raise _closed()
        copy = dead_letter(
            Record(partition.topic, record.key, record.value, record.headers),
            topic=self._names.dead(group),
            group=group,
            partition=partition.number,
            offset=record.offset,
            reason=reason,
            at=datetime.now(UTC),
        )
        [result] = await self._producing.send([copy], [None], Deadline.after(_BURYING))
        if result is not None:
            raise BrokerUnavailable(f"the dead letter was not kept: {result.reason}")

    def _known(self) -> Topics:
        if self._topics is None:
            raise _closed()
        return self._topics


def _closed() -> BrokerUnavailable:
    return BrokerUnavailable("the broker is not open: call `await broker.open()`")
