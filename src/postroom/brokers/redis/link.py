"""A connection that is there when it is needed: made on demand, and again after it was lost.

redis-py connects, logs in and reads replies. Its pools and clients are not used, because they
send a command again by themselves when the connection is lost: a message would be there twice,
and behind its successors.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Protocol, cast

from redis.asyncio.connection import Connection, SSLConnection
from redis.exceptions import (
    AuthenticationError,
    BusyLoadingError,
    NoScriptError,
    RedisError,
    ResponseError,
)

from postroom.brokers.redis.address import Address
from postroom.brokers.redis.scripts import Script
from postroom.brokers.redis.wire import Reply, command, told
from postroom.brokers.tls import Tls
from postroom.errors import BrokerUnavailable

_REFUSALS = (AuthenticationError, BusyLoadingError)
"""Replies that redis-py takes for a lost connection."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """How to connect."""

    address: Address
    tls: Tls | None
    connect_timeout: timedelta

    @property
    def patience(self) -> float:
        """Seconds to wait for a connection, and for an answer."""
        return self.connect_timeout.total_seconds()


class Wire(Protocol):
    """What is used of redis-py's connection."""

    @property
    def is_connected(self) -> bool:
        """Whether it was made and not ended by us."""
        ...

    async def connect(self) -> None:
        """Connect and log in."""
        ...

    async def send_packed_command(self, command: bytes, *, check_health: bool = ...) -> None:
        """Write."""
        ...

    async def read_response(self, *, disable_decoding: bool = ...) -> Reply:
        """Return the next reply; raises what is an error."""
        ...

    async def disconnect(self, *, nowait: bool = ...) -> None:
        """Close it."""
        ...


class Broken(Exception):
    """The connection ended before every reply was there."""

    def __init__(
        self, reason: str, replies: list[Reply], *, timed_out: bool = False, refused: bool = False
    ) -> None:
        """Keep what came before. `refused`: the server said no to the next command."""
        super().__init__(reason)
        self.reason = reason
        self.replies = replies
        self.timed_out = timed_out
        self.refused = refused


class Link:
    """One connection at a time; whoever needs it while there is none makes it."""

    def __init__(self, options: Options, name: str) -> None:
        """Connect by these options, under a name that operators see."""
        self._options = options
        self._name = name
        self._turn = asyncio.Lock()
        self._connection: Wire | None = None
        self._closed = False
        self.largest: int | None = None
        """The longest part of a command that the server takes, if it told."""

    @property
    def place(self) -> str:
        """Where it leads, for people."""
        return self._options.address.place

    async def exchange(self, data: bytes, count: int, *, until: float) -> list[Reply]:
        """Send commands in one write, and return their replies; errors are among them.

        Raises BrokerUnavailable where nothing was sent, and Broken where it was.
        """
        async with self._connection_until(until) as connection:
            return await self._exchange(connection, data, count, until)

    async def ready(self, until: float) -> None:
        """See that there is a connection. Raises BrokerUnavailable."""
        async with self._connection_until(until):
            pass

    @asynccontextmanager
    async def _connection_until(self, until: float) -> AsyncIterator[Wire]:
        """Give the connection, to nobody else meanwhile. Raises BrokerUnavailable."""
        late = BrokerUnavailable(f"{self.place} did not answer in time: nothing was sent")
        try:
            async with asyncio.timeout_at(until):
                await self._turn.acquire()
        except TimeoutError as error:
            raise late from error
        try:
            try:
                async with asyncio.timeout_at(until):
                    connection = await self._connected()
            except TimeoutError as error:
                raise late from error
            if asyncio.get_running_loop().time() >= until:
                raise late
            yield connection
        finally:
            self._turn.release()

    async def run(self, *commands: bytes, timeout: float | None = None) -> list[Reply]:
        """Send commands, and return their replies; errors are among them.

        Raises BrokerUnavailable where a reply is missing.
        """
        now = asyncio.get_running_loop().time()
        until = now + (self._options.patience if timeout is None else timeout)
        try:
            return await self.exchange(b"".join(commands), len(commands), until=until)
        except Broken as broken:
            raise BrokerUnavailable(f"{self.place}: {broken.reason}") from broken

    async def call(self, *parts: str | bytes | int) -> Reply:
        """Run one command. Raises BrokerUnavailable, also for an error of the server."""
        [reply] = await self.run(command(*parts))
        return self.checked(reply)

    async def script(
        self, script: Script, keys: list[bytes], *arguments: str | bytes | int
    ) -> Reply:
        """Run a script; an error of the server is returned. Raises BrokerUnavailable."""
        [reply] = await self.run(script.by_name(keys, arguments))
        if isinstance(reply, NoScriptError):
            [reply] = await self.run(script.in_full(keys, arguments))
        return reply

    def checked(self, reply: Reply) -> Reply:
        """Return a reply that is no error. Raises BrokerUnavailable for one that is."""
        if isinstance(reply, RedisError):
            raise BrokerUnavailable(f"{self.place}: {told(reply)}") from reply
        return reply

    async def close(self) -> None:
        """Disconnect."""
        self._closed = True
        await self.drop()

    async def drop(self) -> None:
        """End the connection at once; the next command makes another."""
        connection, self._connection = self._connection, None
        if connection is not None:
            with suppress(RedisError, OSError):
                await connection.disconnect(nowait=True)

    async def _exchange(
        self, connection: Wire, data: bytes, count: int, until: float
    ) -> list[Reply]:
        replies: list[Reply] = []
        try:
            async with asyncio.timeout_at(until):
                await connection.send_packed_command(data, check_health=False)
                for _ in range(count):
                    replies.append(await _read(connection))  # noqa: PERF401 - kept if it breaks
        except TimeoutError as error:
            await self.drop()
            raise Broken("no answer in time", replies, timed_out=True) from error
        except _REFUSALS as error:
            await self.drop()
            raise Broken(told(error), replies, refused=True) from error
        except (RedisError, OSError) as error:
            await self.drop()
            raise Broken(f"connection lost: {error}", replies) from error
        except BaseException:
            await self.drop()
            raise
        return replies

    async def _connected(self) -> Wire:
        if self._closed:
            raise BrokerUnavailable("the broker was closed")
        if self._connection is not None and await _is_over(self._connection):
            await self.drop()
        if self._connection is None:
            self._connection = await self._connect()
        return self._connection

    async def _connect(self) -> Wire:
        connection = _connection(self._options)
        try:
            async with asyncio.timeout(self._options.patience):
                await connection.connect()
                await self._introduce(connection)
        except TimeoutError as error:
            await _abandon(connection)
            patience = self._options.patience
            raise BrokerUnavailable(f"{self.place} did not answer within {patience:g} s") from error
        except (RedisError, OSError) as error:
            await _abandon(connection)
            why = told(error) if isinstance(error, RedisError) else str(error)
            raise BrokerUnavailable(f"cannot use {self.place}: {why}") from error
        except BaseException:
            await _abandon(connection)
            raise
        return connection

    async def _introduce(self, connection: Wire) -> None:
        """Say our name and ask for the server's limit; either may be forbidden."""
        asked = command("CLIENT", "SETNAME", self._name)
        asked += command("CONFIG", "GET", "proto-max-bulk-len")
        await connection.send_packed_command(asked, check_health=False)
        _, limit = await _read(connection), await _read(connection)
        if isinstance(limit, list) and len(limit) == 2:  # noqa: PLR2004 - a name and a value
            self.largest = int(limit[1])


def _connection(options: Options) -> Wire:
    address = options.address
    known: dict[str, Any] = {
        "host": address.host,
        "port": address.port,
        "db": address.database,
        "username": address.username,
        "password": address.password,
        "protocol": 2,
        # Every wait has its own end, said by whoever waits.
        "socket_timeout": None,
        "socket_connect_timeout": options.patience,
        "socket_keepalive": True,
    }
    if options.tls is None:
        return cast("Wire", Connection(**known))
    return cast("Wire", SSLConnection(**known, **_protected(options.tls)))


async def _read(connection: Wire) -> Reply:
    try:
        return await connection.read_response(disable_decoding=True)
    except ResponseError as error:
        return error


async def _is_over(connection: Wire) -> bool:
    """Whether the server has closed it, or said what nobody asked."""
    look = getattr(connection, "can_read", None)  # before redis-py 8 nothing can tell
    for _ in range(2):  # let the loop see what has arrived, and hand it on
        await asyncio.sleep(0)
    try:
        return not connection.is_connected or (look is not None and bool(await look()))
    except (RedisError, OSError):
        return True


async def _abandon(connection: Wire) -> None:
    with suppress(RedisError, OSError):
        await connection.disconnect(nowait=True)


def _protected(tls: Tls) -> dict[str, Any]:
    """Return how the wire is protected, as redis-py takes it."""
    return {
        "ssl_ca_certs": tls.cacertfile,
        "ssl_certfile": tls.certfile,
        "ssl_keyfile": tls.keyfile,
        "ssl_cert_reqs": "required" if tls.verify else "none",
        "ssl_check_hostname": tls.verify,
    }
