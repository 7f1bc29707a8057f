"""What has to exist in RabbitMQ: the exchange, a queue for each group, dead letters, delays.

A retry with a delay goes through a cascade of queues whose messages expire after 0.1 s, 0.2 s,
0.4 s and so on. The routing key says in binary through which of them: of each delay the broker
itself makes the sum, no message waits behind one with a longer delay, and the last exchange leads
back to the queue of the group. The cascade is shared by all groups of a virtual host.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from hashlib import sha256
from typing import Literal

from pamqp import commands
from pamqp.base import Frame

from postroom.broker import TopologyPart

QueueType = Literal["classic", "quorum"]

LEVELS = 16
UNIT = timedelta(milliseconds=100)
LONGEST = UNIT * (2**LEVELS - 1)
"""The longest delay of one pass, nearly two hours; a longer one takes several."""
_NO_DELIVERY_LIMIT_FROM = (4, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Names:
    """What everything is called."""

    exchange: str
    queue_type: QueueType
    single_active: bool

    def queue(self, group: str) -> str:
        """Return the name of a group's queue."""
        return f"{self.exchange}.{group}"

    def dead(self, group: str) -> str:
        """Return the name of the queue of a group's dead letters."""
        return f"{self.exchange}.{group}.dead"

    def delay(self, level: int) -> str:
        """Return the name of the exchange and the queue of one level of the cascade."""
        return f"postroom.delay.{self.queue_type}.{level:02}"

    @property
    def delayed(self) -> str:
        """The exchange at the end of the cascade."""
        return f"postroom.delay.{self.queue_type}.end"


def delay_route(names: Names, group: str, delay: timedelta) -> tuple[str, str]:
    """Return the exchange and the routing key for a copy that is to wait for so long.

    Rounded up to whole units; at most `LONGEST`.
    """
    units = max(1, min(-(-delay // UNIT), 2**LEVELS - 1))
    bits = ".".join(str(units >> level & 1) for level in reversed(range(LEVELS)))
    return names.delay(LEVELS - 1), f"{bits}.{_word(names.queue(group))}"


def _word(queue: str) -> str:
    """Return a queue's name as one word of a routing key, whatever is in it."""
    return sha256(queue.encode()).hexdigest()[:32]


@dataclass(frozen=True, slots=True, kw_only=True)
class Declaration:
    """One part, and the method that makes it."""

    part: TopologyPart
    method: Frame


def declarations(
    names: Names, groups: Mapping[str, Sequence[str]], *, version: tuple[int, int] = (0, 0)
) -> list[Declaration]:
    """Return everything that these groups, with their topics, need; in the order of making.

    Raises ValueError for names that RabbitMQ does not take.
    """
    found = [_exchange(names.exchange, "direct")]
    if groups:
        found += _cascade(names, version)
    for group, topics in groups.items():
        found += _group(names, group, topics, version)
    return found


def _group(
    names: Names, group: str, topics: Sequence[str], version: tuple[int, int]
) -> Iterator[Declaration]:
    queue, dead = names.queue(group), names.dead(group)
    yield _queue(dead, names.queue_type, version)
    yield _queue(
        queue,
        names.queue_type,
        version,
        # What is rejected without us (a delivery limit, a policy) is kept too.
        dead_letters=("", dead),
        single_active=names.single_active,
    )
    for topic in topics:
        yield _binding(queue, names.exchange, topic)
    yield _binding(queue, names.delayed, f"{'*.' * LEVELS}{_word(queue)}")


def _cascade(names: Names, version: tuple[int, int]) -> Iterator[Declaration]:
    yield _exchange(names.delayed, "topic")
    below = names.delayed
    for level in range(LEVELS):
        here = names.delay(level)
        yield _exchange(here, "topic")
        yield _queue(
            here,
            names.queue_type,
            version,
            dead_letters=(below, None),
            ttl=UNIT * 2**level // timedelta(milliseconds=1),
        )
        before = "*." * (LEVELS - 1 - level)
        yield _binding(here, here, f"{before}1.#")
        yield _bridge(below, here, f"{before}0.#")
        below = here


def _exchange(name: str, kind: str) -> Declaration:
    return Declaration(
        part=TopologyPart(kind="exchange", name=name, detail=f"{kind}, durable"),
        method=commands.Exchange.Declare(exchange=name, exchange_type=kind, durable=True),
    )


def _queue(
    name: str,
    queue_type: QueueType,
    version: tuple[int, int],
    *,
    dead_letters: tuple[str, str | None] | None = None,
    single_active: bool = False,
    ttl: int | None = None,
) -> Declaration:
    arguments: dict[str, str | int | bool] = {"x-queue-type": queue_type}
    if single_active:
        arguments["x-single-active-consumer"] = True
    if ttl is not None:
        arguments["x-message-ttl"] = ttl
    if dead_letters is not None:
        arguments["x-dead-letter-exchange"] = dead_letters[0]
        if dead_letters[1] is not None:
            arguments["x-dead-letter-routing-key"] = dead_letters[1]
        if queue_type == "quorum":
            # Without these a quorum queue forgets a message before its next queue has it.
            arguments["x-dead-letter-strategy"] = "at-least-once"
            arguments["x-overflow"] = "reject-publish"
    if queue_type == "quorum" and version >= _NO_DELIVERY_LIMIT_FROM:
        # RabbitMQ 4 drops what came back twenty times; giving back is no failure here.
        arguments["x-delivery-limit"] = -1
    told = ", ".join(f"{key}={value}" for key, value in arguments.items())
    return Declaration(
        part=TopologyPart(kind="queue", name=name, detail=f"durable, {told}"),
        method=commands.Queue.Declare(queue=name, durable=True, arguments={**arguments}),
    )


def _binding(queue: str, exchange: str, routing_key: str) -> Declaration:
    if len(routing_key.encode()) > 255:  # noqa: PLR2004 - the wire has one byte for it
        raise ValueError(f"the topic {routing_key[:40]!r}... has more than 255 bytes")
    return Declaration(
        part=TopologyPart(kind="binding", name=f"{exchange} -> {queue}", detail=routing_key),
        method=commands.Queue.Bind(queue=queue, exchange=exchange, routing_key=routing_key),
    )


def _bridge(destination: str, source: str, routing_key: str) -> Declaration:
    return Declaration(
        part=TopologyPart(
            kind="binding", name=f"{source} -> exchange {destination}", detail=routing_key
        ),
        method=commands.Exchange.Bind(
            destination=destination, source=source, routing_key=routing_key
        ),
    )
