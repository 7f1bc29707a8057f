"""One connection to a NATS server: requests and their answers, subscriptions, and how it ends."""

import asyncio
import re
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Protocol
from uuid import uuid4

from nats import errors

from postroom._clock import LONGEST_PATIENCE, check_span
from postroom._redact import redacted
from postroom.brokers.nats.address import Address
from postroom.brokers.nats.mapping import Packed, is_subject
from postroom.brokers.nats.wire import Arrived, RawClient, Wire
from postroom.brokers.tls import Tls
from postroom.errors import BrokerUnavailable, printable

NO_RESPONDERS = 503
_DENIED = re.compile(r'permissions violation for (publish|subscription) to "([^"]*)"')
_ASKED = b"r"
_HOUR = timedelta(hours=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """How to connect."""

    address: Address
    tls: Tls | None
    tls_first: bool
    heartbeat: timedelta
    connect_timeout: timedelta
    inbox_prefix: str

    def __post_init__(self) -> None:
        """Raise ValueError for what could not work."""
        check_span("heartbeat", self.heartbeat, least=timedelta(seconds=1), most=_HOUR)
        check_span(
            "connect_timeout",
            self.connect_timeout,
            least=timedelta(seconds=0.1),
            most=LONGEST_PATIENCE,
        )
        if not is_subject(self.inbox_prefix):
            raise ValueError(f"inbox_prefix {self.inbox_prefix[:40]!r} cannot be a subject")


@dataclass(frozen=True, slots=True, kw_only=True)
class Closed:
    """How a connection ended."""

    reason: str
    error_reply: str | None = None
    """The server's words, where it closed because of something that it was sent."""
    silent: bool = False
    """Nothing came from the server any more, so we gave it up."""


class ConnectionLost(BrokerUnavailable):
    """The connection has ended."""

    def __init__(self, closed: Closed) -> None:
        """Say how."""
        super().__init__(closed.reason)
        self.closed = closed


class NobodyAnswers(BrokerUnavailable):
    """Nobody listens to the subject of a request: no such stream or consumer, or no leader."""


class Listener(Protocol):
    """Who is told what becomes of numbered messages."""

    def answered(self, number: int, arrived: Arrived) -> None:
        """Take the answer to a message."""

    def denied(self, subject: str) -> None:
        """Hear that we may not publish there; in lower case."""

    def ended(self) -> None:
        """Hear that no more answers come."""


class Connection:
    """A connection that is never made anew: who needs another opens another.

    So nothing that was written to a lost one is ever sent later, behind its caller's back.
    """

    def __init__(self, options: Options, name: str) -> None:
        """Connect by these options, under a name that operators see."""
        self._options = options
        self._name = name
        self._loop = asyncio.get_running_loop()
        self._wire = Wire(secure=options.tls is not None)
        self._client = RawClient(self._wire, arrived=self._arrived, said=self._said)
        self._inbox = f"{options.inbox_prefix}.{uuid4().hex}.".encode()
        self._listeners: dict[int, Callable[[Arrived], None]] = {1: self._answered}
        self._last_sid = 1
        self._asked: dict[bytes, tuple[str, asyncio.Future[Arrived]]] = {}
        self._last_asked = 0
        self._trouble: str | None = None
        self._reply: str | None = None
        self.listener: Listener | None = None
        self.ended: Closed | None = None
        self.done = asyncio.Event()

    @property
    def place(self) -> str:
        """Where it leads, as it may be printed."""
        return self._options.address.place

    @property
    def inbox(self) -> bytes:
        """Where answers come to; a number behind it says to which message."""
        return self._inbox

    @property
    def max_payload(self) -> int:
        """The most bytes, headers included, that the server takes in a message."""
        return self._client.max_payload

    @property
    def heard_at(self) -> float:
        """When something came last, in the time of the loop."""
        return self._wire.heard_at

    async def open(self) -> None:
        """Connect and log in; the caller limits the time. Raises BrokerUnavailable."""
        try:
            await self._connect()
        except (errors.Error, OSError, ValueError, TimeoutError) as error:
            self._wire.abort()
            reason = self._trouble if isinstance(error, errors.NoServersError) else None
            raise BrokerUnavailable(
                f"cannot connect to {self.place}: {reason or _told(error)}"
            ) from error
        except BaseException:
            self._wire.abort()
            raise
        self.write(b"SUB %b* 1\r\n" % self._inbox)

    async def _connect(self) -> None:
        address, tls = self._options.address, self._options.tls
        patience = self._options.connect_timeout.total_seconds() / len(address.servers)
        # nats-py says whole seconds of what it gives to asyncio as it is.
        times: dict[str, Any] = {
            "connect_timeout": patience,
            "ping_interval": self._options.heartbeat.total_seconds(),
            "reconnect_time_wait": 0,
        }
        await self._client.connect(
            [f"nats://{server}" for server in address.servers],
            name=self._name,
            error_cb=self._failed,
            closed_cb=self._closed,
            allow_reconnect=False,
            max_reconnect_attempts=1,
            max_outstanding_pings=1,
            tls=tls.context() if tls is not None else None,
            tls_handshake_first=self._options.tls_first,
            user=address.username,
            password=address.password,
            token=address.token,
            **times,
        )

    def write(self, data: bytes) -> None:
        """Send bytes. Raises ConnectionLost."""
        if self.ended is not None:
            raise ConnectionLost(self.ended)
        self._wire.write(data)

    async def request(self, subject: str, data: bytes = b"", *, timeout: float) -> Arrived:
        """Publish and return the answer.

        Raises NobodyAnswers, BrokerUnavailable where none came in time, and ConnectionLost.
        """
        after = b" %d\r\n%b\r\n" % (len(data), data)
        return await self.deliver(Packed(b"PUB %b " % subject.encode(), after, subject), timeout)

    async def deliver(self, message: Packed, timeout: float) -> Arrived:
        """Publish a packed message and return the answer; raises as `request` does."""
        self._last_asked += 1
        token = _ASKED + str(self._last_asked).encode()
        future: asyncio.Future[Arrived] = self._loop.create_future()
        self.write(message.sent(self._inbox + token))
        self._asked[token] = message.subject, future
        try:
            async with asyncio.timeout(timeout):
                arrived = await future
        except TimeoutError as error:
            raise BrokerUnavailable(
                f"{self.place} did not answer {message.subject} within {timeout:g} s"
            ) from error
        finally:
            del self._asked[token]
        if arrived.status == NO_RESPONDERS:
            raise NobodyAnswers(f"nobody answers to {message.subject}")
        return arrived

    def listen(self, subject: bytes, handler: Callable[[Arrived], None]) -> int:
        """Subscribe; return a number for `unlisten`. Raises ConnectionLost."""
        self._last_sid += 1
        self.write(b"SUB %b %d\r\n" % (subject, self._last_sid))
        self._listeners[self._last_sid] = handler
        return self._last_sid

    def unlisten(self, sid: int) -> None:
        """End a subscription; what the server has sent already still comes."""
        if self.ended is None:
            self._wire.write(b"UNSUB %d\r\n" % sid)

    def abort(self, reason: str, *, silent: bool = False) -> None:
        """End the connection at once."""
        self._end(Closed(reason=reason, silent=silent))
        self._wire.abort()

    async def close(self) -> None:
        """Disconnect after what was written; the caller limits the time."""
        self._end(Closed(reason="the connection was closed"))
        with suppress(errors.Error, OSError):
            await self._client.close()

    # What the client calls

    def _arrived(self, sid: int, arrived: Arrived) -> None:
        listener = self._listeners.get(sid)
        if listener is None or self.ended is not None:
            return
        try:
            listener(arrived)
        except Exception as error:  # noqa: BLE001 - nobody would ever read on
            self.abort(f"what came cannot be understood: {printable(repr(error))}")

    def _answered(self, arrived: Arrived) -> None:
        token = arrived.subject[len(self._inbox) :]
        if token.startswith(_ASKED):
            _, future = self._asked.get(token, (None, None))
            if future is not None and not future.done():
                future.set_result(arrived)
        elif self.listener is not None and token.isdigit():
            self.listener.answered(int(token), arrived)

    def _said(self, words: str) -> None:
        match = _DENIED.search(words)
        if match is None:
            self._reply = words
        elif match[1] == "subscription":
            self.abort(f"no permission to subscribe: {words}")
        else:
            self._denied(match[2], words)

    def _denied(self, subject: str, words: str) -> None:
        for asked, future in self._asked.values():
            if asked.lower() == subject and not future.done():
                future.set_exception(BrokerUnavailable(f"no permission: {words}"))
                return
        if self.listener is not None:
            self.listener.denied(subject)

    async def _failed(self, error: Exception) -> None:
        self._trouble = _told(error)

    async def _closed(self) -> None:
        error = self._client.last_error
        stale = isinstance(error, errors.StaleConnectionError)
        if self._reply is not None:
            self._end(Closed(reason=self._reply, error_reply=_blame(self._reply)))
        elif stale and not isinstance(error, errors.UnexpectedEOF):
            self._end(Closed(reason="no sign of life from the server", silent=True))
        else:
            self._end(Closed(reason=f"connection lost: {_told(error)}"))

    def _end(self, how: Closed) -> None:
        if self.ended is not None:
            return
        self.ended = how
        for _, future in self._asked.values():
            if not future.done():
                future.set_exception(ConnectionLost(how))
        if self.listener is not None:
            self.listener.ended()
        self.done.set()


async def open_connection(options: Options, name: str) -> Connection:
    """Connect and log in. Raises BrokerUnavailable."""
    connection = Connection(options, name)
    patience = options.connect_timeout.total_seconds()
    try:
        async with asyncio.timeout(patience):
            await connection.open()
    except TimeoutError as error:
        raise BrokerUnavailable(
            f"{options.address.place} did not answer within {patience:g} s"
        ) from error
    return connection


def _blame(words: str) -> str | None:
    """Return the words where a message may be to blame for them."""
    return words if any(each in words for each in ("maximum", "parser", "protocol")) else None


def _told(error: BaseException | None) -> str:
    """Return what an error of the client says, without what it adds to each, and no secret."""
    if error is None or isinstance(error, errors.UnexpectedEOF):
        return "the server has ended it"
    return redacted(printable(str(error).removeprefix("nats: ") or type(error).__name__))
