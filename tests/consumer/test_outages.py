"""When the consumer's own database, its broker or its process is away."""

import asyncio
import os
import signal
import sqlite3
import subprocess
import sys
from contextlib import closing
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from postroom import events
from postroom.brokers.sqlite import EmbeddedBroker
from postroom.errors import BrokerUnavailable, SchemaMismatch
from postroom.message import Message
from postroom.retry import Backoff
from tests.consumer.conftest import Billing, OrderPlaced, _message


async def test_a_locked_database_pauses_the_consumer_and_spends_no_attempt(
    simple: Billing, tmp_path: Path
) -> None:
    """Not one of the deliveries in flight comes back with an attempt more."""
    path = tmp_path / "billing.db"
    simple.patience = 0.05
    attempts: list[int | None] = []
    simple.invoke = lambda _order, context: attempts.append(context.attempt)
    await simple.publish(*(OrderPlaced(f"c{number}", number) for number in range(50)))
    with closing(sqlite3.connect(path, isolation_level=None)) as locker:
        locker.execute("begin immediate")

        def unlock() -> bool:
            if simple.count(events.ConsumerPaused) == 2 and locker.in_transaction:
                locker.execute("commit")
            return simple.done(50)()

        await simple.consume(simple.consumer(), until=unlock)

    assert len(simple.effects()) == 50
    assert attempts == [1] * 50
    assert simple.count(events.HandlerFailed) == 0
    assert simple.count(events.DeadLettered) == 0
    assert simple.count(events.ConsumerResumed) >= 1


async def test_a_lost_broker_is_waited_for(simple: Billing) -> None:
    await simple.publish(OrderPlaced("ann", 1))
    consumer = simple.consumer()
    paused = False

    def cut() -> bool:
        nonlocal paused
        if simple.done(1)() and not paused:
            paused = True
            asyncio.ensure_future(_cut_and_restore(simple))  # noqa: RUF006 - ends within the test
        return simple.done(2)()

    await simple.consume(consumer, until=cut)

    assert simple.effects() == [("ann", 1), ("ann", 2)]
    assert simple.count(events.ConsumerPaused) >= 1


async def test_a_consumer_is_back_when_its_broker_is(simple: Billing) -> None:
    """While the database answers and the broker does not, it works as little as without both."""
    await simple.publish(OrderPlaced("ann", 1))
    probe = Backoff(initial=timedelta(milliseconds=10), maximum=timedelta(milliseconds=10))
    resumed_early: list[int] = []
    cut = False

    def outage() -> bool:
        nonlocal cut
        if simple.done(1)() and not cut:
            cut = True
            asyncio.ensure_future(simple.broker.close())  # noqa: RUF006 - ends within the test
        if simple.count(events.ConsumerPaused) == 3 and not resumed_early:
            resumed_early.append(simple.count(events.ConsumerResumed))
            asyncio.ensure_future(_restore(simple))  # noqa: RUF006 - ends within the test
        return simple.done(2)()

    await simple.consume(simple.consumer(probe=probe), until=outage)

    assert resumed_early == [0]
    assert simple.count(events.ConsumerResumed) == 1


async def _restore(simple: Billing) -> None:
    await simple.broker.open()
    await simple.publish(OrderPlaced("ann", 2))


async def _cut_and_restore(simple: Billing) -> None:
    await simple.broker.close()
    await simple.broker.open()
    await simple.publish(OrderPlaced("ann", 2))


async def test_a_lost_acknowledgement_leads_to_a_copy_without_effect(simple: Billing) -> None:
    (message,) = await simple.publish(OrderPlaced("ann", 1))
    consumer = simple.consumer()
    delivery = Deaf(message)

    first = await consumer.step(delivery)
    second = await consumer.step(delivery)
    consumer.close()

    assert (first, second) == ("done", "duplicate")
    assert simple.effects() == [("ann", 1)]
    assert simple.count(events.AcknowledgeFailed) == 2


async def test_field_12_dead_letter_failed(simple: Billing) -> None:
    """The dead-letter step fails: the original is not acknowledged and comes again."""

    def fail(_order: OrderPlaced, _context: object) -> None:
        raise ValueError("always")

    simple.invoke = fail
    consumer = simple.consumer()
    delivery = Deaf(_message(OrderPlaced("ann", 1)), attempt=3, hears=("ack", "retry"))

    result = await consumer.step(delivery)
    delivery.hears = ("reject",)
    later = await consumer.step(delivery)
    consumer.close()

    assert (result, later) == ("failed", "dead")
    assert delivery.heard == ["retry", "reject"], "never acknowledged"
    assert simple.count(events.DeadLetterFailed) == 1


async def test_where_nobody_counts_the_consumer_does(simple: Billing) -> None:
    def fail(_order: OrderPlaced, _context: object) -> None:
        raise ValueError("always")

    simple.invoke = fail
    consumer = simple.consumer()
    delivery = Deaf(_message(OrderPlaced("ann", 1)), attempt=None, hears=("ack", "retry", "reject"))

    results = [await consumer.step(delivery) for _ in range(3)]
    consumer.close()

    assert results == ["failed", "failed", "dead"]


async def test_a_message_without_an_id_is_never_handled(simple: Billing) -> None:
    """Two messages without one would be copies of each other."""
    consumer = simple.consumer()
    nameless = replace(_message(OrderPlaced("ann", 1)), id="")
    delivery = Deaf(nameless, hears=("ack", "retry", "reject"))

    result = await consumer.step(delivery)
    consumer.close()

    assert result == "dead"
    assert simple.effects() == []


async def test_a_database_without_tables_is_said_before_anything_is_taken(billing: Billing) -> None:
    """Missing tables are nobody's poison: no delivery is spent on them."""
    with closing(sqlite3.connect(billing.path)) as connection:
        connection.execute("drop table postroom_inbox")
    await billing.publish(OrderPlaced("ann", 1))

    with pytest.raises(SchemaMismatch, match="postroom init"):
        await billing.consumer().run(billing.broker, asyncio.Event())

    assert not [queue for queue in await billing.broker.queues() if queue.group]


CHILD = """
import asyncio, os, signal, sqlite3, sys
from postroom import Consumer, events
from postroom.brokers.sqlite import EmbeddedBroker
from postroom.connections import sqlite3_transactions
from postroom.stores.sqlite import SqliteStore

path, broker_path, moment = sys.argv[1:]
fatal = getattr(events, moment, None)

def die(event):
    if fatal is not None and type(event) is fatal:
        os.kill(os.getpid(), signal.SIGKILL)

consumer = Consumer(
    "billing",
    begin=sqlite3_transactions(path),
    store=SqliteStore(path),
    observers=[die],
)

@consumer.on("shop.order-placed")
def handle(message, context):
    context.connection.execute("insert into effect values ('billing', 'ann', 1)")

async def main():
    from datetime import timedelta
    broker = EmbeddedBroker(broker_path, lease=timedelta(milliseconds=600))
    await broker.open()
    stop = asyncio.Event()
    consumer.observe(
        lambda event: stop.set() if isinstance(event, events.Acknowledged) else None
    )
    async with asyncio.timeout(30):
        await consumer.run(broker, stop)
    await broker.close()

asyncio.run(main())
"""


@pytest.mark.crash
@pytest.mark.parametrize("moment", ["Handling", "Handled", "Committed"])
async def test_field_21_killed_at_every_point_and_handled_once(
    simple: Billing, tmp_path: Path, moment: str
) -> None:
    """A real process dies before or after its commit; the next one finishes, once."""
    broker = EmbeddedBroker(tmp_path / "broker.db")
    await broker.open()
    await broker.publish(
        [replace(_message(OrderPlaced("ann", 1)), topic="shop.order-placed")],
        timeout=timedelta(seconds=5),
    )
    await broker.close()

    killed = await _child(tmp_path, moment)
    between = len(simple.effects()), len(simple.query("select 1 from postroom_inbox"))
    finished = await _child(tmp_path, "nothing")

    assert killed == -signal.SIGKILL
    assert between == ((1, 1) if moment == "Committed" else (0, 0)), "both or neither"
    assert finished == 0
    assert simple.effects() == [("ann", 1)]
    assert len(simple.query("select 1 from postroom_inbox")) == 1


async def _child(directory: Path, moment: str) -> int:
    arguments = [str(directory / "billing.db"), str(directory / "broker.db"), moment]
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", CHILD, *arguments, stdout=subprocess.DEVNULL, env=dict(os.environ)
    )
    return await asyncio.wait_for(process.wait(), 40)


class Deaf:
    """A delivery whose broker hears only some answers."""

    def __init__(
        self, message: Message, *, attempt: int | None = 1, hears: tuple[str, ...] = ()
    ) -> None:
        self.message = message
        self.attempt = attempt
        self.redelivered = False
        self.hears = hears
        self.heard: list[str] = []

    def _hear(self, what: str) -> None:
        if what not in self.hears:
            raise BrokerUnavailable("gone")
        self.heard.append(what)

    async def ack(self) -> None:
        """Acknowledge."""
        self._hear("ack")

    async def retry(self, delay: object, reason: str) -> None:
        """Ask for it again."""
        del delay, reason
        self._hear("retry")

    async def release(self) -> None:
        """Give it back."""
        self._hear("release")

    async def reject(self, reason: str) -> None:
        """Dead-letter it."""
        del reason
        self._hear("reject")
