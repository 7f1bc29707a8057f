"""What the lab does to the broker and to the wire that leads there."""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass

from postroom.lab.broker import BrokerServer, Routed, Starved, Wired
from postroom.lab.ground import to_its_end
from postroom.lab.servers.proxy import Proxy
from postroom.lab.stage import Stage

_LANE = "broker"
_CAPACITY = 20
"""Messages per second that a saturated broker takes from a relay."""
_SIZE = 400
"""About so many bytes is one on the wire."""


def server(stage: Stage) -> BrokerServer:
    """Return the broker's server, which the lab has started."""
    if stage.site.broker is None:
        raise LookupError("the lab did not start this broker")
    return stage.site.broker


async def crash(stage: Stage) -> None:
    """End the broker and all its processes by SIGKILL."""
    if not stage.broker_kills:
        # What was declared seconds ago is not what a crash of a server that is used is about.
        await to_its_end(server(stage).flush)
    await to_its_end(server(stage).kill)
    stage.broker_kills += 1
    stage.marks.point(_LANE, "killed")
    stage.marks.begin(_LANE, "fault", "down")


async def shut_down(stage: Stage) -> None:
    """End the broker as an administrator does."""
    await to_its_end(server(stage).stop)
    stage.marks.begin(_LANE, "fault", "down")


async def start(stage: Stage) -> None:
    """Start the broker again; returns when it takes connections."""
    await to_its_end(server(stage).start)
    stage.marks.end(_LANE, "fault")


@asynccontextmanager
async def down(stage: Stage, how: Callable[[Stage], Awaitable[None]]) -> AsyncIterator[None]:
    """End the broker, by `crash` or `shut_down`, for the length of a block."""
    await how(stage)
    try:
        yield
    finally:
        await start(stage)


@asynccontextmanager
async def starved(stage: Stage) -> AsyncIterator[None]:
    """Have the broker take nothing for the length of a block."""
    broker = server(stage)
    if not isinstance(broker, Starved):
        raise TypeError("this broker has no alarm")
    await to_its_end(broker.starve)
    stage.marks.begin(_LANE, "fault", "takes nothing")
    try:
        yield
    finally:
        await to_its_end(broker.feed)
        stage.marks.end(_LANE, "fault")


@asynccontextmanager
async def unbound(stage: Stage) -> AsyncIterator[None]:
    """Have no queue bound for the length of a block."""
    broker = stage.places.broker
    if not isinstance(broker, Routed):
        raise TypeError("this broker has no bindings")
    broker.unbind()
    stage.marks.begin(_LANE, "fault", "nothing is bound")
    try:
        yield
    finally:
        broker.bind()
        stage.marks.end(_LANE, "fault")


@contextmanager
def behind_proxy(stage: Stage) -> Iterator[tuple[Proxy, str]]:
    """Give a proxy before the broker, and the shop's address of the broker behind it."""
    broker = stage.places.broker
    if not isinstance(broker, Wired):
        raise TypeError("this broker has no wire")
    with Proxy(broker.host, broker.port) as proxy:
        yield proxy, broker.through(proxy.port)


@dataclass(frozen=True, slots=True, kw_only=True)
class Narrows:
    """A way to the broker that can be made too narrow for what comes."""

    address: str
    """For relays that shall take this way."""
    saturate: Callable[[], None]
    relieve: Callable[[], None]


@contextmanager
def narrows(stage: Stage) -> Iterator[Narrows]:
    """Give such a way: a slow wire where there is a wire, else the wrapper around the broker."""
    if not isinstance(stage.places.broker, Wired):
        yield Narrows(
            address=stage.places.broker_address,
            saturate=lambda: stage.fault("saturated", capacity=_CAPACITY),
            relieve=stage.fault,
        )
        return

    with behind_proxy(stage) as (proxy, address):

        def saturate() -> None:
            proxy.throttle(_CAPACITY * _SIZE)
            stage.marks.begin(_LANE, "fault", "saturated")

        def relieve() -> None:
            proxy.throttle(None)
            stage.marks.end(_LANE, "fault")

        yield Narrows(address=address, saturate=saturate, relieve=relieve)
