"""What is measured: a shop's messages, an outbox with a backlog, a broker with a group."""

import asyncio
import os
import shutil
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from itertools import islice
from pathlib import Path

from postroom import message
from postroom.brokers.sqlite import EmbeddedBroker
from postroom.codecs import encode
from postroom.events import Event, LanesTaken, Sent
from postroom.message import Message, message_type
from postroom.relay import Relay, RelayBroker
from postroom.relay.options import RelayOptions
from postroom.route import Route, Routes
from postroom.store import Addressed
from postroom.stores.sqlite import SqliteStore

ROUTE = Route()
CUSTOMERS = 1_000
GROUP = "billing"
_CHUNK = 10_000


@message("shop.order-placed", key="customer", version="number")
@dataclass(frozen=True, slots=True)
class OrderPlaced:
    """What the shop says of an order; about 180 bytes of JSON."""

    number: int
    customer: str
    amount: Decimal
    currency: str
    placed_at: datetime
    note: str = "leave it with the neighbours if nobody opens the door, please"


def order(number: int) -> OrderPlaced:
    """Return the order of that number; its customer is the ordering key."""
    return OrderPlaced(
        number=number,
        customer=customer(number),
        amount=Decimal(number % 10_000) / 100,
        currency="EUR",
        placed_at=datetime.now(UTC),
    )


def customer(number: int) -> str:
    """Return who placed the order of that number."""
    return f"customer-{number % CUSTOMERS:04}"


def topic() -> str:
    """Return the topic of the orders."""
    described = message_type(OrderPlaced)
    assert described is not None
    return described.name


async def new_outbox(path: Path, backlog: Iterator[Message]) -> None:
    """Create a database with these messages in its outbox, faster than a caller would."""
    store = SqliteStore(path)
    await store.open()
    await store.migrate()
    await store.close()
    add(path, backlog)


def add(path: Path, backlog: Iterator[Message]) -> None:
    """Add messages to the outbox of a database, many in a transaction."""
    store = SqliteStore(path)
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("pragma synchronous = off")
        while chunk := [Addressed(ROUTE.name, one) for one in islice(backlog, _CHUNK)]:
            statement = store.insert(chunk)
            connection.execute("begin immediate")
            connection.executemany(statement.sql, statement.rows)
            connection.execute("commit")
        # Else what is measured next would wait for this to be written.
        connection.execute("pragma synchronous = full")
        connection.execute("pragma wal_checkpoint(truncate)")


def orders(count: int, first: int = 0) -> Iterator[Message]:
    """Return that many messages, keys and lanes evenly mixed; all with the same payload."""
    template = encode(order(first), topic=topic())
    for number in range(first, first + count):
        yield Message(
            type=template.type,
            payload=template.payload,
            key=customer(number),
            version=number,
            topic=template.topic,
        )


def copy(template: Path, place: Path) -> Path:
    """Return a copy of a database that nobody has open, all of it on the disk."""
    place.mkdir(parents=True, exist_ok=True)
    made = Path(shutil.copy(template, place / template.name))
    # What is still to be written would be waited for by the first commits that are measured.
    with made.open("rb") as file:
        os.fsync(file.fileno())
    return made


async def new_broker(path: Path) -> EmbeddedBroker:
    """Return an open broker, in a new file, where a group has subscribed to the orders."""
    subscribing = EmbeddedBroker(path)
    await subscribing.open()
    async with subscribing.subscribe([topic()], group=GROUP, prefetch=1):
        pass
    await subscribing.close()  # with the thread that watches for messages
    broker = EmbeddedBroker(path)
    await broker.open()
    return broker


async def relayed(
    outbox: Path,
    count: int,
    *,
    through: Callable[[EmbeddedBroker], RelayBroker] = lambda broker: broker,
    route: Route = ROUTE,
) -> float:
    """Return how many messages a second a relay sends from there: the first `count`."""
    store = SqliteStore(outbox)
    await store.open()
    broker = await new_broker(outbox.with_name("broker.db"))
    stop = asyncio.Event()
    watch = Stopwatch(count, stop)
    relay = Relay(store, through(broker), routes=Routes([route]), observers=[watch.observe])
    try:
        await relay.run(stop)
    finally:
        await broker.close()
        await store.close()
    return watch.rate


class Stopwatch:
    """An observer that stops a relay after so many messages, and knows how long they took."""

    def __init__(self, count: int, stop: asyncio.Event) -> None:
        """Count from the moment at which the relay has its lanes."""
        self._wanted = count
        self._stop = stop
        self._sent = 0
        self._began = 0.0
        self._ended = 0.0

    def observe(self, event: Event) -> None:
        """Look at what the relay tells."""
        if isinstance(event, Sent):
            self._sent += 1
            if self._sent == self._wanted:
                self._ended = time.perf_counter()
                self._stop.set()
        elif isinstance(event, LanesTaken) and not self._began:
            self._began = time.perf_counter()

    @property
    def rate(self) -> float:
        """Messages a second, from the first look to the settlement of the last message."""
        return self._wanted / (self._ended - self._began)


BATCH = RelayOptions().batch
"""What a relay reads at once, unless it is told otherwise."""
