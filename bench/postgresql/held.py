"""The rate of the other keys while one failing head holds many messages back."""

import asyncio
from collections.abc import Iterator

from bench.held import ROUTE, STUCK, Refusing
from bench.postgresql.brokers import Confirming
from bench.postgresql.ground import Ground, prepared
from bench.postgresql.running import relayed
from bench.postgresql.scale import Scale
from bench.report import Result, compared
from postroom.lane import lane_of


def measure(ground: Ground, scale: Scale) -> Iterator[Result]:
    """Send the same messages of other keys, in turn beside the stuck key and without it."""
    asyncio.run(stuck(ground, scale.held))
    with prepared(ground.url, "free", ground.directory) as free:
        pairs = [
            (_rate(ground, scale, number), _rate(free, scale, number))
            for number in range(scale.rounds + 1)
        ]
    name = f"other keys beside {scale.held:,} held{scale.suffix}"
    yield compared(name, pairs[1:], unit="messages/s", goal=0.9, bound="at least")


async def stuck(ground: Ground, held: int, key: str = STUCK, head: str = "waiting") -> None:
    """Add a key that is stuck: a head that is due or dead, and what it holds back."""
    row = {"key": f"'{key}'", "lane": str(lane_of(key, "")), "blocks": "true"}
    moment = {"due": "1"} if head == "waiting" else {"settled": "1"}
    await ground.add(1, 0, **row, state=head, **moment)
    await ground.add(held, 1, **row, state="held")
    await ground.settled_down()


def _rate(ground: Ground, scale: Scale, number: int) -> float:
    asyncio.run(ground.add(scale.rows, first=scale.held + 1 + number * scale.rows))
    asyncio.run(ground.settled_down())
    broker = Refusing(Confirming())
    return asyncio.run(relayed(ground, scale.rows, broker=broker, route=ROUTE, keep_sent=False))
