"""What a consumer does when the broker cannot be told that a message is done."""

import asyncio
import sqlite3
from contextlib import closing
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import pytest

from postroom import events
from postroom.brokers.sqlite import EmbeddedBroker
from postroom.codecs import encode
from postroom.connections import sqlite3_transactions
from postroom.consumer import Consumer, Context
from postroom.events import Event
from postroom.message import message
from postroom.retry import Backoff, RetryPolicy
from postroom.stores.sqlite import SqliteStore


@message("shop.order-placed", key="customer")
@dataclass(frozen=True)
class OrderPlaced:
    """An order; the first one of a customer may be trouble."""

    customer: str
    trouble: bool = False


class Locker:
    """Locks the broker's file at one event of the consumer, until it has noticed."""

    def __init__(self, path: Path, at: type[Event]) -> None:
        self._connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        self._at = at
        self._done = False
        self.failures = 0

    def observe(self, event: Event) -> None:
        """Lock, or let go."""
        if isinstance(event, self._at) and not self._done:
            self._done = True
            self._connection.execute("BEGIN IMMEDIATE")
        elif isinstance(event, events.AcknowledgeFailed | events.ConsumerPaused):
            self.failures += isinstance(event, events.AcknowledgeFailed)
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")

    def close(self) -> None:
        """Disconnect."""
        self._connection.close()


@pytest.fixture
def database(tmp_path: Path) -> Path:
    path = tmp_path / "billing.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE effect (customer)")
    return path


@pytest.mark.parametrize(
    ("at", "orders"),
    [
        (events.Committed, [OrderPlaced("ann"), OrderPlaced("ann")]),
        (events.HandlerFailed, [OrderPlaced("ann", trouble=True), OrderPlaced("ann")]),
    ],
    ids=["ack", "retry"],
)
async def test_a_locked_broker_does_not_keep_a_key_for_ever(
    database: Path, tmp_path: Path, at: type[Event], orders: list[OrderPlaced]
) -> None:
    """It leaves the subscription: a delivery that was not ended would never come again."""
    store = SqliteStore(database)
    await store.open()
    await store.migrate()
    await store.close()
    path = tmp_path / "broker.db"
    broker = EmbeddedBroker(
        path, lease=timedelta(seconds=60), busy_timeout=timedelta(milliseconds=100)
    )
    await broker.open()
    sent = [encode(order, topic="shop.order-placed") for order in orders]
    await broker.publish(sent, timeout=timedelta(seconds=5))
    locker = Locker(path, at)
    stop, seen = asyncio.Event(), set[str]()
    loop = asyncio.get_running_loop()

    def observe(event: Event) -> None:
        if isinstance(event, events.Acknowledged):
            seen.add(event.message.id)
            if len(seen) == len(sent):
                loop.call_soon_threadsafe(stop.set)

    backoff = Backoff(initial=timedelta(milliseconds=5), factor=1)
    consumer = Consumer(
        "billing",
        begin=sqlite3_transactions(database),
        store=store,
        retry=RetryPolicy(max_attempts=10, backoff=backoff),
        observers=[locker.observe, observe],
    )
    failures: list[int] = []

    @consumer.on(OrderPlaced)
    def bill(order: OrderPlaced, context: Context[sqlite3.Connection]) -> None:
        context.connection.execute("INSERT INTO effect VALUES (?)", (order.customer,))
        if order.trouble and not failures:
            failures.append(1)
            raise ValueError("not yet")

    async with asyncio.timeout(20):
        await consumer.run(broker, stop)
    await broker.close()
    locker.close()

    assert locker.failures >= 1
    with closing(sqlite3.connect(database)) as connection:
        assert connection.execute("SELECT count(*) FROM effect").fetchone() == (len(orders),)
