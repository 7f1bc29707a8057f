"""The parts that the lab's processes play."""

import asyncio
import signal
import time
from collections.abc import Awaitable, Callable, Mapping
from datetime import timedelta

from postroom.broker import Broker
from postroom.errors import StoreUnavailable
from postroom.lab import careless, consumers, plants
from postroom.lab.backstage import open_broker, stop_on_sigterm
from postroom.lab.brief import Brief
from postroom.lab.database import Unusable
from postroom.lab.faults import FaultyBroker
from postroom.lab.journal import Journal
from postroom.lab.kill import Trap
from postroom.lab.naive import naive_consumer, naive_orders
from postroom.lab.orders import OrderService
from postroom.relay import Relay, RelayOptions
from postroom.retry import Backoff, RetryPolicy
from postroom.route import Route, Routes
from postroom.store import Store

_PAUSE = 0.1


def _orders(brief: Brief, journal: Journal, trap: Trap) -> None:
    OrderService(brief, journal, trap).run()


def _careless(brief: Brief, journal: Journal, trap: Trap) -> None:
    del trap
    careless.run(brief, journal)


def _relay(brief: Brief, journal: Journal, trap: Trap) -> None:
    asyncio.run(_run_relay(brief, journal, trap))


async def _run_relay(brief: Brief, journal: Journal, trap: Trap) -> None:
    stop = stop_on_sigterm()
    store = plants.relay_store(brief)
    broker = open_broker(brief)
    if not await _opened(store, stop):
        return
    await broker.open()
    relay = Relay(
        store,
        plants.relay_broker(brief, FaultyBroker(broker, brief.places.faults)),
        routes=Routes([Route(retry=_retries(brief), on_dead=brief.on_dead)]),
        options=_relay_options(brief),
        observers=(journal.observe, trap.observe),
    )
    journal.write("ready")
    try:
        await relay.run(stop)
    finally:
        await broker.close()
        await store.close()


async def _opened(store: Store, stop: asyncio.Event) -> bool:
    """Open the store, as often as it takes; return False if it was not to be."""
    while not stop.is_set():
        try:
            await store.open()
        except StoreUnavailable:
            await asyncio.sleep(_PAUSE)
        else:
            return True
    return False


def _locker(brief: Brief, journal: Journal, trap: Trap) -> None:
    """Hold a database's write lock, and do nothing."""
    del trap
    stopping: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _frame: stopping.append(number))
    try:
        with brief.places.database(brief.database).locked():
            journal.write("ready")
            while not stopping:
                time.sleep(0.02)
    except Unusable as error:
        journal.write("refused", error=str(error))


def _naive_orders(brief: Brief, journal: Journal, trap: Trap) -> None:
    del trap
    asyncio.run(_with_broker(brief, journal, naive_orders))


def _naive_consumer(brief: Brief, journal: Journal, trap: Trap) -> None:
    del trap
    asyncio.run(_with_broker(brief, journal, naive_consumer))


async def _with_broker(
    brief: Brief,
    journal: Journal,
    work: Callable[[Brief, Journal, Broker], Awaitable[None]],
) -> None:
    broker = open_broker(brief)
    await broker.open()
    try:
        await work(brief, journal, broker)
    finally:
        await broker.close()


def _retries(brief: Brief) -> RetryPolicy:
    return RetryPolicy(
        max_attempts=brief.attempts,
        backoff=Backoff(initial=timedelta(milliseconds=100), maximum=timedelta(seconds=1)),
    )


def _relay_options(brief: Brief) -> RelayOptions:
    return RelayOptions(
        lease=plants.believed_lease(brief),
        renewal=timedelta(seconds=0.5),
        publish_timeout=timedelta(seconds=brief.publish_timeout),
        batch=100,
        poll=timedelta(seconds=0.2),
        sweep=timedelta(seconds=0.5),
        probe=Backoff(initial=timedelta(milliseconds=100), maximum=timedelta(seconds=0.5)),
    )


ROLES: Mapping[str, Callable[[Brief, Journal, Trap], None]] = {
    "orders": _orders,
    "careless": _careless,
    "relay": _relay,
    "consumer": consumers.run,
    "locker": _locker,
    "naive-orders": _naive_orders,
    "naive-consumer": _naive_consumer,
}


def play(text: str) -> None:
    """Play the part that a brief describes, to its end."""
    brief = Brief.from_json(text)
    journal = Journal(brief.places.journals / f"{brief.name}.jsonl")
    journal.write("started", role=brief.role)
    ROLES[brief.role](brief, journal, Trap(brief.point))
