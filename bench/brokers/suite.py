"""The measurements of the brokers, each on a server that is given or started for them."""

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from bench.brokers import kafka, nats, publish, rabbitmq, redis, relay
from bench.brokers.course import Course
from bench.postgresql import suite as postgresql
from bench.postgresql.ground import prepared
from bench.postgresql.scale import FULL, QUICK
from bench.report import Result

COURSES: Mapping[str, Course] = {
    "rabbitmq": rabbitmq.CLASSIC,
    "rabbitmq-quorum": rabbitmq.QUORUM,
    "kafka": kafka.COURSE,
    "nats": nats.COURSE,
    "redis": redis.COURSE,
    "redis-disk": redis.ON_DISK,
}
"""By the name that `--broker` takes."""
SCHEMES: Mapping[str, str] = {
    "amqp": "rabbitmq",
    "amqps": "rabbitmq",
    "kafka": "kafka",
    "nats": "nats",
    "redis": "redis",
}
"""The course of a server whose address is given."""
NAMES = ("publish", "receive", "relay")

Measure = Callable[[Path], Iterator[Result]]


def course_of(broker: str) -> Course | None:
    """Return what is measured there, for a name or an address; None if it is neither."""
    scheme, address, _ = broker.partition("://")
    return COURSES.get(SCHEMES.get(scheme, "") if address else broker)


def names(course: Course) -> Sequence[str]:
    """Return what is measured on that course."""
    return [name for name in NAMES if name != "receive" or course.received is not None]


@contextmanager
def opened(
    broker: str, store: str, folder: Path | None, *, quick: bool
) -> Iterator[tuple[str, Mapping[str, Measure]]]:
    """Give a word about the servers, and the measurements on them."""
    course = course_of(broker)
    assert course is not None
    scale = QUICK if quick else FULL
    with ExitStack() as stack:
        url = stack.enter_context(course.serve(broker))
        database, origin = stack.enter_context(postgresql.server(store, folder))
        facts = [
            asyncio.run(course.version(url)),
            asyncio.run(postgresql.described(database, origin)),
        ]

        def relays(directory: Path) -> Iterator[Result]:
            with prepared(database, "relay", directory) as ground:
                yield from relay.measure(course, url, ground, scale)

        measurements: dict[str, Measure] = {
            "publish": lambda _: publish.measure(course, url, scale),
            "receive": lambda _: publish.measure_receive(course, url, scale),
            "relay": relays,
        }
        yield ", ".join(facts), {name: measurements[name] for name in names(course)}
