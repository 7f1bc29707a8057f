"""Writers that contend on aggregates, with transactions that stay open: order is commit order."""

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import asyncpg
import pytest

from postroom.lane import Lane
from postroom.message import Message
from postroom.stores.postgresql import PostgresqlStore
from postroom.stores.postgresql.marks import Marks
from tests.stores.postgresql import Ground, Plant, lease, put, sent
from tests.stores.test_postgresql_marks import AT_ONCE

WRITERS, KEYS = 8, 200


@dataclass(slots=True)
class Book:
    """What was committed, and in which order it went out."""

    committed: dict[str, int] = field(default_factory=dict)
    gone: dict[str, int] = field(default_factory=dict)
    violations: int = 0
    rounds: int = 0
    """Of the relay."""
    turned: asyncio.Condition = field(default_factory=asyncio.Condition)
    """Notified of every round."""

    async def turn(self) -> None:
        """Note that the relay begins another round."""
        async with self.turned:
            self.rounds += 1
            self.turned.notify_all()

    def take(self, key: str, version: int) -> None:
        """Note that this version of an aggregate went out."""
        if version != self.gone.get(key, 0) + 1:
            self.violations += 1
        self.gone[key] = max(version, self.gone.get(key, 0))


Pause = Callable[[Book, random.Random], Awaitable[None]]


async def some_rounds(book: Book, dice: random.Random) -> None:
    """Stay open while the relay reads a few times, however slow the machine is."""
    until = book.rounds + dice.randint(1, 5)
    async with book.turned:
        await book.turned.wait_for(lambda: book.rounds >= until)


async def some_milliseconds(_book: Book, dice: random.Random) -> None:
    """Stay open for up to 50 ms."""
    await asyncio.sleep(dice.uniform(0, 0.05))


@asynccontextmanager
async def shop(ground: Ground) -> AsyncIterator[asyncpg.Pool]:
    """Give connections to a table of aggregates that writers contend for."""
    await ground.sql("create table aggregate (key text primary key, version bigint not null)")
    await ground.sql(
        "insert into aggregate select 'key-' || number, 0 from generate_series(1, $1) as number",
        KEYS,
    )

    async def find_tables(connection: Any) -> None:
        quoted = ground.schema.replace('"', '""')
        await connection.execute(f'set search_path = "{quoted}"')

    async with asyncpg.create_pool(
        ground.url, min_size=WRITERS, max_size=WRITERS, setup=find_tables
    ) as pool:
        yield pool


async def write(
    pool: Any, store: PostgresqlStore, book: Book, dice: random.Random, count: int, pause: Pause
) -> None:
    """Change an aggregate and put its message, that many times; 5 % stay open for a while."""
    for _ in range(count):
        key = f"key-{dice.randint(1, KEYS)}"
        async with pool.acquire() as connection, connection.transaction():
            version = await connection.fetchval(
                "update aggregate set version = version + 1 where key = $1 returning version", key
            )
            message = Message(type="t", topic="t", key=key, version=version, payload=b"")
            await put(connection, store, message)
            if dice.random() < 0.05:
                await pause(book, dice)
        book.committed[key] = max(version, book.committed.get(key, 0))


async def relay(store: PostgresqlStore, lanes: list[Lane], book: Book, done: asyncio.Event) -> None:
    """Send everything at once, until the writers are done and nothing is left."""
    last = False
    while True:
        await book.turn()
        store._marks._propose_at = 0.0
        entries = await store.read(lanes, limit=500, per_lane=500, max_bytes=2**30)
        for entry in entries:
            assert entry.message.key is not None
            assert entry.message.version is not None
            book.take(entry.message.key, entry.message.version)
        await store.settle(lanes, sent(*entries), keep=False)
        if last and not entries:
            return
        last = done.is_set()


async def contend(
    ground: Ground, store: PostgresqlStore, messages: int, seed: int, pause: Pause
) -> Book:
    """Let writers and one relay run side by side."""
    book, done = Book(), asyncio.Event()
    store._marks = Marks()
    lanes = await lease(store)
    async with shop(ground) as pool:
        relaying = asyncio.ensure_future(relay(store, lanes, book, done))
        async with asyncio.TaskGroup() as group:
            for number in range(WRITERS):
                dice = random.Random(f"{seed}/{number}")  # noqa: S311 - repeatable
                group.create_task(write(pool, store, book, dice, messages // WRITERS, pause))
        done.set()
        await relaying
    return book


@pytest.mark.parametrize("plant", [None, AT_ONCE])
async def test_contending_writers_are_published_in_commit_order(
    ground: Ground, plant: Plant | None
) -> None:
    store = await ground.store(*([plant] if plant else []), timed=False)

    book = await contend(ground, store, 1_600, 1, some_rounds)

    assert (book.violations > 0 or book.gone != book.committed) is (plant is not None)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", [1, 2, 3])
async def test_a_hundred_thousand_messages_of_contending_writers(ground: Ground, seed: int) -> None:
    store = await ground.store(timed=False)

    book = await contend(ground, store, 100_000, seed, some_milliseconds)

    assert (book.violations, book.gone) == (0, book.committed)
