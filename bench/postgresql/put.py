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
    asyncio.run(ground.sql(shops.TABLE))
    for name, shop, asleep in (
        ("asyncpg", shops.with_asyncpg, True),
        ("asyncpg and nobody asleep", shops.with_asyncpg, False),
        ("psycopg", shops.with_psycopg, True),
        ("SQLAlchemy", shops.with_sqlalchemy, True),
    ):
        pairs = _pairs(ground, shop, scale, asleep=asleep)
        title = f"put, {name}, {scale.connections} connections{scale.suffix}"
        yield compared(title, pairs, unit="us/transaction", goal=1.5, bound="at most")


def _pairs(
    ground: Ground, shop: shops.Shop, scale: Scale, *, asleep: bool
) -> Sequence[tuple[float, float]]:
    """Alternate, beside a process that goes back to sleep whenever it is woken."""
    asyncio.run(ground.sql("truncate orders, postroom_outbox"))
    asyncio.run(ground.settled_down())
    if not asleep:
        return asyncio.run(_alternating(ground, shop, scale))
    woken = ground.directory / "woken"
    with processes(ground, [("sleep", str(woken))]):
        asyncio.run(until_asleep(ground))
        pairs = asyncio.run(_alternating(ground, shop, scale))
    assert int(woken.read_text()) > scale.put_rounds
    return pairs


async def _alternating(
    ground: Ground, shop: shops.Shop, scale: Scale
) -> Sequence[tuple[float, float]]:
    """Begin with either in turn; the first round only warms up."""
    pairs = []
    outbox, first = Outbox(ground.store()), 0
    async with shop(ground, scale.connections) as place:
        for number in range(scale.put_rounds + 1):
            micros = {}
            for given in (outbox, None) if number % 2 else (None, outbox):
                micros[given] = await _micros(place, given, first, scale)
                first += scale.transactions
            pairs.append((micros[outbox], micros[None]))
    return pairs[1:]


async def _micros(place: shops.Place, outbox: Outbox | None, first: int, scale: Scale) -> float:
    async def work(connection: int) -> None:
        for number in range(connection, scale.transactions, scale.connections):
            await place(connection, stage.order(first + number), outbox)

    began = time.perf_counter()
    await asyncio.gather(*(work(connection) for connection in range(scale.connections)))
    return (time.perf_counter() - began) / scale.transactions * 1_000_000
