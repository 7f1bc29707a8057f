"""What has to exist in Kafka: the topics, and one of dead letters for each group."""

import asyncio
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from confluent_kafka import KafkaError

from postroom.broker import TopologyPart
from postroom.brokers.kafka.mapping import check_topic
from postroom.brokers.kafka.topics import Topics
from postroom.brokers.kafka.wire import told
from postroom.errors import BrokerError, BrokerUnavailable, RefusedForGood, SettingsError

_ROOM_FOR_REASON = 65_536
"""How much larger a dead letter may be than the message: it says why."""
_LIMIT = 1_048_588
"""What Kafka takes where nothing is set."""
_PARTITIONS_OF_DEAD = 1
_LOOK = 0.02

Wanted = Mapping[str, Mapping[str, str]]
"""Topics with their settings."""


@dataclass(frozen=True, slots=True)
class Names:
    """What everything is called."""

    prefix: str

    def group(self, group: str) -> str:
        """Return the name of the consumer group."""
        return f"{self.prefix}{group}"

    def dead(self, group: str) -> str:
        """Return the name of the topic of a group's dead letters."""
        return f"{self.prefix}{group}.dead"


def wanted(
    names: Names, groups: Mapping[str, Sequence[str]], topics: Iterable[str] = ()
) -> dict[str, Mapping[str, str]]:
    """Return the topics that these groups need, and these topics. Raises ValueError for names."""
    found: dict[str, Mapping[str, str]] = {topic: {} for topic in topics}
    for group, mine in groups.items():
        found |= {topic: {} for topic in mine}
        found[names.dead(group)] = {
            "max.message.bytes": str(_LIMIT + _ROOM_FOR_REASON),
            # Until somebody has looked at it.
            "retention.ms": "-1",
        }
    for name in found:
        try:
            check_topic(name)
        except RefusedForGood as error:
            raise ValueError(error.reason) from error
    return found


def parts(
    names: Names,
    groups: Mapping[str, Sequence[str]],
    *,
    partitions: int | None,
    replication: int | None,
) -> list[TopologyPart]:
    """Return the same for people."""
    dead = {names.dead(group) for group in groups}
    found = []
    for name, settings in wanted(names, groups).items():
        count = _PARTITIONS_OF_DEAD if name in dead else partitions
        how = [
            f"{count} partitions" if count else "the broker's number of partitions",
            f"{replication} replicas" if replication else "its number of replicas",
            *(f"{key}={value}" for key, value in settings.items()),
        ]
        found.append(TopologyPart(kind="topic", name=name, detail=", ".join(how)))
    return found


async def make(
    topics: Topics,
    wanted: Wanted,
    *,
    partitions: int | None,
    replication: int | None,
    timeout: float,
) -> None:
    """Make what is missing. Raises SettingsError and BrokerUnavailable."""
    there = await topics.look(wanted, timeout, to_read=True)
    missing = {}
    for name, settings in wanted.items():
        answer = there[name]
        if isinstance(answer, BrokerError):
            missing[name] = settings
        elif not settings and partitions not in {None, answer.partitions}:
            raise SettingsError(
                f"the topic {name} has {answer.partitions} partitions, not {partitions}; more "
                "of them would send keys elsewhere, out of their order"
            )
    for dead in (True, False):
        some = {name: how for name, how in missing.items() if bool(how) is dead}
        made = await topics.create(
            some,
            partitions=_PARTITIONS_OF_DEAD if dead else partitions or -1,
            replication=replication or -1,
        )
        for name, error in made.items():
            if error is not None and error.code() != KafkaError.TOPIC_ALREADY_EXISTS:
                raise BrokerUnavailable(f"the topic {name} was not made: {told(error)}")
    await _visible(topics, missing, timeout)


async def _visible(topics: Topics, names: Iterable[str], timeout: float) -> None:
    """Return when the brokers tell of these topics: making one is known later than done."""
    until = time.monotonic() + timeout
    left = list(names)
    while left:
        answers = await topics.look(left, max(until - time.monotonic(), _LOOK), to_read=True)
        left = [name for name in left if isinstance(answers[name], BrokerError)]
        if left and time.monotonic() > until:
            raise BrokerUnavailable(f"the topic {left[0]} was made and cannot be seen yet")
        if left:
            await asyncio.sleep(_LOOK)
