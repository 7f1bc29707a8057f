"""Sessions that contend for an object publish in the order of their commits."""

import asyncio
import random
from collections import defaultdict
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import pairwise
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker
from sqlalchemy.orm import Session, sessionmaker

from postroom import Message, SyncOutbox
from postroom.integrations.sqlalchemy import SessionOutbox
from tests.integrations.conftest import SERVERS, TABLE, Order
from tests.postgresql import Ground, ground

WRITERS, KEYS, ROUNDS = 8, 20, 40
Put = Callable[[Any, Message], object]


class Changed(Exception):
    """The caller changed its mind."""


@pytest.fixture(params=SERVERS)
def place(request: pytest.FixtureRequest) -> Iterator[Ground]:
    """Return a schema with the orders that are contended for."""
    with ground(request.param.url, TABLE) as made:
        made.query(
            "insert into orders select 'k' || n, 'placed', 0 from generate_series(1, %s) as n", KEYS
        )
        yield made


def violations(place: Ground, versions: dict[str, int]) -> int:
    """Count the messages whose place is before that of an earlier commit of their key."""
    found: dict[str, list[int]] = defaultdict(list)
    for key, message_id in place.query("select key, id from postroom_outbox order by seq"):
        found[key].append(versions[message_id])
    assert sum(map(len, found.values())) == len(versions)
    return sum(after < before for numbers in found.values() for before, after in pairwise(numbers))


def work(sessions: sessionmaker[Session], put: Put, seed: int) -> dict[str, int]:
    """Put first and write afterwards; return the version that each message belongs to."""
    chance = random.Random(seed)  # noqa: S311 - a test, not a secret
    versions: dict[str, int] = {}
    for _ in range(ROUNDS):
        key = f"k{chance.randint(1, KEYS)}"
        told = Message(type="shop.order-changed", key=key, payload=b"{}")
        with suppress(Changed), sessions.begin() as session:
            order = session.get_one(Order, key)
            put(session, told)
            session.execute(sa.select(sa.func.pg_sleep(chance.random() / 500)))
            order.version = Order.version + 1
            session.flush()
            version = order.version
            if chance.random() < 0.05:
                raise Changed
            versions[told.id] = version
    return versions


def contend(place: Ground, driver: str, put: Put, bound: SessionOutbox | None = None) -> int:
    """Let threads contend; return the number of violations."""
    engine = place.engine(driver, pool_size=WRITERS)
    sessions = sessionmaker(engine)
    if bound is not None:
        bound.bind(sessions)
    with ThreadPoolExecutor(WRITERS) as threads:
        results = threads.map(lambda seed: work(sessions, put, seed), range(WRITERS))
        versions = {key: version for result in results for key, version in result.items()}
    engine.dispose()
    return violations(place, versions)


@pytest.mark.parametrize("driver", ["psycopg", "psycopg2"])
def test_contending_sessions(place: Ground, driver: str) -> None:
    outbox = SessionOutbox(place.store)

    assert contend(place, driver, outbox.put, outbox) == 0


def test_the_same_without_the_hook(place: Ground) -> None:
    """What is written where it is put overtakes: the test above would see it."""
    plain = SyncOutbox(place.store)

    def put(session: Session, message: Message) -> None:
        with session.no_autoflush:
            plain.put(session, message)

    assert contend(place, "psycopg2", put) > 0


async def _work(sessions: async_sessionmaker[AsyncSession], put: Put, seed: int) -> dict[str, int]:
    chance = random.Random(seed)  # noqa: S311 - a test, not a secret
    versions: dict[str, int] = {}
    for _ in range(ROUNDS):
        key = f"k{chance.randint(1, KEYS)}"
        told = Message(type="shop.order-changed", key=key, payload=b"{}")
        async with sessions.begin() as session:
            order = await session.get_one(Order, key)
            put(session, told)
            await session.execute(sa.select(sa.func.pg_sleep(chance.random() / 500)))
            order.version = Order.version + 1
            await session.flush()
            await session.refresh(order)
            versions[told.id] = order.version
    return versions


@pytest.mark.parametrize("driver", ["asyncpg", "psycopg"])
async def test_contending_async_sessions(place: Ground, driver: str) -> None:
    outbox = SessionOutbox(place.store)
    engine = place.async_engine(driver, pool_size=WRITERS)
    sessions = outbox.bind(async_sessionmaker(engine))

    results = await asyncio.gather(*(_work(sessions, outbox.put, n) for n in range(WRITERS)))
    await engine.dispose()

    assert violations(place, {key: n for result in results for key, n in result.items()}) == 0
