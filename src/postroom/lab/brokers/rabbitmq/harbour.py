"""Where the shops of a run have their RabbitMQ: servers of the lab's own, or one with a name."""

import asyncio
import secrets
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import parse_qs

from postroom._redact import redacted
from postroom.lab.broker import Berth, Harbour, NoBroker
from postroom.lab.brokers.rabbitmq.shop import DELAYS, NAMES, VHOST, RabbitmqShop, address
from postroom.lab.database import Unusable
from postroom.lab.ground import DriverMissing, to_its_end
from postroom.lab.servers.postgresql import new_home
from postroom.lab.servers.rabbitmq import PID_FILES, RabbitmqServer, any_server, ask, make_vhost
from postroom.lab.will import Will

RABBITMQ = "rabbitmq"
_MANAGEMENT = "15672"
SETTINGS: Mapping[str, str] = {"max_message_size": "400000"}
"""More than most scenarios send, and less than the largest message that an outbox takes."""


class OwnServers:
    """Servers that the lab starts when they are needed: one for all, one for who must be alone."""

    name = RABBITMQ

    def __init__(self, will: Will, stack: AsyncExitStack) -> None:
        """Start servers on that stack, which ends them."""
        self._will = will
        self._stack = stack
        self._starting, self._alone = asyncio.Lock(), asyncio.Lock()
        self._common: RabbitmqServer | None = None
        self._spare: RabbitmqServer | None = None

    @asynccontextmanager
    async def berth(self, root: Path, *, alone: bool, shared: bool) -> AsyncIterator[Berth]:
        """Give a virtual host."""
        async with self._spare_one() if alone else self._common_one() as server:
            url = make_vhost(server.url, f"lab-{root.name}")
            place = address(url, management=str(server.api_port), shared=shared)
            yield Berth(address=place, server=server)
            with suppress(Unusable):  # the server itself goes at the end
                RabbitmqShop(place).remove()

    @asynccontextmanager
    async def _common_one(self) -> AsyncIterator[RabbitmqServer]:
        async with self._starting:
            self._common = self._common or await self._started()
        yield self._common

    @asynccontextmanager
    async def _spare_one(self) -> AsyncIterator[RabbitmqServer]:
        async with self._alone:
            server, self._spare = self._spare or await self._started(), None
            yield server
            # Whoever ended badly may have left it in any state.
            self._spare = server

    async def _started(self) -> RabbitmqServer:
        return await self._stack.enter_async_context(started(self._will))


class Named:
    """A server that somebody named: virtual hosts of the lab's own, or names in that one's."""

    name = RABBITMQ

    def __init__(self, will: Will, url: str, management: str, *, hosts: bool) -> None:
        """`hosts`: whether virtual hosts can be made there."""
        self._will = will
        self._url = url
        self._management = management
        self._hosts = hosts
        self._prefix = f"postroom-lab-{secrets.token_hex(4)}"

    @asynccontextmanager
    async def berth(self, root: Path, *, alone: bool, shared: bool) -> AsyncIterator[Berth]:
        """Give a virtual host, or an exchange; `alone` cannot be had here."""
        del alone
        name = f"{self._prefix}-{root.name}"
        place = self._place(name, shared=shared)
        self._will.add_broker(place)
        if self._hosts:
            make_vhost(f"{self._url}?management={self._management}", name)
        try:
            yield Berth(address=place)
        finally:
            RabbitmqShop(place).remove()
            self._will.drop_broker(place)

    def _place(self, name: str, *, shared: bool) -> str:
        if not self._hosts:
            return address(
                self._url,
                exchange=name,
                made=NAMES,
                management=self._management,
                shared=shared,
            )
        url = f"{self._url.rpartition('/')[0]}/{name}"
        return address(url, made=VHOST, management=self._management, shared=shared)


@asynccontextmanager
async def harbour(choice: str, will: Will) -> AsyncIterator[Harbour]:
    """Give what shops use: `rabbitmq`, or the address of a server.

    Raises DriverMissing, ServerMissing where none can be started, and NoBroker where nobody
    answers at the address.
    """
    if find_spec("pamqp") is None:
        raise DriverMissing(
            "the lab needs pamqp for RabbitMQ: install the extra `rabbitmq` of postroom"
        )
    if choice == RABBITMQ:
        any_server()  # says at once if there is none
        async with AsyncExitStack() as servers:
            yield OwnServers(will, servers)
        return
    url, _, query = choice.partition("?")
    management = parse_qs(query).get("management", [_MANAGEMENT])[0]
    # Without a path it is the virtual host `/`.
    url = url if "/" in url.partition("://")[2] else f"{url}/"
    hosts = _makes_hosts(url, management)
    async with AsyncExitStack() as stack:
        if not hosts:
            await stack.enter_async_context(_delays(url, management, will))
        yield Named(will, url, management, hosts=hosts)


@asynccontextmanager
async def started(will: Will) -> AsyncIterator[RabbitmqServer]:
    """Give a server that runs; it is removed at the end."""
    home = new_home(RABBITMQ)
    will.add_server(home, *PID_FILES)
    server = any_server(home=home, settings=SETTINGS)
    try:
        await to_its_end(server.start)
        yield server
    finally:
        server.remove()
        will.drop_server(home)


@asynccontextmanager
async def _delays(url: str, management: str, will: Will) -> AsyncIterator[None]:
    """Remove the delay queues that all shops of a virtual host share, if they were not there."""
    place = address(url, made=DELAYS, management=management)
    shop = RabbitmqShop(place)
    try:
        there = shop.has_delays()
    except Unusable as error:
        raise NoBroker(f"{redacted(url)} cannot be used: {error}") from error
    if there:
        yield
        return
    will.add_broker(place)
    try:
        yield
    finally:
        shop.remove()
        will.drop_broker(place)


def _makes_hosts(url: str, management: str) -> bool:
    """Try whether this user may make a virtual host there."""
    server = f"{url}?management={management}"
    name = f"postroom-lab-{secrets.token_hex(4)}"
    try:
        make_vhost(server, name)
        ask(server, "DELETE", f"/vhosts/{name}")
    except (OSError, ValueError):
        return False
    return True
