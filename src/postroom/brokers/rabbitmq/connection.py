"""One connection to RabbitMQ: the handshake, heartbeats, channels, and how it ends."""

import asyncio
from collections import deque
from collections.abc import Callable
from struct import error as StructError  # noqa: N812 - it is a class
from typing import NoReturn

from pamqp import commands, exceptions
from pamqp import frame as codec
from pamqp.base import Frame
from pamqp.header import ProtocolHeader

from postroom.brokers.rabbitmq import frames
from postroom.brokers.rabbitmq.address import Address
from postroom.brokers.rabbitmq.channel import (
    Channel,
    ChannelLost,
    Closed,
    Listener,
    closed_by,
    look,
)
from postroom.brokers.tls import Tls
from postroom.errors import BrokerUnavailable

_SUCCESS = 200


class Connection(asyncio.Protocol):
    """A connection; `open_connection` makes one that is ready."""

    def __init__(self, address: Address, *, heartbeat: int) -> None:
        """Talk to that server."""
        self.blocked: str | None = None
        """Why the broker takes no messages now."""
        self.frame_max = 0
        self.version = (0, 0)
        self.unblocking = asyncio.Event()
        """Set whenever `blocked` has changed."""
        self.ended: Closed | None = None
        self.done = asyncio.Event()
        self.heard_at = 0.0
        """When anything came last, by the clock of the loop."""
        self._address = address
        self._heartbeat = heartbeat
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._rest = b""
        self._zero = Channel(self, 0, None)
        self._channels: dict[int, Channel] = {0: self._zero}
        self._free: deque[int] = deque()
        self._highest = 0
        self._channel_max = 1
        self._start: asyncio.Future[commands.Connection.Start] = self._loop.create_future()
        self._start.add_done_callback(look)
        self._beat: asyncio.TimerHandle | None = None

    # What the driver calls

    async def shake_hands(self, *, external: bool, name: str) -> None:
        """Log in and agree on the limits. Raises BrokerUnavailable."""
        self.write(ProtocolHeader(0, 9, 1).marshal())
        start = await self._start
        self.version = _version(start)
        response = "" if external else f"\0{self._address.username}\0{self._address.password}"
        tune = await self._zero.call(
            commands.Connection.StartOk(
                client_properties={
                    "product": "Postroom",
                    "connection_name": name,
                    "capabilities": {
                        "publisher_confirms": True,
                        "consumer_cancel_notify": True,
                        "basic.nack": True,
                        "connection.blocked": True,
                        "authentication_failure_close": True,
                    },
                },
                mechanism="EXTERNAL" if external else "PLAIN",
                response=response,
            ),
            commands.Connection.Tune,
        )
        self.frame_max = tune.frame_max or 131_072
        self._channel_max = tune.channel_max or 2047
        heartbeat = min(self._heartbeat, tune.heartbeat) if tune.heartbeat else self._heartbeat
        self.write(
            codec.marshal(
                commands.Connection.TuneOk(self._channel_max, self.frame_max, heartbeat), 0
            )
        )
        await self._zero.call(
            commands.Connection.Open(self._address.vhost), commands.Connection.OpenOk
        )
        self._keep_alive(heartbeat / 2)

    async def channel(self, listener: Listener | None = None) -> Channel:
        """Open a channel. Raises BrokerUnavailable."""
        if self.ended is not None:
            raise ChannelLost(self.ended)
        channel = Channel(self, self._number(), listener)
        self._channels[channel.number] = channel
        await channel.call(commands.Channel.Open(), commands.Channel.OpenOk)
        return channel

    def forget(self, channel: Channel) -> None:
        """Let the number of a closed channel be used again."""
        if self._channels.pop(channel.number, None) is not None:
            self._free.append(channel.number)

    def write(self, data: bytes) -> None:
        """Send bytes."""
        if self._transport is not None and self.ended is None:
            self._transport.write(data)

    async def close(self) -> None:
        """Close in good order; the caller limits the time."""
        if self.ended is None:
            try:
                await self._zero.begin(commands.Connection.Close(_SUCCESS, "", 0, 0))
            except BrokerUnavailable:
                pass
            finally:
                self.abort("the connection was closed")

    def abort(self, reason: str, *, silent: bool = False) -> None:
        """End it at once, without a word to the broker."""
        self._end(Closed(reason=reason, silent=silent))

    # What the loop calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin to listen."""
        if isinstance(transport, asyncio.Transport):  # nothing else is ever made for TCP
            self._transport = transport
        self.heard_at = self._loop.time()

    def connection_lost(self, exc: Exception | None) -> None:
        """Tell everybody."""
        self._end(Closed(reason=f"connection lost: {exc or 'closed by the broker'}"))

    def data_received(self, data: bytes) -> None:
        """Take frames apart; what is left waits for the rest of it."""
        self.heard_at = self._loop.time()
        if self._rest:
            data = self._rest + data
        view, at, size = memoryview(data), 0, len(data)
        try:
            while size - at >= frames.OVERHEAD:
                kind, number, length = frames.FRAME.unpack_from(data, at)
                end = at + 7 + length
                if end >= size:
                    break
                if data[end] != frames.END[0]:
                    raise frames.Malformed("a frame without its end")
                self._frame(kind, number, view[at + 7 : end], data, at)
                at = end + 1
        except (StructError, IndexError, ValueError, exceptions.UnmarshalingException) as error:
            self.abort(f"the broker sent what is not AMQP: {error}")
            return
        self._rest = data[at:]

    def _frame(self, kind: int, number: int, content: memoryview, data: bytes, at: int) -> None:
        channel = self._channels.get(number)
        if kind == frames.HEARTBEAT or channel is None:
            return
        if kind == frames.METHOD:
            index = frames.METHOD_ID.unpack_from(content)[0]
            if number == 0:
                self._control(codec.unmarshal(data[at : at + 8 + len(content)])[2])
            else:
                channel.method(index, content, data[at : at + 8 + len(content)])
        elif kind == frames.HEADER:
            channel.header(content)
        elif kind == frames.BODY:
            channel.body(content)

    def _control(self, method: object) -> None:
        match method:
            case commands.Connection.Start():
                if not self._start.done():
                    self._start.set_result(method)
            case commands.Connection.Close():
                self.write(codec.marshal(commands.Connection.CloseOk(), 0))
                self._end(closed_by(method))
            case commands.Connection.Blocked():
                self._block(method.reason or "no reason given")
            case commands.Connection.Unblocked():
                self._block(None)
            case Frame():
                self._zero.answered(method)

    def _block(self, reason: str | None) -> None:
        self.blocked = reason
        self.unblocking.set()
        self.unblocking.clear()

    def _keep_alive(self, pause: float) -> None:
        if self.ended is not None or pause <= 0:
            return
        silent = self._loop.time() - self.heard_at
        if silent > pause * 4:
            self.abort(
                f"connection lost: no sign of life from the broker for {silent:.0f} s", silent=True
            )
            return
        self.write(frames.frame(frames.HEARTBEAT, 0, b""))
        self._beat = self._loop.call_later(pause, self._keep_alive, pause)

    def _number(self) -> int:
        if self._free:
            return self._free.popleft()
        if self._highest >= self._channel_max:
            raise BrokerUnavailable(f"all {self._channel_max} channels are in use")
        self._highest += 1
        return self._highest

    def _end(self, how: Closed) -> None:
        if self.ended is not None:
            return
        self.ended = how
        if self._beat is not None:
            self._beat.cancel()
        transport, self._transport = self._transport, None
        if transport is not None:
            # What is written already still goes out where the broker said good-bye first.
            transport.close() if how.code else transport.abort()
        if not self._start.done():
            self._start.set_exception(ChannelLost(how))
        for channel in list(self._channels.values()):
            channel.end(how)
        self.done.set()


async def open_connection(
    address: Address, *, tls: Tls | None, heartbeat: int, external: bool, name: str
) -> Connection:
    """Connect and log in; the caller limits the time. Raises BrokerUnavailable."""
    loop = asyncio.get_running_loop()
    make: Callable[[], Connection] = lambda: Connection(address, heartbeat=heartbeat)  # noqa: E731
    try:
        context = tls.context() if tls is not None else None
        _, connection = await loop.create_connection(make, address.host, address.port, ssl=context)
    except (OSError, ValueError) as error:
        raise BrokerUnavailable(f"cannot connect to {address.place}: {error}") from error
    try:
        await connection.shake_hands(external=external, name=name)
    except ChannelLost as lost:
        _refused(address, lost)
    except BaseException:
        connection.abort("the handshake was given up")
        raise
    return connection


def _refused(address: Address, lost: ChannelLost) -> NoReturn:
    raise BrokerUnavailable(f"{address.place} refused the connection: {lost.reason}") from lost


def _version(start: commands.Connection.Start) -> tuple[int, int]:
    said = (start.server_properties or {}).get("version")
    try:
        major, minor, *_ = str(said).split(".")
        return int(major), int(minor)
    except ValueError:
        return 0, 0
