"""The driver against the bare client: the same bytes to the same place, all confirmed."""

import asyncio
import time
from collections.abc import Iterator, Mapping
from datetime import timedelta
from functools import partial
from uuid import uuid4

from bench.brokers.course import TOPIC, WINDOW, Course, Stretch, Way, messages
from bench.postgresql.scale import Scale
from bench.report import Result, compared
from postroom.broker import Broker, Delivery

UNIT = "messages/s"
GROUP = "billing"
_TIMEOUT = timedelta(seconds=30)
_CALLS = {"one call at a time": 1, "two calls at a time": 2}
FETCH = 100
_RECEIVED, _BARE = "received", "received by the bare client"


def measure(course: Course, url: str, scale: Scale) -> Iterator[Result]:
    """Publish in every way, in turn in every round."""
    ours = {name: partial(published, course, calls=calls) for name, calls in _CALLS.items()}
    rounds = asyncio.run(_rounds(course, url, scale, {**course.bare, **ours}))
    for name in rounds[0]:
        if name == course.base:
            continue
        yield compared(
            f"publish to {course.title}, {name}, against {course.base}{scale.suffix}",
            [(each[name], each[course.base]) for each in rounds],
            unit=UNIT,
            goal=course.goal if name in _CALLS else None,
            bound="at least",
        )


def measure_receive(course: Course, url: str, scale: Scale) -> Iterator[Result]:
    """Receive and acknowledge, by the bare client and by the driver in turn."""
    assert course.received is not None
    rounds = asyncio.run(
        _rounds(
            course,
            url,
            scale,
            {
                _BARE: partial(_filled, course, course.received),
                _RECEIVED: partial(_filled, course, partial(received, course)),
            },
        )
    )
    yield compared(
        f"receive from {course.title}, against the bare client{scale.suffix}",
        [(each[_RECEIVED], each[_BARE]) for each in rounds],
        unit=UNIT,
        goal=course.goal,
        bound="at least",
    )


async def _rounds(
    course: Course, url: str, scale: Scale, ways: Mapping[str, Way]
) -> list[dict[str, float]]:
    """Return the rates of every round; the first one warms up."""
    rounds = [
        {name: await once(course, url, scale.rows, way) for name, way in ways.items()}
        for _ in range(scale.rounds + 1)
    ]
    return rounds[1:]


async def once(course: Course, url: str, count: int, way: Way) -> float:
    """Return the rate of one way, at a place of its own."""
    name = f"bench-{uuid4().hex[:8]}"
    async with course.made(url, name):
        return await way(Stretch(url, name, messages(count)))


async def published(course: Course, stretch: Stretch, *, calls: int) -> float:
    """Publish through the driver, in so many calls at a time."""
    broker = await connected(course, stretch, calls=calls)
    parts = stretch.parts(WINDOW // calls)

    async def work() -> None:
        for part in parts:
            assert not any(await broker.publish(part, timeout=_TIMEOUT))

    began = time.perf_counter()
    await asyncio.gather(*(work() for _ in range(calls)))
    spent = time.perf_counter() - began
    await broker.close()
    return len(stretch.batch) / spent


async def connected(course: Course, stretch: Stretch, *, calls: int) -> Broker:
    """Return the driver with what so many calls at a time need, as it has it after the first."""
    broker = course.broker(stretch.url, stretch.name)
    await broker.open()
    first = [broker.publish(messages(1), timeout=_TIMEOUT) for _ in range(calls)]
    assert not any(result for results in await asyncio.gather(*first) for result in results)
    return broker


async def _filled(course: Course, way: Way, stretch: Stretch) -> float:
    """Publish what is received then."""
    await published(course, stretch, calls=1)
    return await way(stretch)


async def received(course: Course, stretch: Stretch) -> float:
    """Receive and acknowledge through the driver."""
    broker = course.broker(stretch.url, stretch.name)
    await broker.open()
    working: set[asyncio.Task[None]] = set()
    began = time.perf_counter()
    async with broker.subscribe([TOPIC], group=GROUP, prefetch=FETCH) as box:
        for _ in stretch.batch:
            delivery: Delivery = await anext(box)
            task = asyncio.ensure_future(delivery.ack())
            working.add(task)
            task.add_done_callback(working.discard)
        await asyncio.gather(*working)
        spent = time.perf_counter() - began
    await broker.close()
    return len(stretch.batch) / spent
