"""A relay from PostgreSQL to a broker, against what that broker takes from a bare client."""

import asyncio
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial

from bench import stage
from bench.brokers.course import PAYLOAD, Course, Stretch
from bench.brokers.publish import UNIT, connected, once
from bench.postgresql.ground import Ground
from bench.postgresql.running import relayed
from bench.postgresql.scale import Scale
from bench.report import Result, compared
from postroom.lane import lane_of
from postroom.relay.options import RelayOptions
from postroom.route import Route

_KEYS, _PIPELINED, _STRICT = "1,000 keys", "one pipelined key", "one strict key"
_ROUTES: Mapping[str, Route] = {
    _KEYS: stage.ROUTE,
    _PIPELINED: replace(stage.ROUTE, pipelined_keys=True),
    _STRICT: stage.ROUTE,
}
_FEWER = 10
"""Times as few messages where one is in flight."""
_CUSTOMER = "customer"


def measure(course: Course, url: str, ground: Ground, scale: Scale) -> Iterator[Result]:
    """Send equal backlogs in turn: by the bare client, of many keys, and of one."""
    rounds = asyncio.run(_rounds(course, url, replace(ground, payload=PAYLOAD), scale))
    for name, base, goal in (
        (_KEYS, course.base, course.goal),
        (_PIPELINED, _KEYS, 0.7),
        (_STRICT, _KEYS, None),
    ):
        yield compared(
            f"PostgreSQL to {course.title}, {name}, against {base}{scale.suffix}",
            [(each[name], each[base]) for each in rounds],
            unit=UNIT,
            goal=goal,
            bound="at least",
        )


async def _rounds(course: Course, url: str, ground: Ground, scale: Scale) -> list[dict[str, float]]:
    """Return the rates of every round; the first one warms up."""
    rounds = []
    for _ in range(scale.rounds + 1):
        rates = {course.base: await once(course, url, scale.rows, course.bare[course.base])}
        for name in _ROUTES:
            count = scale.rows // (_FEWER if name == _STRICT else 1)
            await _fill(ground, count, one=name != _KEYS)
            rates[name] = await once(course, url, 0, partial(_relayed, course, ground, name, count))
        rounds.append(rates)
    return rounds[1:]


async def _relayed(
    course: Course, ground: Ground, name: str, count: int, stretch: Stretch
) -> float:
    broker = await connected(course, stretch, calls=RelayOptions().overlap)
    try:
        return await relayed(ground, count, broker=broker, route=_ROUTES[name])
    finally:
        await broker.close()


async def _fill(ground: Ground, count: int, *, one: bool) -> None:
    await ground.emptied()
    if one:
        await ground.add(count, lane=str(lane_of(_CUSTOMER, "")), key=f"'{_CUSTOMER}'")
    else:
        await ground.add(count)
    await ground.settled_down()
