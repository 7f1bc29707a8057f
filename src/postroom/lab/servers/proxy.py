"""A TCP proxy between a client and a server, whose wire can be cut in several ways."""

import asyncio
import contextlib
import socket
import struct
import threading
from collections.abc import Callable, Coroutine
from enum import Enum, auto
from types import TracebackType
from typing import Any, Self

_CHUNK = 65_536
_RESET = struct.pack("ii", 1, 0)


class Wire(Enum):
    """What becomes of bytes and of new connections."""

    WHOLE = auto()
    """Bytes pass both ways."""
    SILENT = auto()
    """Bytes vanish and nobody is told: a pulled cable, a firewall that drops."""
    REFUSED = auto()
    """New connections are reset at once; open ones are reset too."""


class Proxy:
    """Listens on a free port of loopback and passes everything on, in a thread of its own.

    Example:
        with Proxy("127.0.0.1", 5432) as proxy:
            connect(port=proxy.port)
            proxy.silence()
    """

    def __init__(self, host: str, port: int) -> None:
        """Pass on to that server."""
        self._target = (host, port)
        self._wire = Wire.WHOLE
        self._left: int | None = None
        """Chunks until it goes silent, where that was asked."""
        self._delay = 0.0
        self._rate: float | None = None
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="postroom-proxy")
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._sockets: set[asyncio.StreamWriter] = set()
        self.port = 0
        self.passed = 0
        """How many bytes were passed on, both ways."""

    def __enter__(self) -> Self:
        """Start listening."""
        self._thread.start()
        self._run(self._open())
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close everything."""
        self._run(self._close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def silence(self, *, after: int = 0) -> None:
        """Let all bytes vanish, in open connections and in new ones, without a word.

        Before that so many chunks still pass, both ways and of all connections together.
        """
        self._call(lambda: self._silence(after))

    def refuse(self) -> None:
        """Reset every open connection, and each new one."""
        self._call(lambda: self._set(Wire.REFUSED))
        self._call(self._reset)

    def reset(self) -> None:
        """Reset every open connection; new ones pass."""
        self._call(self._reset)

    def restore(self) -> None:
        """Let new connections pass; those that were silenced are dead and get reset."""
        self._call(self._restore)

    def slow(self, seconds: float) -> None:
        """Hold every chunk back for so long."""
        self._delay = seconds

    def throttle(self, rate: float | None) -> None:
        """Let so many bytes a second pass each way of each connection; None: as many as come."""
        self._rate = rate

    def _set(self, wire: Wire) -> None:
        self._wire, self._left = wire, None

    def _restore(self) -> None:
        # In one turn of the loop: a client that comes back at once is not to be silenced again.
        self._set(Wire.WHOLE)
        self._reset()

    def _silence(self, after: int) -> None:
        if after:
            self._left = after
        else:
            self._set(Wire.SILENT)

    def _count_down(self) -> None:
        if self._left is not None:
            self._silence(self._left - 1)

    def _reset(self) -> None:
        for writer in tuple(self._sockets):
            _abort(writer)

    async def _open(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]

    async def _close(self) -> None:
        if self._server is not None:
            self._server.close()
        self._reset()
        for task in tuple(self._tasks):
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        # Sockets are closed in the turn of the loop after that in which they are given up.
        await asyncio.sleep(0)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if (task := asyncio.current_task()) is not None:
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        try:
            await self._pass_on(reader, writer)
        except asyncio.CancelledError:
            # asyncio would tell of it; it is the end that was asked for.
            return
        finally:
            _abort(writer)

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._wire is Wire.REFUSED:
            return
        try:
            upstream_reader, upstream_writer = await asyncio.open_connection(*self._target)
        except OSError:
            return
        ends = (writer, upstream_writer)
        self._sockets.update(ends)
        pumps = [
            asyncio.ensure_future(self._pump(reader, upstream_writer)),
            asyncio.ensure_future(self._pump(upstream_reader, writer)),
        ]
        try:
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for pump in pumps:
                pump.cancel()
            await asyncio.wait(pumps)
            for end in ends:
                _abort(end)
                self._sockets.discard(end)

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while chunk := await reader.read(self._portion()):
                if self._delay:
                    await asyncio.sleep(self._delay)
                if self._rate is not None:
                    await asyncio.sleep(len(chunk) / self._rate)
                if self._wire is Wire.SILENT:
                    continue
                self._count_down()
                writer.write(chunk)
                await writer.drain()
                self.passed += len(chunk)

    def _portion(self) -> int:
        """Return how much to read at once: of a slow wire a twentieth of a second."""
        return _CHUNK if self._rate is None else max(int(self._rate / 20), 1)

    def _call(self, work: Callable[[], None]) -> None:
        async def called() -> None:
            work()

        self._run(called())

    def _run(self, work: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).result(10)


def _abort(writer: asyncio.StreamWriter) -> None:
    """Close with RST instead of FIN, as a host that has forgotten the connection does."""
    connection = writer.get_extra_info("socket")
    if connection is not None and connection.fileno() >= 0:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
    writer.transport.abort()
