"""The NATS driver: both sides of the contract."""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from datetime import timedelta

from postroom._clock import LONGEST_PATIENCE, check_span
from postroom.broker import BrokerFeatures, Delivery, TopologyPart
from postroom.brokers.nats import topology
from postroom.brokers.nats.address import parse
from postroom.brokers.nats.api import Api, taken
from postroom.brokers.nats.connection import Options
from postroom.brokers.nats.link import Link, PublishingLink
from postroom.brokers.nats.mapping import Packed, packed
from postroom.brokers.nats.publishing import Outgoing
from postroom.brokers.nats.refusals import Unrouted
from postroom.brokers.nats.topology import Making, Names, check_stream_name
from postroom.brokers.tls import Tls
from postroom.errors import BrokerError, BrokerUnavailable, RefusedForGood
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
        check_span("heartbeat", heartbeat, least=timedelta(seconds=1), most=timedelta(hours=1))
        check_span(
            "connect_timeout", connect_timeout, least=timedelta(seconds=0.1), most=LONGEST_PATIENCE
        )
        check_stream_name(stream)
        for what, span in (("ack_wait", ack_wait), ("duplicate_window", duplicate_window)):
            if span is not None:
                check_span(what, span, least=timedelta(seconds=0.1), most=timedelta(days=1))
        if max_age is not None:
            check_span("max_age", max_age, least=timedelta(seconds=1))
        for what, number in (
            ("replicas", replicas),
            ("max_message_bytes", max_message_bytes),
            ("max_in_flight", max_in_flight),
        ):
            if number is not None and number < 1:
                raise ValueError(f"{what} must be at least 1")
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

    @asynccontextmanager
    async def _subscribe(
        self, topics: Sequence[str], group: str, prefetch: int
    ) -> AsyncIterator[AsyncIterator[Delivery]]:
        raise NotImplementedError
        yield

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
            each
            if not isinstance(each, Unrouted)
            else away or _no_leader(each.subject)
            if away is not None or taken(subjects, each.subject)
            else each
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


def _no_leader(subject: str) -> BrokerUnavailable:
    return BrokerUnavailable(f"nobody took {subject!r}, though the stream does: it has no leader")
