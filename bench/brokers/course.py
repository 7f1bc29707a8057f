"""One broker: how messages come to it by a bare client and by our driver."""

from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

from bench import stage
from postroom.broker import Broker
from postroom.message import Message, new_id

TOPIC = stage.topic()
WINDOW = 500
"""Messages in flight, and those of one batch."""
PAYLOAD = b'{"order_id": "0193a1b2-7c3d", "note": "' + b"x" * 259 + b'"}'
"""300 bytes."""


@dataclass(frozen=True, slots=True)
class Stretch:
    """What is measured once: these messages, to a place of their own."""

    url: str
    name: str
    """Of the exchange, stream or prefix that was made for them."""
    batch: Sequence[Message]

    def parts(self, size: int = WINDOW) -> Iterator[Sequence[Message]]:
        """Return them in batches."""
        for at in range(0, len(self.batch), size):
            yield self.batch[at : at + size]


Way = Callable[[Stretch], Awaitable[float]]
"""Brings them there, or takes them from there; returns messages a second."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Course:
    """A broker, and what is measured there."""

    title: str
    serve: Callable[[str], AbstractContextManager[str]]
    """Gives the address of a server: the one given, or where there is none one that it starts."""
    version: Callable[[str], Coroutine[Any, Any, str]]
    """Says what answers there."""
    made: Callable[[str, str], AbstractAsyncContextManager[None]]
    """Makes a place of that name for the messages, and removes it afterwards."""
    broker: Callable[[str, str], Broker]
    """Returns our driver, not open."""
    bare: Mapping[str, Way]
    """Without the driver; the goals speak of the first."""
    goal: float
    received: Way | None = None
    """Takes them from there without the driver."""

    @property
    def base(self) -> str:
        """What the driver is compared with."""
        return next(iter(self.bare))


class Server(Protocol):
    """A server of our own."""

    def start(self) -> None:
        """Start it."""
        ...

    def remove(self) -> None:
        """End it, and remove its files."""
        ...

    @property
    def url(self) -> str:
        """Where it answers."""
        ...


@contextmanager
def serving(address: str, server: Callable[[], Server]) -> Iterator[str]:
    """Give the address, or that of a server that is started."""
    if "://" in address:
        yield address
        return
    own = server()
    try:
        own.start()
        yield own.url
    finally:
        own.remove()


def messages(count: int) -> Sequence[Message]:
    """Return messages of a thousand keys, as a relay gives them to a broker."""
    return [
        Message(
            id=str(new_id()),
            type=TOPIC,
            topic=TOPIC,
            payload=PAYLOAD,
            key=stage.customer(number),
            version=number,
            headers={"postroom-seq": str(1_000_000 + number), "postroom-epoch": "1"},
        )
        for number in range(count)
    ]
