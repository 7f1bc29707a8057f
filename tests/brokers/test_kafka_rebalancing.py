"""Consumers come and go as planned, and nobody notices by the messages."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator

from postroom.broker import Delivery
from postroom.brokers.kafka import KafkaBroker
from postroom.errors import DeliveryLost
from tests.brokers.log import Client, make_topic, message, outcome
from tests.kafka import Ground

KEYS, STEPS = 20, 60
HANDS = 3


class Crew:
    """Consumers of one group, each with a few hands; who leaves has finished what it held."""

    def __init__(self, client: Client, topic: str) -> None:
        self.handled: list[tuple[str | None, int]] = []
        """Key and number, in the order in which they were handed out."""
        self.lost: list[str] = []
        self._client = client
        self._topic = topic
        self._members: list[tuple[asyncio.Event, asyncio.Task[None]]] = []

    async def join(self) -> None:
        """Have another one consume; return when it is in the group."""
        stop, joined = asyncio.Event(), asyncio.Event()
        consuming = asyncio.create_task(self._consume(self._client(), stop, joined))
        self._members.append((stop, consuming))
        await joined.wait()

    async def leave(self) -> None:
        """Have the oldest one finish and go."""
        stop, consuming = self._members.pop(0)
        stop.set()
        await consuming

    async def leave_all(self) -> None:
        """Have them all finish and go."""
        while self._members:
            await self.leave()

    async def reach(self, count: int) -> None:
        """Return when so many different ones were handled."""
        while len(set(self.handled)) < count:
            await asyncio.sleep(0.01)

    async def _consume(
        self, broker: KafkaBroker, stop: asyncio.Event, joined: asyncio.Event
    ) -> None:
        await broker.open()
        async with broker.subscribe([self._topic], group="billing", prefetch=HANDS) as box:
            joined.set()
            await asyncio.gather(*(self._hand(box, stop) for _ in range(HANDS)))

    async def _hand(self, box: AsyncIterator[Delivery], stop: asyncio.Event) -> None:
        while not stop.is_set():
            try:
                async with asyncio.timeout(0.2):
                    delivery = await anext(box)
            except TimeoutError:
                continue
            number = int(delivery.message.id.partition("-")[0])
            self.handled.append((delivery.message.key, number))
            await asyncio.sleep(0.02)
            try:
                await delivery.ack()
            except DeliveryLost:
                self.lost.append(delivery.message.id)


async def test_at_a_clean_hand_over_nothing_comes_twice_and_every_key_keeps_its_order(
    kafka_client: Client, log: Ground
) -> None:
    """Partitions move five times while messages flow; what is in hand is waited for."""
    topic = make_topic(log.servers, f"{log.prefix}wide", partitions=6)
    crew = Crew(kafka_client, topic)

    async with asyncio.timeout(90):
        await crew.join()
        publishing = asyncio.create_task(_publish(kafka_client(), topic))
        for change in (crew.join, crew.join, crew.leave, crew.join, crew.leave):
            await crew.reach(min(len(set(crew.handled)) + 100, KEYS * STEPS))
            await change()
        await publishing
        await crew.reach(KEYS * STEPS)
        await crew.leave_all()

    assert crew.lost == []
    assert max(Counter(crew.handled).values()) == 1
    for number in range(KEYS):
        mine = [step for key, step in crew.handled if key == f"k{number}"]
        assert mine == list(range(STEPS))


async def _publish(broker: KafkaBroker, topic: str) -> None:
    await broker.open()
    for step in range(STEPS):
        batch = [message(f"{step}-{n}", topic=topic, key=f"k{n}") for n in range(KEYS)]
        assert await outcome(broker, *batch) == [None] * KEYS
