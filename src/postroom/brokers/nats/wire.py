"""What of nats-py the driver stands on: connecting, TLS, log-in, keep-alive and the parser.

The rest of the client is not used. Its publishing buffers while it reconnects, its futures never
end where the server refuses a message, and a header that it cannot read ends its reading for
good; so messages are written to the socket here, and read as the bytes they came in.
"""

import asyncio
import ssl
from collections.abc import Callable
from contextlib import suppress
from typing import NamedTuple
from urllib.parse import ParseResult

from nats import errors
from nats.aio.client import Client
from nats.aio.transport import Transport

_PERMISSIONS = "permissions violation"


class Arrived(NamedTuple):  # made for every message, in a third of a dataclass's time
    """A message as it came."""

    subject: bytes
    reply: bytes
    headers: bytes
    """With the line `NATS/1.0` and, from the server itself, a status in it; empty without."""
    data: bytes

    @property
    def status(self) -> int:
        """What the server says instead of a message, 0 where it is one."""
        line = self.headers[8:12]
        return int(line) if line[:1] == b" " and line[1:].isdigit() and not self.reply else 0


class Wire(Transport):
    """The socket under a client."""

    def __init__(self, *, secure: bool) -> None:
        """Say nothing in the clear where it has to be secure."""
        self.heard_at = 0.0
        """When bytes came last, in the time of the loop."""
        self._secure = secure
        self._encrypted = False
        self._loop = asyncio.get_running_loop()
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def connect(self, uri: ParseResult, buffer_size: int, connect_timeout: float) -> None:
        """Connect to a server."""
        async with asyncio.timeout(connect_timeout):
            self._streams = await asyncio.open_connection(uri.hostname, uri.port, limit=buffer_size)

    async def connect_tls(
        self,
        uri: str | ParseResult,
        ssl_context: ssl.SSLContext,
        buffer_size: int,
        connect_timeout: float,
    ) -> None:
        """Go on with TLS."""
        del buffer_size
        name = uri if isinstance(uri, str) else uri.hostname
        async with asyncio.timeout(connect_timeout):
            await self._writer.start_tls(ssl_context, server_hostname=name)
        self._encrypted = True

    def write(self, payload: bytes) -> None:
        """Send bytes. Raises before a password goes over a wire that should be encrypted."""
        if self._secure and not self._encrypted:
            raise errors.Error("the server offers no TLS, and the address asks for it")
        self._writer.write(payload)

    def writelines(self, payload: list[bytes]) -> None:
        """Send bytes in pieces."""
        self.write(b"".join(payload))

    async def read(self, buffer_size: int) -> bytes:
        """Return what comes."""
        data = await self._reader.read(buffer_size)
        self.heard_at = self._loop.time()
        return data

    async def readline(self) -> bytes:
        """Return one line."""
        return await self._reader.readline()

    async def drain(self) -> None:
        """Wait until there is room; that the connection is lost is said by reading."""
        with suppress(OSError):
            await self._writer.drain()

    async def wait_closed(self) -> None:
        """Wait until it has ended."""
        with suppress(OSError):
            await self._writer.wait_closed()

    def close(self) -> None:
        """End it after what was written."""
        if self._streams is not None:
            self._writer.close()

    def abort(self) -> None:
        """End it at once; what was not sent yet is never sent."""
        if self._streams is not None:
            self._writer.transport.abort()

    def at_eof(self) -> bool:
        """Whether the server has ended it."""
        return self._reader.at_eof()

    def __bool__(self) -> bool:
        """Say yes: the client would make another one for itself."""
        return True

    @property
    def _reader(self) -> asyncio.StreamReader:
        return self._connected()[0]

    @property
    def _writer(self) -> asyncio.StreamWriter:
        return self._connected()[1]

    def _connected(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if self._streams is None:
            raise ConnectionError("not connected")
        return self._streams


class RawClient(Client):
    """The client of nats-py, whose parser hands on what comes as bytes."""

    def __init__(
        self, wire: Wire, *, arrived: Callable[[int, Arrived], None], said: Callable[[str], None]
    ) -> None:
        """Give messages to `arrived`, by subscription, and the server's errors to `said`."""
        super().__init__()
        self._transport = wire
        self._arrived = arrived
        self._said = said

    async def _process_msg(
        self, sid: int, subject: bytes, reply: bytes, data: bytes, headers: bytes
    ) -> None:
        self._arrived(sid, Arrived(subject, reply, headers or b"", data))

    async def _process_err(self, err_msg: str) -> None:
        self._said(err_msg.strip("'"))
        if _PERMISSIONS not in err_msg:  # with any other the server closes
            await super()._process_err(err_msg)
