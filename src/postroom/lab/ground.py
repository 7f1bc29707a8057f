"""What the shops of one run stand on: files, a database that was named, or a server of its own."""

import asyncio
import secrets
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Protocol

from postroom.lab.broker import Berth, BrokerServer
from postroom.lab.places import Places
from postroom.lab.servers.postgresql import PID_FILE, PostgresqlServer, any_server, new_home
from postroom.lab.will import Will

SQLITE = "sqlite"
POSTGRESQL = "postgresql"


class DriverMissing(Exception):
    """The client library for this database is not installed; the message says how to get it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """Where one shop stands."""

    places: Places
    server: PostgresqlServer | None = None
    """The server of its databases, if the lab started it."""
    broker: BrokerServer | None = None
    """The server of its broker, if the lab started it."""
    will: Will


def offers(store: str) -> frozenset[str]:
    """Return what scenarios may need, and get from this store."""
    if store == SQLITE:
        return frozenset({SQLITE})
    return frozenset({POSTGRESQL, "server"} if store == POSTGRESQL else {POSTGRESQL})


class Ground(Protocol):
    """What all shops of a run stand on."""

    @property
    def store(self) -> str:
        """The name of the store, for the report."""
        ...

    @property
    def kept(self) -> str:
        """What the names of the schemas begin with that are left on a server; empty if none."""
        ...

    def site(
        self, root: Path, berth: Berth, *, alone: bool = False
    ) -> AbstractAsyncContextManager[Site]:
        """Give a place for one shop; `alone`, with a server that nobody else uses."""
        ...


class Files:
    """SQLite files."""

    store = SQLITE
    kept = ""

    def __init__(self, will: Will) -> None:
        """Name the will of the run."""
        self._will = will

    @asynccontextmanager
    async def site(self, root: Path, berth: Berth, *, alone: bool = False) -> AsyncIterator[Site]:
        """Give a folder."""
        del alone
        places = Places(root, broker_address=berth.address)
        try:
            yield Site(places=places, broker=berth.server, will=self._will)
        finally:
            places.close()


class Address:
    """Schemas of their own in a database that somebody named."""

    store = POSTGRESQL

    def __init__(self, will: Will, address: str, *, keep: bool = False) -> None:
        """Name the database; `keep` leaves the schemas there."""
        self._will = will
        self._address = address
        self._prefix = f"postroom_lab_{secrets.token_hex(4)}"
        self.kept = self._prefix if keep else ""
        if not keep:
            will.schemas.append((address, self._prefix))
            will.write()

    @asynccontextmanager
    async def site(self, root: Path, berth: Berth, *, alone: bool = False) -> AsyncIterator[Site]:
        """Give schemas with names that nobody else has."""
        del alone
        schema = f"{self._prefix}_{_slug(root)}"
        places = Places(root, self._address, schema, berth.address)
        try:
            yield Site(places=places, broker=berth.server, will=self._will)
        finally:
            try:
                if not self.kept:
                    places.remove()
            finally:
                places.close()


class OwnServers:
    """PostgreSQL servers that the lab starts: one for all, and more for who needs one alone."""

    store = POSTGRESQL
    kept = ""

    def __init__(self, will: Will, server: PostgresqlServer) -> None:
        """Use that server, which runs, for all who do not need one alone."""
        self._will = will
        self._server = server

    @asynccontextmanager
    async def site(self, root: Path, berth: Berth, *, alone: bool = False) -> AsyncIterator[Site]:
        """Give schemas; they go with the server."""
        async with AsyncExitStack() as stack:
            server = self._server
            if alone:
                server = await stack.enter_async_context(started(self._will))
            places = Places(root, server.url, f"lab_{_slug(root)}", berth.address)
            stack.callback(places.close)
            yield Site(places=places, server=server, broker=berth.server, will=self._will)


@asynccontextmanager
async def ground(store: str, will: Will, *, keep: bool = False) -> AsyncIterator[Ground]:
    """Give what shops stand on: `sqlite`, `postgresql`, or the address of such a database.

    Raises DriverMissing, ServerMissing where no server can be started, and Unusable where nobody
    answers at the address.
    """
    if store == SQLITE:
        yield Files(will)
        return
    if find_spec("asyncpg") is None:
        raise DriverMissing(
            "the lab needs asyncpg for PostgreSQL: install the extra `postgresql` of postroom"
        )
    if store != POSTGRESQL:
        require_answer(store)
        yield Address(will, store, keep=keep)
        return
    async with started(will) as server:
        yield OwnServers(will, server)


@asynccontextmanager
async def started(will: Will) -> AsyncIterator[PostgresqlServer]:
    """Give a server that runs; it is removed at the end."""
    home = new_home("postgresql")
    will.add_server(home, PID_FILE)
    server = any_server(home=home)
    try:
        await to_its_end(server.start)
        yield server
    finally:
        server.remove()
        will.drop_server(home)


async def to_its_end(work: Callable[[], None]) -> None:
    """Do in a thread what cannot be left half done; a cancellation follows it."""
    task = asyncio.ensure_future(asyncio.to_thread(work))
    try:
        await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait((task,))
        raise


def require_answer(address: str) -> None:
    """Raise Unusable unless there is such a database."""
    places = Places(Path(), address, "none")
    try:
        places.shop.read("SELECT 1")
    finally:
        places.close()


def _slug(root: Path) -> str:
    return root.name.replace("-", "_")
