"""What happens to consumers: killed at a point, copies, poison, slowness, an outage."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta

from postroom.lab import books, shop
from postroom.lab.kill import Point
from postroom.lab.plants import INBOX_OUTSIDE
from postroom.lab.scenario import Scenario
from postroom.lab.stage import Stage
from postroom.message import State
from postroom.store import Query


async def consumer_before_commit(stage: Stage) -> None:
    """Each consumer dies with the inbox row written, then with the effect written too."""
    await _killed_twice(stage, "Handling", "Handled")


async def consumer_after_commit(stage: Stage) -> None:
    """Each consumer dies twice with the effect committed and the broker not told."""
    await _killed_twice(stage, "Committed", "Committed")
    duplicates = sum(len(actor.said("Duplicate")) for actor in stage.actors_of("consumer"))
    stage.check("the copies that came again were dropped", duplicates > 0)


async def _killed_twice(stage: Stage, first: str, second: str) -> None:
    stage.start("relay")
    service = stage.start("orders", orders=60, per_second=200)
    consumers = stage.start_consumers(point=Point(event=first, nth=3))
    await stage.ended(*consumers)
    for consumer in consumers:
        consumer.start(point=Point(event=second, nth=3))
    await stage.ended(service, *consumers)
    for consumer in consumers:
        consumer.start(point=None)
        stage.check(f"{consumer.name} was killed twice", consumer.kills == 2)
    stage.healed()
    await stage.still()


async def twice_in_parallel(stage: Stage) -> None:
    """Every message comes in four copies, to two processes of each consumer at once."""
    ids = [stage.place(number) for number in range(40)]
    async with stage.desk() as desk:
        entries = await desk.find(Query(states=[State.READY]), limit=100)
    broker = stage.places.broker.client()
    await broker.open()
    copies = [
        # Another key for each copy, so that the broker does not keep them from each other.
        replace(entry.message, key=f"{entry.message.id}/{copy}", topic=shop.TOPIC)
        for entry in entries
        for copy in range(3)
    ]
    results = await broker.publish(copies, timeout=timedelta(seconds=10))
    await broker.close()
    stage.check("the copies were taken", results == [None] * 3 * len(ids))
    stage.start("relay")
    consumers = stage.start_consumers(2)
    await stage.ready()
    stage.healed()
    await stage.still()
    dropped = 3 * len(ids) * len(shop.CONSUMERS)
    await stage.until(
        "three of four copies are dropped",
        lambda: sum(len(actor.said("Duplicate")) for actor in consumers) >= dropped,
    )
    duplicates = sum(len(actor.said("Duplicate")) for actor in consumers)
    stage.check(f"three of four copies were dropped ({duplicates})", duplicates == dropped)


async def poison(stage: Stage) -> None:
    """Three orders that no consumer can handle, between others."""
    poisoned = {stage.place(number, note=shop.POISON) for number in range(3)}
    for number in range(30):
        stage.place(number % 10)
    stage.start_consumers(attempts=5)
    stage.start("relay")
    await stage.still()
    reasons = books.reasons(stage.places)
    stage.check("they are dead letters with a reason", set(reasons) == poisoned)
    stage.check("the reason says why", all("nobody can read" in text for text in reasons.values()))
    early, total = books.before_first_death(stage.places)
    stage.check(f"the others were not delayed ({early} of {total})", early >= total * 0.9 > 0)


async def slow_consumer(stage: Stage) -> None:
    """No relay at first, then a fast one, and slow consumers: the backlog can be seen."""
    for number in range(60):
        stage.place(number % 10)
    ages = []
    for _ in range(2):
        async with stage.desk() as desk:
            stats = await desk.stats()
        ages.append(datetime.now(UTC) - stats.oldest_unsent_at["default"])
        await asyncio.sleep(0.1)
    stage.check("the age of the oldest is seen without a relay", ages[1] > ages[0])
    stage.check("so is their number", stats.counts["default"][State.READY] == 60)
    consumers = stage.start_consumers(pause=0.03)
    await stage.ready(*consumers)
    stage.start("relay")
    await stage.until("the relay has sent all", lambda: stage.states()["sent"] == 60)
    stage.check("the consumers are behind", books.effect_count(stage.places) < 120)
    stage.healed()


async def consumer_locked(stage: Stage) -> None:
    """The shipping database is locked: the consumer waits and spends no delivery."""
    stage.start("relay")
    stage.start_consumers(attempts=3)
    service = stage.start("orders", per_second=40)
    await stage.moving(10)
    locker = await stage.lock("shipping")
    shipping = stage.actors["shipping-1"]
    await stage.until("it pauses", lambda: bool(shipping.said("ConsumerPaused")), 20)
    service.terminate()
    await stage.ended(service)
    await stage.unlock(locker)
    stage.healed()
    await stage.still()
    stage.check("no message was given up", not books.reasons(stage.places))
    stage.check("no failure was counted", not shipping.said("HandlerFailed"))


SCENARIOS: Sequence[Scenario] = (
    Scenario(
        name="consumer-before-commit",
        summary="consumers are killed before the commit: no effect, no inbox row",
        play=consumer_before_commit,
        plants=(INBOX_OUTSIDE,),
        figures=("lost", "duplicate_effects"),
    ),
    Scenario(
        name="consumer-after-commit",
        summary="consumers are killed after the commit, before the broker is told",
        play=consumer_after_commit,
    ),
    Scenario(
        name="twice-in-parallel",
        summary="every message comes four times, to two processes at once",
        play=twice_in_parallel,
        shared=True,
        customers=40,
    ),
    Scenario(
        name="poison",
        summary="three orders crash every handler: dead with a reason, others not delayed",
        play=poison,
    ),
    Scenario(
        name="slow-consumer",
        summary="a fast relay and slow consumers: the backlog's age can be seen",
        play=slow_consumer,
    ),
    Scenario(
        name="consumer-locked",
        summary="the shipping database is locked: the consumer waits, no attempt is spent",
        play=consumer_locked,
    ),
)
