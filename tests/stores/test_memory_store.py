"""The memory store: what is its own, beside the contract that every store keeps."""

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from datetime import timedelta
from pathlib import Path

import pytest

from postroom._clock import Clock
from postroom.errors import InvalidMessage, NoTransaction, StoreError
from postroom.message import Message
from postroom.statement import Statement
from postroom.store import Addressed, Query, Store
from postroom.stores.memory import MemoryStore, MemoryTransaction
from postroom.testing.clock import ManualClock
from postroom.testing.conformance.stage import Run
from postroom.testing.conformance.store_suite import StoreSuite

LONG = timedelta(seconds=30)


class TestMemoryStore(StoreSuite):
    """The whole contract."""

    def make_store(self, clock: Clock, directory: Path) -> Store:
        """Return an empty store; it needs no directory."""
        assert directory.is_dir()
        return MemoryStore(clock=clock)

    @asynccontextmanager
    async def transaction(self, store: Store) -> AsyncIterator[Run]:
        """Begin as a caller does."""
        assert isinstance(store, MemoryStore)
        async with store.begin() as transaction:

            async def run(statement: Statement) -> int:
                return transaction.run(statement)

            yield run


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore(clock=ManualClock())


def put(store: MemoryStore, transaction: MemoryTransaction, text: str) -> None:
    message = Message(type="t", payload=text.encode())
    assert transaction.run(store.insert([Addressed("default", message)])) == 1


async def payloads(store: MemoryStore) -> list[str]:
    return [entry.message.payload.decode() for entry in await store.find(Query(), limit=100)]


async def test_nothing_is_visible_before_the_commit(store: MemoryStore) -> None:
    with store.begin() as transaction:
        put(store, transaction, "a")
        before = await payloads(store)

    assert before == []
    assert await payloads(store) == ["a"]


async def test_a_block_that_raises_leaves_no_trace(store: MemoryStore) -> None:
    with suppress(KeyError), store.begin() as transaction:
        put(store, transaction, "a")
        transaction.run(store.mark("shipping", "1"))
        raise KeyError

    with store.begin() as transaction:
        assert transaction.run(store.mark("shipping", "1")) == 1
    assert await payloads(store) == []


async def test_commit_and_rollback_by_hand(store: MemoryStore) -> None:
    first = store.begin()
    put(store, first, "a")
    first.commit()
    second = store.begin()
    put(store, second, "b")
    second.rollback()
    second.rollback()

    assert await payloads(store) == ["a"]


async def test_a_savepoint_undoes_only_its_own_block(store: MemoryStore) -> None:
    with store.begin() as transaction:
        put(store, transaction, "a")
        with suppress(KeyError), transaction.savepoint():
            put(store, transaction, "b")
            with transaction.savepoint():
                put(store, transaction, "c")
            transaction.run(store.mark("shipping", "1"))
            raise KeyError
        with transaction.savepoint():
            put(store, transaction, "d")
        assert transaction.run(store.mark("shipping", "1")) == 1

    assert await payloads(store) == ["a", "d"]


def test_a_message_is_seen_first_once_for_each_consumer(store: MemoryStore) -> None:
    with store.begin() as transaction:
        first = [transaction.run(store.mark("shipping", "1")) for _ in range(2)]
    with store.begin() as transaction:
        later = transaction.run(store.mark("shipping", "1"))
        other = transaction.run(store.mark("billing", "1"))

    assert (first, later, other) == ([1, 0], 0, 1)


@pytest.mark.parametrize("end", ["commit", "rollback"])
def test_a_transaction_that_has_ended_refuses(store: MemoryStore, end: str) -> None:
    transaction = store.begin()
    getattr(transaction, end)()

    assert not transaction.in_transaction
    with pytest.raises(NoTransaction, match="begin another"):
        put(store, transaction, "a")
    with pytest.raises(NoTransaction), transaction.savepoint():
        pass
    with pytest.raises(NoTransaction):
        transaction.commit()
    with pytest.raises(NoTransaction), transaction:
        pass


def test_a_foreign_statement_is_refused(store: MemoryStore) -> None:
    with store.begin() as transaction:
        with pytest.raises(ValueError, match="no statement"):
            transaction.run(Statement(sql="DELETE", rows=[{}]))
        with pytest.raises(ValueError, match="not made by"):
            transaction.run(Statement(sql="", rows=[{"id": 1}], name="insert"))


async def test_a_message_is_put_once(store: MemoryStore) -> None:
    statement = store.insert([Addressed("default", Message(type="t", payload=b""))])
    with store.begin() as transaction:
        with suppress(KeyError), transaction.savepoint():
            transaction.run(statement)
            raise KeyError
        transaction.run(statement)
        with pytest.raises(InvalidMessage):
            transaction.run(statement)
    with store.begin() as transaction, pytest.raises(InvalidMessage):
        transaction.run(statement)

    assert len(await store.find(Query(), limit=10)) == 1


def test_a_second_transaction_of_the_same_thread_is_an_error_not_a_deadlock(
    store: MemoryStore,
) -> None:
    with store.begin():
        with pytest.raises(StoreError, match="already open in this thread"), store.begin():
            pass
        with pytest.raises(StoreError, match="already open in this thread"):
            put(store, store.begin(), "a")

    with store.begin() as transaction:
        put(store, transaction, "b")


async def test_coroutines_wait_for_their_turn(store: MemoryStore) -> None:
    async def write(name: str) -> None:
        async with store.begin() as transaction:
            put(store, transaction, f"{name}1")
            await asyncio.sleep(0)
            put(store, transaction, f"{name}2")

    await asyncio.gather(write("a"), write("b"), write("c"))

    assert await payloads(store) == ["a1", "a2", "b1", "b2", "c1", "c2"]


async def test_a_coroutine_that_gives_up_waiting_leaves_the_queue(store: MemoryStore) -> None:
    async def write(text: str) -> None:
        async with store.begin() as transaction:
            put(store, transaction, text)

    async with store.begin():
        waiting = [asyncio.create_task(write(text)) for text in "ab"]
        await asyncio.sleep(0)
        waiting[0].cancel()
        await asyncio.wait({waiting[0]})
    await waiting[1]

    assert await payloads(store) == ["b"]


async def test_threads_wait_for_their_turn(store: MemoryStore) -> None:
    def write(number: int) -> None:
        with store.begin() as transaction:
            put(store, transaction, f"{number}-1")
            put(store, transaction, f"{number}-2")

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(write, range(50)))

    rows = [text.split("-") for text in await payloads(store)]
    assert len(rows) == 100
    assert all(first[0] == second[0] for first, second in zip(rows[::2], rows[1::2], strict=True))


@pytest.fixture
def committing(store: MemoryStore) -> Iterator[threading.Thread]:
    def write() -> None:
        with store.begin() as transaction:
            put(store, transaction, "a")

    thread = threading.Thread(target=write)
    yield thread
    thread.join()


async def test_a_commit_in_another_thread_wakes_a_sleeper(
    store: MemoryStore, committing: threading.Thread
) -> None:
    sleeper = asyncio.create_task(store.wait(LONG))
    await asyncio.sleep(0)
    asleep = not sleeper.done()

    committing.start()
    await asyncio.wait_for(sleeper, 10)

    assert asleep
    assert await payloads(store) == ["a"]


async def test_a_commit_between_two_waits_ends_the_second(store: MemoryStore) -> None:
    with store.begin() as transaction:
        put(store, transaction, "a")

    await asyncio.wait_for(store.wait(LONG), 10)


async def test_a_wait_ends_with_its_time() -> None:
    clock = ManualClock()
    quiet = MemoryStore(clock=clock)
    sleeper = asyncio.create_task(quiet.wait(LONG))
    await asyncio.sleep(0)
    await asyncio.sleep(0)

    clock.advance(29)
    await asyncio.sleep(0)
    early = sleeper.done()
    clock.advance(1)
    await asyncio.wait_for(sleeper, 10)

    assert not early
    assert clock.sleepers == 0


async def test_a_cancelled_wait_leaves_nothing_behind() -> None:
    clock = ManualClock()
    store = MemoryStore(clock=clock)
    sleeper = asyncio.create_task(store.wait(LONG))
    await asyncio.sleep(0)
    await asyncio.sleep(0)

    sleeper.cancel()
    await asyncio.wait({sleeper})

    assert sleeper.cancelled()
    assert clock.sleepers == 0
