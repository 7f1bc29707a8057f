"""The shop's broker, whatever it is: what processes, faults and the judge need of it."""

from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, runtime_checkable

from postroom.broker import Broker

EMBEDDED = "embedded"

FILE = "file"
WIRE = "wire"
ROUTES = "routes"
SERVER = "own server"
ALARM = "alarm"
LIMIT = "limit"
WHY_NOT: Mapping[str, str] = {
    FILE: "it is about the file of the embedded broker",
    WIRE: "it needs a broker with a wire that can be cut",
    ROUTES: "it needs a broker with bindings",
    SERVER: "it needs a broker that the lab starts, and may kill",
    ALARM: "it needs a RabbitMQ that the lab starts, and may starve of memory",
    LIMIT: "it needs a broker that the lab starts, with a limit of its own for messages",
}
"""What scenarios may need of a broker, and what is said where it does not have that."""


class NoBroker(Exception):
    """Nobody answers at the address of a broker, or not to us; the message names the place."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Grave:
    """A dead letter, as the judge reads it."""

    group: str
    message_id: str
    key: str | None
    reason: str
    died_at: float
    """Seconds since 1970."""


class ShopBroker(Protocol):
    """One broker of one shop.

    The judge's methods use no code of the product, and raise `lab.database.Unusable`.
    """

    @property
    def tells_hands(self) -> bool:
        """Whether `left` counts what consumers have in their hands."""
        ...

    def client(self, *, max_message_bytes: int = ...) -> Broker:
        """Return the product's driver, not opened; larger messages it refuses for good."""
        ...

    async def create(self, groups: Sequence[str]) -> None:
        """Make everything that these groups need, and have each copy noted that comes."""
        ...

    def arrivals(self) -> Sequence[str]:
        """Return the id of every copy that was taken, in the order in which they came."""
        ...

    def left(self) -> tuple[int, str]:
        """Return how many deliveries are left, and a text that changes when one is tried."""
        ...

    def waiting(self) -> Mapping[str, Collection[str]]:
        """Return by group what is left, by the ids; complete while nobody consumes."""
        ...

    def graves(self) -> Sequence[Grave]:
        """Return all dead letters."""
        ...

    def remove(self) -> None:
        """Remove what would be left on a server."""
        ...

    def close(self) -> None:
        """Disconnect; it may be used again."""
        ...


@runtime_checkable
class Wired(Protocol):
    """A broker that is reached by a wire (offers WIRE)."""

    @property
    def port(self) -> int:
        """Where it listens, on its host."""
        ...

    @property
    def host(self) -> str:
        """Its host."""
        ...

    def through(self, port: int) -> str:
        """Return the shop's address of it behind a proxy on that port of loopback."""
        ...


@runtime_checkable
class Routed(Protocol):
    """A broker that refuses what no queue is bound for (offers ROUTES)."""

    def unbind(self) -> None:
        """Take every message's way away; what is in queues stays there."""
        ...

    def bind(self) -> None:
        """Give the way back, to all queues in the same moment."""
        ...


class BrokerServer(Protocol):
    """A broker's server that the lab has started (offers SERVER)."""

    def start(self) -> None:
        """Start it; return when it takes connections."""
        ...

    def stop(self) -> None:
        """Shut it down as planned."""
        ...

    def kill(self) -> None:
        """End it and its processes by SIGKILL."""
        ...

    def flush(self) -> None:
        """Have it write down what was made a moment ago; messages are no concern of it."""
        ...


@runtime_checkable
class Starved(Protocol):
    """A server that can be made to take nothing more (offers ALARM)."""

    def starve(self) -> None:
        """Have it refuse those who publish, and nobody else."""
        ...

    def feed(self) -> None:
        """Let it take messages again."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Berth:
    """Where the broker of one shop is."""

    address: str = ""
    """What `Places` takes; empty for the embedded broker."""
    server: BrokerServer | None = None
    """Its server, if the lab started it."""


class Harbour(Protocol):
    """Where all shops of a run have their brokers."""

    @property
    def name(self) -> str:
        """The name of the broker, for the report."""
        ...

    def berth(self, root: Path, *, alone: bool, shared: bool) -> AbstractAsyncContextManager[Berth]:
        """Give a broker to one shop.

        `alone`: on a server that nobody else uses, where the lab starts servers. `shared`: one in
        which several processes of a consumer receive at once.
        """
        ...
