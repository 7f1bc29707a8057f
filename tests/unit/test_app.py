"""Postroom puts the parts together, and takes them apart again."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from textwrap import dedent

import pytest

from postroom import events
from postroom.app import Postroom
from postroom.brokers.memory import MemoryBroker
from postroom.consumer import Consumer, Context
from postroom.errors import SchemaMismatch, SettingsError, StoreError
from postroom.message import Message, State, message
from postroom.relay import RelayOptions
from postroom.route import Route
from postroom.settings import Settings
from postroom.store import Query
from postroom.stores.memory import MemoryStore, MemoryTransaction

OPTIONS = RelayOptions(poll=timedelta(milliseconds=10))


@message("shop.order-placed")
@dataclass
class OrderPlaced:
    """An order came in."""

    number: int


class Arrival:
    """Waits for an event of one kind."""

    def __init__(self, kind: type[events.Event]) -> None:
        self._kind = kind
        self._seen = asyncio.Event()

    def __call__(self, event: events.Event) -> None:
        """Take note."""
        if isinstance(event, self._kind):
            self._seen.set()

    async def wait(self) -> None:
        """Return when there was one."""
        async with asyncio.timeout(5):
            await self._seen.wait()


@pytest.fixture
def settings() -> Settings:
    return Settings(store="memory:", broker="memory:", relay=OPTIONS)


def put(postroom: Postroom, number: int = 1) -> str:
    store = postroom.store
    assert isinstance(store, MemoryStore)
    with store.begin() as transaction:
        (placed,) = postroom.sync_outbox.put(transaction, OrderPlaced(number))
    return placed.id


async def test_the_parts_come_from_the_settings() -> None:
    route = Route(name="orders", types=("shop.*",))

    postroom = Postroom(Settings(store="memory:", broker="memory:", routes=(route,)))

    assert isinstance(postroom.store, MemoryStore)
    assert isinstance(postroom.broker, MemoryBroker)
    assert [each.name for each in postroom.routes] == ["orders", "default"]


async def test_ready_made_parts_come_first(settings: Settings) -> None:
    store, broker = MemoryStore(), MemoryBroker()

    postroom = Postroom(settings, store=store, broker=broker)

    assert postroom.store is store
    assert postroom.broker is broker


def test_from_settings_reads_the_file(tmp_path: Path) -> None:
    path = tmp_path / "shop.toml"
    path.write_text('store = "memory:"\nbroker = "memory:"\n[relay]\nbatch = 7')

    assert Postroom.from_settings(path).settings.relay.batch == 7


def test_a_wrong_address_is_refused_before_anything_is_opened() -> None:
    with pytest.raises(SettingsError):
        Postroom(Settings(store="nothing:"))


async def test_a_message_goes_all_the_way(settings: Settings) -> None:
    """Put, relayed in the background of a program, and handled once."""
    handled, stop = Arrival(events.Acknowledged), asyncio.Event()
    seen: list[int] = []
    async with Postroom(settings) as postroom:
        store = postroom.store
        assert isinstance(store, MemoryStore)
        consumer = Consumer("shipping", begin=store.begin, store=store, observers=[handled])

        @consumer.on(OrderPlaced)
        def ship(order: OrderPlaced, context: Context[MemoryTransaction]) -> None:
            assert context.attempt == 1
            seen.append(order.number)

        async with postroom.running_relay() as relay, asyncio.TaskGroup() as group:
            group.create_task(postroom.run_consumer(consumer, stop))
            put(postroom, 7)
            relay.wake()
            await handled.wait()
            stop.set()

        assert not (await postroom.desk.stats()).relays
    assert seen == [7]


async def test_the_relay_has_the_options_and_observers_of_the_whole(settings: Settings) -> None:
    sent = Arrival(events.Sent)
    stop = asyncio.Event()
    async with Postroom(settings, observers=[sent]) as postroom:
        message_id = put(postroom)
        running = asyncio.create_task(postroom.run_relay(stop))
        await sent.wait()
        stop.set()
        await running

        (entry,) = await postroom.desk.find(Query(ids=(message_id,)))
        assert entry.state is State.SENT


async def test_a_relay_may_have_a_name(settings: Settings) -> None:
    async with Postroom(settings) as postroom:
        names = {postroom.relay(name="relay-1").name for _ in "ab"}
        assert len(names) == 2
        assert all(name.startswith("relay-1-") for name in names)
        assert postroom.relay().name != postroom.relay().name


async def within(postroom: Postroom, error: Exception | None = None) -> None:
    """Be a program with a relay inside, and fail if told to."""
    async with postroom, postroom.running_relay():
        await asyncio.sleep(0)
        if error is not None:
            raise error


async def test_an_error_in_the_block_stops_the_relay_and_is_raised_as_it_is(
    settings: Settings,
) -> None:
    stopped = Arrival(events.RelayStopped)

    with pytest.raises(ZeroDivisionError):
        await within(Postroom(settings, observers=[stopped]), ZeroDivisionError())

    await stopped.wait()


async def test_a_relay_that_cannot_work_says_so_at_the_end_of_the_block(tmp_path: Path) -> None:
    settings = Settings(store=f"sqlite:///{tmp_path}/none.db", broker="memory:")

    with pytest.raises(SchemaMismatch, match="postroom init"):
        await within(Postroom(settings))


async def test_the_end_closes_both(tmp_path: Path) -> None:
    settings = Settings(
        store=f"sqlite:///{tmp_path}/shop.db", broker=f"sqlite:///{tmp_path}/broker.db"
    )
    async with Postroom(settings) as postroom:
        await postroom.store.migrate()
        assert (await postroom.desk.stats()).schema_version == 1

    with pytest.raises(StoreError, match="not open"):
        await postroom.desk.stats()


async def test_what_people_do_is_written_down_under_their_name(settings: Settings) -> None:
    async with Postroom(settings, actor="ann") as postroom:
        store = postroom.store
        assert isinstance(store, MemoryStore)
        with store.begin() as transaction:
            later = datetime.now(UTC) + timedelta(days=1)
            postroom.sync_outbox.put(transaction, OrderPlaced(1), deliver_at=later)

        await postroom.desk.discard(Query(states=(State.SCHEDULED,)))

        (record,) = await postroom.desk.audit()
        assert (record.actor, record.action, record.count) == ("ann", "discard", 1)


async def test_a_consumer_follows_the_routes_of_whoever_runs_it() -> None:
    """What its handler puts goes their way, and it listens where they send its types."""
    mail = Route(name="mail", types=("mail.*",), topic="letters", on_dead="park")
    happened = Arrival(events.Acknowledged)
    postroom = Postroom(
        Settings(store="memory:", broker="memory:", relay=OPTIONS, routes=(mail,)),
        observers=[happened],
    )
    assert isinstance(postroom.store, MemoryStore)
    consumer = Consumer("postman", begin=postroom.store.begin, store=postroom.store)

    @consumer.on("mail.posted")
    def forward(posted: Message, context: Context[MemoryTransaction]) -> None:
        context.put(Message(type="mail.forwarded", payload=posted.payload))

    async with postroom, postroom.running_relay():
        with postroom.store.begin() as transaction:
            postroom.sync_outbox.put(transaction, Message(type="mail.posted", payload=b"dear"))
        stop = asyncio.Event()
        running = asyncio.ensure_future(postroom.run_consumer(consumer, stop))
        await happened.wait()
        stop.set()
        await running
        (forwarded,) = [
            entry
            for entry in await postroom.desk.find(Query())
            if entry.message.type == "mail.forwarded"
        ]

    assert consumer.topics == ("letters",)
    assert (forwarded.route, forwarded.message.topic) == ("mail", "letters")


async def test_by_default_trouble_is_logged_with_its_traceback(
    settings: Settings, caplog: pytest.LogCaptureFixture
) -> None:
    """A first program with a typo in its handler must not be silent."""
    postroom = Postroom(settings)
    assert isinstance(postroom.store, MemoryStore)
    failed = Arrival(events.HandlerFailed)
    consumer = Consumer(
        "billing", begin=postroom.store.begin, store=postroom.store, observers=[failed]
    )

    @consumer.on(OrderPlaced)
    def handle(_order: OrderPlaced, _context: Context[MemoryTransaction]) -> None:
        raise LookupError("no such table: bill")

    async with postroom, postroom.running_relay():
        put(postroom)
        stop = asyncio.Event()
        running = asyncio.ensure_future(postroom.run_consumer(consumer, stop))
        await failed.wait()
        stop.set()
        await running

    (record,) = [one for one in caplog.records if "handler-failed" in str(one.msg)]
    assert "no such table: bill" in record.getMessage()
    assert record.exc_info is not None
    assert "in handle" in caplog.text


@pytest.fixture
def own_signals() -> Iterator[None]:
    """Have the handlers of signals back when the test is over."""
    before = {kind: signal.getsignal(kind) for kind in (signal.SIGTERM, signal.SIGINT)}
    yield
    for kind, earlier in before.items():
        signal.signal(kind, earlier)


@pytest.mark.usefixtures("own_signals")
async def test_serve_ends_in_order_at_a_signal(settings: Settings) -> None:
    stopped, started = Arrival(events.RelayStopped), Arrival(events.ConsumerStarted)
    postroom = Postroom(settings, observers=[stopped, started])
    assert isinstance(postroom.store, MemoryStore)
    consumer = Consumer("billing", begin=postroom.store.begin, store=postroom.store)
    consumer.on(OrderPlaced)(lambda _order, _context: None)

    async with postroom:
        serving = asyncio.ensure_future(postroom.serve(consumer))
        await started.wait()
        os.kill(os.getpid(), signal.SIGTERM)
        await asyncio.wait_for(serving, 5)

    await stopped.wait()


async def test_serve_gives_the_signals_back_where_none_came(settings: Settings) -> None:
    before = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)

    async with Postroom(settings) as postroom:
        with suppress(TimeoutError):
            await asyncio.wait_for(postroom.serve(), 0.1)

    assert (signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)) == before


SERVING = dedent("""
    import asyncio, signal, sys, time
    from postroom import _signals
    from postroom.app import Postroom
    from postroom.settings import Settings

    _signals._ONE_WISH = float(sys.argv[1])

    async def main() -> None:
        async with Postroom(Settings(store="memory:", broker="memory:")) as postroom:
            asyncio.get_running_loop().call_later(0.2, signal.raise_signal, signal.SIGINT)
            await postroom.serve()
            time.sleep(0.01)
            signal.raise_signal(signal.SIGINT)

    asyncio.run(main())
    time.sleep(0.01)
    signal.raise_signal(signal.SIGINT)
    print("ended")
""")


@pytest.mark.parametrize(("wish", "code", "said"), [(1000, 0, "ended\n"), (0, -2, "")])
def test_serve_takes_two_signals_at_once_for_one(wish: int, code: int, said: str) -> None:
    """Also where it has returned by then; a later one has its usual effect."""
    process = subprocess.run(
        [sys.executable, "-c", SERVING, str(wish)],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )

    assert (process.returncode, process.stdout) == (code, said), process.stderr
    assert ("KeyboardInterrupt" in process.stderr) is bool(code)
