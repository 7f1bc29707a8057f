"""AMQP for the judge: a client of few words, which waits, and shares no code with the driver."""

import socket
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TypeVar
from urllib.parse import unquote, urlsplit

from pamqp import commands, exceptions
from pamqp import frame as codec
from pamqp.base import Frame
from pamqp.body import ContentBody
from pamqp.header import ContentHeader, ProtocolHeader

from postroom.lab.database import Unusable

F = TypeVar("F", bound=Frame)
_PATIENCE = 5.0
"""Seconds that an answer may take."""
_CHUNK = 65_536
_CHANNEL = 1


class Missing(Unusable):
    """There is no such queue or exchange."""


@dataclass(slots=True)
class Content:
    """A message, as it came."""

    queue: str
    """Where it was; consumers are named like their queues."""
    properties: commands.Basic.Properties
    body: bytes = b""


class Wire:
    """One connection with one channel, made when it is needed, and again after it was lost."""

    def __init__(self, url: str) -> None:
        """Talk to the server and the virtual host of that address."""
        parts = urlsplit(url)
        self.host, self.port = parts.hostname or "", parts.port or 5672
        self._vhost = unquote(parts.path[1:]) or "/"
        self._login = (
            f"\0{unquote(parts.username or 'guest')}\0{unquote(parts.password or 'guest')}"
        )
        self._socket: socket.socket | None = None
        self._unread = b""
        self._method: commands.Basic.Deliver | None = None
        self._content: Content | None = None
        self._size = 0
        self._delivered: list[Content] = []

    @property
    def connected(self) -> bool:
        """Whether there is a connection, as far as is known."""
        return self._socket is not None

    def connect(self) -> None:
        """Connect, if that is to be done; raises Unusable."""
        if self._socket is not None:
            return
        with self._translated():
            self._socket = socket.create_connection((self.host, self.port), timeout=_PATIENCE)
            self._socket.sendall(ProtocolHeader(0, 9, 1).marshal())
            self._await(commands.Connection.Start)
            start = commands.Connection.StartOk(mechanism="PLAIN", response=self._login)
            tune = self._answer([start], commands.Connection.Tune, channel=0)
            # No heartbeats: nobody would be there to send them between two questions.
            ok = commands.Connection.TuneOk(tune.channel_max, tune.frame_max, 0)
            self._answer(
                [ok, commands.Connection.Open(self._vhost)], commands.Connection.OpenOk, channel=0
            )
            self._answer([commands.Channel.Open()], commands.Channel.OpenOk)

    def call(self, method: Frame, answer: type[F]) -> F:
        """Return the answer to a method; raises Missing and Unusable."""
        self.connect()
        with self._translated():
            return self._answer([method], answer)

    def take(self) -> list[Content]:
        """Return what was delivered since the last time."""
        taken, self._delivered = self._delivered, []
        return taken

    def close(self) -> None:
        """Disconnect; what was taken and not acknowledged goes back."""
        held, self._socket = self._socket, None
        self._unread, self._method, self._content, self._delivered = b"", None, None, []
        if held is not None:
            with suppress(OSError):
                held.shutdown(socket.SHUT_RDWR)
            held.close()

    def _answer(self, methods: Sequence[Frame], answer: type[F], channel: int = _CHANNEL) -> F:
        self._send(methods, channel)
        found = self._await(answer)
        if not isinstance(found, answer):  # for the type checker: it waits for nothing else
            raise Unusable("another answer than was asked for")
        return found

    def _send(self, methods: Sequence[Frame], channel: int = _CHANNEL) -> None:
        if self._socket is not None:
            self._socket.sendall(b"".join(codec.marshal(each, channel) for each in methods))

    def _await(self, *answers: type[Frame]) -> Frame:
        until = time.monotonic() + _PATIENCE
        found: deque[Frame] = deque()
        while not found:
            for frame in self._read(until):
                match frame:
                    case commands.Channel.Close():
                        self._send([commands.Channel.CloseOk(), commands.Channel.Open()])
                        self._await(commands.Channel.OpenOk)
                        raise Missing(frame.reply_text)
                    case commands.Connection.Close():
                        raise OSError(frame.reply_text)
                    case _ if isinstance(frame, answers):
                        found.append(frame)
        return found[0]

    def _read(self, until: float) -> list[Frame]:
        """Read what is there, waiting for something; return the methods among it."""
        if self._socket is None:
            raise OSError("not connected")
        self._socket.settimeout(max(until - time.monotonic(), 0.001))
        fresh = self._socket.recv(_CHUNK)
        if not fresh:
            raise OSError("the server has closed the connection")
        self._unread += fresh
        found: list[Frame] = []
        while True:
            try:
                size, _, frame = codec.unmarshal(self._unread)
            except exceptions.UnmarshalingException:
                return found
            self._unread = self._unread[size:]
            if isinstance(frame, commands.Basic.Deliver):
                self._method = frame
            elif isinstance(frame, Frame):
                found.append(frame)
            elif isinstance(frame, ContentHeader | ContentBody):
                self._part(frame)

    def _part(self, frame: ContentHeader | ContentBody) -> None:
        if isinstance(frame, ContentHeader) and self._method is not None:
            queue = getattr(self._method, "consumer_tag", "")
            self._content = Content(queue, frame.properties)
            self._size = frame.body_size
        elif isinstance(frame, ContentBody) and self._content is not None:
            self._content.body += frame.value
        if self._content is not None and len(self._content.body) >= self._size:
            self._delivered.append(self._content)
            self._content = None

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            self.close()
            raise Unusable(f"RabbitMQ: {error or type(error).__name__}") from error
