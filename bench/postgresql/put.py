"""What a message adds to a business transaction, while a relay sleeps and is woken by it."""

import asyncio
import time
from collections.abc import Iterator, Sequence

from bench import stage
from bench.postgresql import shops
from bench.postgresql.ground import Ground
from bench.postgresql.running import processes, until_asleep
from bench.postgresql.scale import Scale
from bench.report import Result, compared
from postroom.outbox import Outbox


def measure(ground: Ground, scale: Scale) -> Iterator[Result]:
    """Commit orders on many connections, in turn with and without a message."""
    asyncio.run(ground.sql(*shops.TABLES))
    put = shops.putting(Outbox(ground.store()))
    tail = f", {scale.connections} connections{scale.suffix}"
    for name, shop, asleep in (
        ("asyncpg", shops.with_asyncpg, True),
        ("asyncpg and nobody asleep", shops.with_asyncpg, False),
        ("psycopg", shops.with_psycopg, True),
        ("SQLAlchemy", shops.with_sqlalchemy, True),
    ):
        pairs = _pairs(ground, shop, put, scale, asleep=asleep)
        yield compared(f"put, {name}{tail}", pairs, unit="us/transaction", goal=1.5)
    for name, what in (("a message", put), ("another row", shops.plain_row)):
        pairs = _pairs(ground, shops.leanest, what, scale, asleep=False)
        yield compared(f"{name} beside a single INSERT{tail}", pairs, unit="us/transaction")


def _pairs(
    ground: Ground, shop: shops.Shop, put: shops.Put, scale: Scale, *, asleep: bool
) -> Sequence[tuple[float, float]]:
    """Alternate, beside a process that goes back to sleep whenever it is woken."""
    asyncio.run(ground.sql(shops.EMPTY))
    asyncio.run(ground.settled_down())
    if not asleep:
        return asyncio.run(_alternating(ground, shop, put, scale))
    woken = ground.directory / "woken"
    with processes(ground, [("sleep", str(woken))]):
        asyncio.run(until_asleep(ground))
        pairs = asyncio.run(_alternating(ground, shop, put, scale))
    assert int(woken.read_text()) > scale.put_rounds
    return pairs


async def _alternating(
    ground: Ground, shop: shops.Shop, put: shops.Put, scale: Scale
) -> Sequence[tuple[float, float]]:
    """Begin with either in turn; the first round only warms up."""
    pairs, first = [], 0
    async with shop(ground, scale.connections) as place:
        for number in range(scale.put_rounds + 1):
            micros = {}
            for given in (put, None) if number % 2 else (None, put):
                micros[given] = await _micros(place, given, first, scale)
                first += scale.transactions
            pairs.append((micros[put], micros[None]))
    return pairs[1:]


async def _micros(place: shops.Place, put: shops.Put | None, first: int, scale: Scale) -> float:
    async def work(connection: int) -> None:
        for number in range(connection, scale.transactions, scale.connections):
            await place(connection, stage.order(first + number), put)

    began = time.perf_counter()
    await asyncio.gather(*(work(connection) for connection in range(scale.connections)))
    return (time.perf_counter() - began) / scale.transactions * 1_000_000
