"""The embedded broker and its file: what it refuses, what it survives, and how it waits."""

import asyncio
import resource
import sqlite3
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, closing, contextmanager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from postroom.broker import Broker
from postroom.brokers.sqlite import EmbeddedBroker, publishing
from postroom.errors import (
    BrokerError,
    BrokerUnavailable,
    DeliveryLost,
    OutcomeUnknown,
    RefusedForGood,
)
from postroom.message import Message
from postroom.testing.conformance.broker_stage import drain, receive

SECOND = timedelta(seconds=1)
PATIENCE = timedelta(seconds=10)


@asynccontextmanager
async def opened(path: Path, **settings: Any) -> AsyncIterator[EmbeddedBroker]:
    broker = EmbeddedBroker(path, **settings)
    await broker.open()
    try:
        yield broker
    finally:
        await broker.close()


def message(name: str, *, key: str | None = None, topic: str = "orders") -> Message:
    return Message(type="shop.order-placed", payload=b"{}", id=name, key=key, topic=topic)


async def publish(broker: Broker, *messages: Message) -> None:
    assert list(await broker.publish(messages, timeout=PATIENCE)) == [None] * len(messages)


def kinds(results: object) -> list[type[BrokerError] | None]:
    assert isinstance(results, list)
    return [None if result is None else type(result) for result in results]


# The file


async def test_a_missing_directory_is_an_outage_that_ends_when_it_appears(tmp_path: Path) -> None:
    path = tmp_path / "later" / "broker.db"
    async with opened(path) as broker:
        [result] = await broker.publish([message("a")], timeout=PATIENCE)
        assert isinstance(result, BrokerUnavailable)
        assert str(path) in result.reason
        with pytest.raises(BrokerUnavailable):
            await broker.ping()
        with pytest.raises(BrokerUnavailable):
            async with broker.subscribe(["orders"], group="billing", prefetch=1):
                pass

        path.parent.mkdir()

        await broker.ping()
        await publish(broker, message("a"))


async def test_a_file_that_is_no_database_is_left_alone(path: Path) -> None:
    garbage = b"these are my notes\n" * 1000
    await asyncio.to_thread(path.write_bytes, garbage)
    async with opened(path) as broker:
        [result] = await broker.publish([message("a")], timeout=PATIENCE)

    assert isinstance(result, BrokerUnavailable)
    assert "not a SQLite database" in result.reason
    assert await asyncio.to_thread(path.read_bytes) == garbage


async def test_a_database_of_another_program_is_left_alone(path: Path) -> None:
    with closing(sqlite3.connect(path)) as other:
        other.execute("CREATE TABLE message (mine)")
        other.commit()
    async with opened(path) as broker:
        [result] = await broker.publish([message("a")], timeout=PATIENCE)

    assert isinstance(result, BrokerUnavailable)
    assert "a file of its own" in result.reason
    with closing(sqlite3.connect(path)) as other:
        assert other.execute("PRAGMA journal_mode").fetchone() == ("delete",)


async def test_a_file_of_a_newer_version_is_refused(path: Path) -> None:
    async with opened(path) as broker:
        await publish(broker, message("a"))
    with closing(sqlite3.connect(path)) as newer:
        newer.execute("PRAGMA user_version = 99")

    async with opened(path) as broker:
        with pytest.raises(BrokerUnavailable, match="newer Postroom"):
            await broker.ping()


async def test_many_clients_create_the_file_at_once(path: Path) -> None:
    brokers = [EmbeddedBroker(path) for _ in range(8)]

    await asyncio.gather(*(publish(one, message(str(n))) for n, one in enumerate(brokers)))

    async with brokers[0].subscribe(["orders"], group="billing", prefetch=8) as box:
        assert len(await drain(box, 8)) == 8
    for broker in brokers:
        await broker.close()


async def test_a_file_that_was_replaced_is_not_written_to_any_more(path: Path) -> None:
    """A confirm must not mean a file that no other process can see."""
    async with opened(path) as broker, opened(path) as other:
        await publish(broker, message("a"))
        await asyncio.to_thread(_remove, path)

        await publish(broker, message("b"))

        async with other.subscribe(["orders"], group="billing", prefetch=1) as box:
            assert await drain(box, 1) == ["b"]


async def test_a_waiting_consumer_is_told_that_the_file_is_lost(path: Path) -> None:
    async with (
        opened(path) as broker,
        broker.subscribe(["orders"], group="billing", prefetch=1) as box,
    ):
        waiting = asyncio.create_task(receive(box))
        await asyncio.to_thread(_replace, path, b"no database" * 1000)

        with pytest.raises(BrokerUnavailable, match="not a SQLite database"):
            await waiting
        with pytest.raises(BrokerUnavailable):
            await receive(box)


@pytest.mark.parametrize("change", ["deleted", "replaced", "dropped"])
async def test_a_subscription_that_the_file_does_not_know_is_told(path: Path, change: str) -> None:
    """It would wait for ever; and what it holds must not be taken for messages of the new file."""
    async with opened(path) as broker, opened(path) as other:
        async with broker.subscribe(["orders"], group="billing", prefetch=2) as box:
            await publish(other, message("old"))
            old = await receive(box)
            await _change(change, path, other)
            await publish(other, message("new"))

            with pytest.raises(BrokerUnavailable, match="subscribe again"):
                await receive(box)
            with pytest.raises(DeliveryLost):
                await old.ack()

        async with broker.subscribe(["orders"], group="billing", prefetch=2) as box:
            expected = ["old", "new"] if change == "dropped" else ["new"]
            assert await drain(box, len(expected)) == expected


async def _change(change: str, path: Path, broker: EmbeddedBroker) -> None:
    if change == "dropped":
        await broker.drop_group("billing")
    else:
        await asyncio.to_thread(_remove, path)
    if change == "replaced":  # with a file that knows the group, as a backup does
        async with opened(path) as new, new.subscribe(["orders"], group="billing", prefetch=1):
            pass


def _remove(path: Path) -> None:
    for file in path.parent.glob("broker.db*"):
        file.unlink()


def _replace(path: Path, content: bytes) -> None:
    """Put another file into its place in one step, so that nobody finds none."""
    other = path.with_name("other")
    other.write_bytes(content)
    for file in path.parent.glob("broker.db-*"):
        file.unlink()
    other.replace(path)


async def test_a_full_disk_is_an_outage(path: Path) -> None:
    async with opened(path) as broker:
        await publish(broker, message("a"))
        _limit_pages(broker)

        results = await broker.publish(
            [replace(message("b"), payload=b"x" * 900_000)], timeout=SECOND
        )

    assert kinds(results) == [BrokerUnavailable]
    async with (
        opened(path) as broker,
        broker.subscribe(["orders"], group="billing", prefetch=5) as box,
    ):
        assert (await receive(box)).message.id == "a"


def _limit_pages(broker: EmbeddedBroker) -> None:
    worker = broker._worker
    assert worker is not None
    pages = worker.read(lambda c: c.execute("PRAGMA max_page_count = 60").fetchone(), patience=5)
    pages.result(5)


async def test_an_error_at_the_commit_leaves_the_outcome_unknown(path: Path) -> None:
    """The disk fails in the middle of the commit; whether it counts, nobody can say."""
    async with opened(path) as broker:
        await publish(broker, message("a"))
        large = replace(message("b"), payload=b"x" * 900_000)

        with files_no_larger_than(200_000):
            results = await broker.publish([large], timeout=PATIENCE)

        assert kinds(results) == [OutcomeUnknown]
        await publish(broker, message("c"))
        async with broker.subscribe(["orders"], group="billing", prefetch=5) as box:
            assert set(await drain(box, 2)) >= {"a"}


@contextmanager
def files_no_larger_than(limit: int) -> Iterator[None]:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


async def test_messages_that_no_file_can_hold_are_refused_for_good(path: Path) -> None:
    surrogate = replace(message("a", key="k"), headers={"name": "\ud83d"})
    huge = replace(message("b"), version=2**63)
    async with opened(path) as broker:
        results = await broker.publish([surrogate, huge, message("c")], timeout=PATIENCE)

    assert kinds(results) == [RefusedForGood, RefusedForGood, None]


@pytest.mark.parametrize(
    "settings",
    [
        {"path": ":memory:"},
        {"max_message_bytes": 0},
        {"max_message_bytes": 10**9},
        {"lease": timedelta(0)},
    ],
)
def test_settings_that_cannot_work_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"."):
        EmbeddedBroker(**{"path": "broker.db", **settings})


# Time-outs and cancellation


class Gate:
    """Stops the broker's thread in the middle of a publish, until it is opened."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Stand in the way of every publish."""
        self.reached = threading.Event()
        self.opened = threading.Event()
        real = publishing.publish

        def publish(*args: Any, **kwargs: Any) -> None:
            self.reached.set()
            assert self.opened.wait(10)
            real(*args, **kwargs)

        monkeypatch.setattr(publishing, "publish", publish)


async def test_a_publish_that_is_late_has_an_unknown_outcome(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The late commit arrives all the same, and breaks nothing."""
    async with opened(path) as broker:
        await broker.ping()
        gate = Gate(monkeypatch)

        [result] = await broker.publish([message("a")], timeout=timedelta(seconds=0.2))
        gate.opened.set()

        assert isinstance(result, OutcomeUnknown)
        assert result.timed_out
        await publish(broker, message("b"))
        async with broker.subscribe(["orders"], group="billing", prefetch=2) as box:
            assert await drain(box, 2) == ["a", "b"]


async def test_a_publish_behind_a_late_one_was_not_even_begun(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(path) as broker:
        await broker.ping()
        gate = Gate(monkeypatch)
        first = asyncio.create_task(broker.publish([message("a")], timeout=PATIENCE))
        await asyncio.to_thread(gate.reached.wait, 10)

        results = await broker.publish([message("b")], timeout=timedelta(seconds=0.2))
        gate.opened.set()

        assert kinds(results) == [BrokerUnavailable]
        assert kinds(await first) == [None]
        await publish(broker, message("c"))
        async with broker.subscribe(["orders"], group="billing", prefetch=2) as box:
            assert await drain(box, 2) == ["a", "c"]


async def test_a_cancelled_publish_leaves_the_broker_usable(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(path) as broker:
        await broker.ping()
        gate = Gate(monkeypatch)
        task = asyncio.create_task(broker.publish([message("a")], timeout=PATIENCE))
        await asyncio.to_thread(gate.reached.wait, 10)

        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        gate.opened.set()

        await publish(broker, message("b"))
        async with broker.subscribe(["orders"], group="billing", prefetch=2) as box:
            assert await drain(box, 2) == ["a", "b"]


async def test_a_cancelled_ack_is_finished(path: Path) -> None:
    async with opened(path) as broker:
        await publish(broker, message("a"), message("b"))
        async with broker.subscribe(["orders"], group="billing", prefetch=1) as box:
            delivery = await receive(box)
            ack = asyncio.create_task(delivery.ack())
            await asyncio.sleep(0)
            ack.cancel()
            await asyncio.gather(ack, return_exceptions=True)

            assert (await receive(box)).message.id == "b"


async def test_closing_ends_all_threads(path: Path) -> None:
    before = set(threading.enumerate())
    async with opened(path) as broker, broker.subscribe(["orders"], group="b", prefetch=1):
        pass

    left = [one for one in threading.enumerate() if one not in before]
    assert [one.name for one in left if one.name.startswith("postroom")] == []
