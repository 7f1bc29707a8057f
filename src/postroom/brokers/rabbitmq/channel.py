"""One channel of a connection: calls and their answers, contents, and how it ends."""

import asyncio
from collections import deque
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from pamqp import commands
from pamqp import frame as codec
from pamqp.base import Frame

from postroom.brokers.rabbitmq import frames
from postroom.errors import BrokerUnavailable

F = TypeVar("F", bound=Frame)

_SUCCESS = 200
_OURS = 0
_NO_FAULT = frozenset({320, 403, 404})
"""Forced by an operator, access refused, not found: no message is to blame for these."""


class Wire(Protocol):
    """What a channel needs of its connection."""

    def write(self, data: bytes) -> None:
        """Send bytes."""

    def forget(self, channel: "Channel") -> None:
        """Let the number of a closed channel be used again."""

    def abort(self, reason: str) -> None:
        """End the connection at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Closed:
    """How a channel ended, or the whole connection."""

    reason: str
    code: int = _OURS
    """The broker's reply code; 0 where nothing was said."""
    method: int = 0
    """What the broker was doing when it closed: class and method."""
    silent: bool = False
    """Nothing came from the broker any more, so we gave it up."""

    @property
    def error_reply(self) -> str | None:
        """The broker's words, where it closed because of a message that it was given."""
        if self.code in {_OURS, *_NO_FAULT}:
            return None
        # The frame errors (501 to 505) are said of the connection, without naming a method.
        return (
            self.reason if self.method == frames.PUBLISH or self.code in range(501, 506) else None
        )


class ChannelLost(BrokerUnavailable):
    """The channel, or the connection under it, has ended."""

    def __init__(self, closed: Closed) -> None:
        """Say how."""
        super().__init__(closed.reason)
        self.closed = closed


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrived:
    """A content from the broker, and the method that brought it."""

    method: int
    tag: int = 0
    redelivered: bool = False
    code: int = 0
    """Why it was returned."""
    text: str = ""
    routing_key: bytes
    header: bytes
    """The frame with the properties, as it came."""
    body: bytes


class Listener(Protocol):
    """Who is told what happens on a channel."""

    def acknowledged(self, tag: int, *, multiple: bool, positive: bool) -> None:
        """Hear a publisher confirm."""

    def arrived(self, content: Arrived) -> None:
        """Take a delivery or a returned message."""

    def cancelled(self) -> None:
        """Hear that the broker has ended the consumer."""

    def closed(self, how: Closed) -> None:
        """Hear that nothing more comes."""


class Channel:
    """One channel. Calls are answered in order, so any number may be under way."""

    def __init__(self, connection: Wire, number: int, listener: Listener | None) -> None:
        """Belong to that connection."""
        self.connection = connection
        self.number = number
        self.ended: Closed | None = None
        self.listener = listener
        self._calls: deque[asyncio.Future[Frame]] = deque()
        self._closing: asyncio.Future[Frame] | None = None
        self._incoming: tuple[int, memoryview] | None = None
        self._header = b""
        self._missing = 0
        self._body: list[bytes] = []

    def begin(self, method: Frame) -> "asyncio.Future[Frame]":
        """Send a method; the future is its answer, or raises ChannelLost."""
        future: asyncio.Future[Frame] = asyncio.get_running_loop().create_future()
        future.add_done_callback(look)
        if self.ended is not None:
            future.set_exception(ChannelLost(self.ended))
            return future
        self._calls.append(future)
        self.connection.write(codec.marshal(method, self.number))
        return future

    async def call(self, method: Frame, kind: type[F]) -> F:
        """Send a method and return its answer, which must be of that kind."""
        answer = await self.begin(method)
        if not isinstance(answer, kind):
            self.connection.abort(f"the broker answered {answer.name} to {method.name}")
            raise BrokerUnavailable(f"unexpected {answer.name}")
        return answer

    def write(self, data: bytes) -> None:
        """Send frames that have no answer. Raises ChannelLost."""
        if self.ended is not None:
            raise ChannelLost(self.ended)
        self.connection.write(data)

    async def close(self) -> None:
        """Close it and wait for the broker's word; never raises for what the network does."""
        if (closing := self.drop()) is not None:
            with suppress(ChannelLost):
                await asyncio.shield(closing)

    def drop(self) -> "asyncio.Future[Frame] | None":
        """Close it and wait for nothing; the future, if it was open, is the broker's word."""
        if self.ended is not None:
            return None
        pending = tuple(self._calls)
        closing = self._closing = self.begin(commands.Channel.Close(_SUCCESS, "", 0, 0))
        # Only then may its number be used again: until then answers to old calls arrive on it.
        closing.add_done_callback(lambda _: self.connection.forget(self))
        how = Closed(reason="the channel was closed")
        for call in pending:
            if not call.done():
                call.set_exception(ChannelLost(how))
        self._say(how)
        return closing

    def end(self, how: Closed) -> None:
        """Fail everything that waits, and tell the listener."""
        calls, self._calls = self._calls, deque()
        for call in calls:
            if not call.done():
                call.set_exception(ChannelLost(how))
        self._say(how)

    def _say(self, how: Closed) -> None:
        if self.ended is None:
            self.ended = how
            if self.listener is not None:
                self.listener.closed(how)

    def method(self, index: int, data: memoryview, whole: bytes) -> None:
        """Take a method frame."""
        match index:
            case frames.ACK | frames.NACK:
                if self.listener is not None:
                    tag = frames.LONGLONG.unpack_from(data, 4)[0]
                    self.listener.acknowledged(
                        tag, multiple=bool(data[12] & 1), positive=index == frames.ACK
                    )
            case frames.DELIVER | frames.RETURN | frames.GET_OK:
                self._incoming = index, data
            case _:
                self._other(codec.unmarshal(whole)[2])

    def header(self, data: memoryview) -> None:
        """Take the frame with the properties of a content."""
        self._header = bytes(data)
        self._missing = frames.LONGLONG.unpack_from(data, 4)[0]
        self._body = []
        if not self._missing:
            self._complete()

    def body(self, data: memoryview) -> None:
        """Take a piece of the body of a content."""
        self._body.append(bytes(data))
        self._missing -= len(data)
        if self._missing <= 0:
            self._complete()

    def _complete(self) -> None:
        incoming, self._incoming = self._incoming, None
        if incoming is None:
            raise frames.Malformed("a content without a method")
        content = _arrived(*incoming, header=self._header, body=b"".join(self._body))
        if content.method == frames.GET_OK:
            answer = GetOk(content)
            self.answered(answer)
        elif self.listener is not None:
            self.listener.arrived(content)

    def _other(self, method: object) -> None:
        match method:
            case commands.Channel.Close():
                self.connection.write(codec.marshal(commands.Channel.CloseOk(), self.number))
                if self._closing is not None:
                    self._calls = deque([self._closing])  # ours is answered too, nothing else is
                else:
                    self.connection.forget(self)
                    self.end(closed_by(method))
            case commands.Basic.Cancel():
                if self.listener is not None:
                    self.listener.cancelled()
            case Frame():
                self.answered(method)

    def answered(self, method: Frame) -> None:
        """Give the oldest call its answer."""
        if self._calls:
            call = self._calls.popleft()
            if not call.done():
                call.set_result(method)


class GetOk(Frame):
    """The answer to `basic.get`, with its content."""

    name = "Basic.GetOk"

    def __init__(self, content: Arrived) -> None:
        """Keep the content."""
        self.content = content


def closed_by(method: commands.Channel.Close | commands.Connection.Close) -> Closed:
    """Return what the broker said when it closed."""
    code = method.reply_code or 0
    return Closed(
        reason=f"{code} {method.reply_text}",
        code=code,
        method=(method.class_id or 0) << 16 | (method.method_id or 0),
    )


def _arrived(index: int, data: memoryview, *, header: bytes, body: bytes) -> Arrived:
    """Read the method that announced a content."""
    if index == frames.RETURN:
        code = int.from_bytes(data[4:6])
        text, at = _short(data, 6)
        _, at = _short(data, at)
        key, _ = _short(data, at)
        said = frames.readable(text)
        return Arrived(
            method=index, code=code, text=said, routing_key=key, header=header, body=body
        )
    at = 4
    if index == frames.DELIVER:
        _, at = _short(data, at)
    tag = frames.LONGLONG.unpack_from(data, at)[0]
    redelivered = bool(data[at + 8] & 1)
    _, at = _short(data, at + 9)
    key, _ = _short(data, at)
    return Arrived(
        method=index, tag=tag, redelivered=redelivered, routing_key=key, header=header, body=body
    )


def _short(data: memoryview, at: int) -> tuple[bytes, int]:
    end = at + 1 + data[at]
    return bytes(data[at + 1 : end]), end


def look(future: "asyncio.Future[Any]") -> None:
    """Nobody has to ask for the failure of a call that was given up."""
    if not future.cancelled():
        future.exception()
