"""The connections of one broker object: for publishing, and for all else."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from pamqp import commands

from postroom.brokers.link import OnDemand
from postroom.brokers.rabbitmq import frames
from postroom.brokers.rabbitmq.address import Address
from postroom.brokers.rabbitmq.channel import Channel, ChannelLost, Closed
from postroom.brokers.rabbitmq.confirms import Confirms
from postroom.brokers.rabbitmq.connection import Connection, open_connection
from postroom.brokers.rabbitmq.topology import Declaration
from postroom.brokers.tls import Tls
from postroom.errors import BrokerUnavailable, SettingsError

MISSING, REFUSED, DIFFERENT = 404, 403, 406
_APPLY = "`postroom topology --apply` makes what is missing"


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """How to connect."""

    address: Address
    tls: Tls | None
    heartbeat: timedelta
    connect_timeout: timedelta
    external: bool


class Link(OnDemand[Connection]):
    """A connection to RabbitMQ."""

    def __init__(self, options: Options, name: str) -> None:
        """Connect by these options, under a name that operators see."""
        super().__init__(lambda: _connected(options, name), patience=options.connect_timeout)


async def _connected(options: Options, name: str) -> Connection:
    patience = options.connect_timeout.total_seconds()
    try:
        async with asyncio.timeout(patience):
            return await open_connection(
                options.address,
                tls=options.tls,
                heartbeat=round(options.heartbeat.total_seconds()),
                external=options.external,
                name=name,
            )
    except TimeoutError as error:
        raise BrokerUnavailable(
            f"{options.address.place} did not answer within {patience:g} s"
        ) from error


class PublishingLink(Link):
    """A connection for publishing only: one that is blocked must not hold up consumers."""

    def __init__(self, options: Options, name: str, *, exchange: str, window: int) -> None:
        """Publish to that exchange, with so many messages in flight."""
        super().__init__(options, name)
        self._exchange = exchange
        self._window = window
        self._opening = asyncio.Lock()
        self._confirms: dict[bool, Confirms] = {}

    async def confirms(self, *, copies: bool) -> Confirms:
        """Return a channel for messages, or the one for copies; raises BrokerUnavailable.

        They are apart: a message on which the broker closes its channel ends no retry.
        """
        connection = await self.connection()
        if connection.blocked is not None:
            raise _blocked(connection.blocked)
        async with self._opening:
            found = self._confirms.get(copies)
            if found is None or not found.usable or found.connection is not connection:
                if not copies:
                    await self._check(connection)
                found = Confirms(connection, window=self._window)
                await found.open()
                self._confirms[copies] = found
            return found

    async def probe(self) -> None:
        """Return once a publish has a chance. Raises BrokerUnavailable."""
        connection = await self.connection()
        if connection.blocked is not None:
            raise _blocked(connection.blocked)
        await self._check(connection)

    async def _check(self, connection: Connection) -> None:
        """Publish an empty message in a transaction, and take it back.

        The one way that AMQP has to learn, without leaving anything behind, whether the exchange
        is there, whether we may write to it, and whether the broker takes messages at all.
        """
        channel = await connection.channel()
        blocked = asyncio.ensure_future(connection.unblocking.wait())
        try:
            replies = [channel.begin(commands.Tx.Select())]
            channel.write(
                frames.publish_method(channel.number, self._exchange, "", mandatory=False)
                + frames.content_frames(channel.number, b"", 0, b"", connection.frame_max)
            )
            replies.append(channel.begin(commands.Tx.Rollback()))
            waits: list[asyncio.Future[Any]] = [replies[-1], blocked]
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            if connection.blocked is not None:
                raise _blocked(connection.blocked)
            await replies[-1]
        except ChannelLost as lost:
            raise _explained(lost.closed, f"the exchange {self._exchange!r}") from lost
        finally:
            blocked.cancel()
            channel.drop()


async def apply(connection: Connection, wanted: Sequence[Declaration]) -> None:
    """Make what is missing of these. Raises SettingsError where something is made differently."""
    channel = await connection.channel()
    try:
        calls = [(each, channel.begin(each.method)) for each in wanted]
        for each, call in calls:
            try:
                await call
            except ChannelLost as lost:
                raise _not_declared(each, lost.closed) from lost
    finally:
        await channel.close()


def _not_declared(what: Declaration, closed: Closed) -> BrokerUnavailable | SettingsError:
    name = f"{what.part.kind} {what.part.name!r}"
    if closed.code == DIFFERENT:
        return SettingsError(
            f"{name} is there, but made differently: {closed.reason}; delete it or change the "
            "settings"
        )
    return BrokerUnavailable(f"{name} cannot be made: {closed.reason}")


async def passive(connection: Connection, queue: str) -> commands.Queue.DeclareOk | None:
    """Return what a queue holds, None where there is no such queue."""
    channel = await connection.channel()
    try:
        return await channel.call(
            commands.Queue.Declare(queue=queue, passive=True), commands.Queue.DeclareOk
        )
    except ChannelLost as lost:
        if lost.closed.code == MISSING:
            return None
        raise _explained(lost.closed, f"the queue {queue!r}") from lost
    finally:
        await channel.close()


async def consume(channel: Channel, queue: str, prefetch: int) -> None:
    """Begin to consume. Raises BrokerUnavailable."""
    try:
        await channel.call(
            commands.Basic.Qos(prefetch_count=min(prefetch, 65_535)), commands.Basic.QosOk
        )
        await channel.call(commands.Basic.Consume(queue=queue), commands.Basic.ConsumeOk)
    except ChannelLost as lost:
        raise _explained(lost.closed, f"the queue {queue!r}") from lost


def _explained(closed: Closed, what: str) -> BrokerUnavailable:
    match closed.code:
        case 404:
            return BrokerUnavailable(f"{what} does not exist ({closed.reason}); {_APPLY}")
        case 403:
            return BrokerUnavailable(f"no permission for {what}: {closed.reason}")
        case _:
            return BrokerUnavailable(closed.reason)


def _blocked(reason: str) -> BrokerUnavailable:
    return BrokerUnavailable(f"the broker takes no messages now: {reason}")
