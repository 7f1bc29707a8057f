"""Reading queues of a RabbitMQ without taking anything out of them.

Messages are consumed and never acknowledged: what was read once is known, and the server keeps it
for the next connection.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from pamqp import commands

from postroom.lab.broker import Grave
from postroom.lab.brokers.rabbitmq.wire import Content, Missing, Wire

MOST = 65_535
"""As many messages as a quorum queue hands out; "everything" are two thousand to it."""
_PATIENCE = 5.0
_GLANCE = 0.01


@dataclass(slots=True)
class Heard:
    """What came so far."""

    arrivals: list[str] = field(default_factory=list)
    graves: list[Grave] = field(default_factory=list)


class Ears:
    """Listens at the queue of what arrives, and at those of the dead letters."""

    def __init__(self, url: str, audit: str) -> None:
        """Listen at that queue, and at no others yet."""
        self.dead: Mapping[str, str] = {}
        """Queues of dead letters, and whose they are."""
        self._audit = audit
        self._wire = Wire(url)
        self._heard = Heard()

    def heard(self) -> Heard:
        """Return everything that is there by now; raises Unusable."""
        queues = (self._audit, *self.dead)
        try:
            if not self._wire.connected:
                self._heard = Heard()
                self._begin(queues)
            for queue in queues:
                empty(self._wire, queue)
        except Missing:
            self.close()  # with its channel it has lost what it consumed
            raise
        for content in self._wire.take():
            if content.queue == self._audit:
                self._heard.arrivals.append(content.properties.message_id or "")
            else:
                self._heard.graves.append(_grave(self.dead[content.queue], content))
        return self._heard

    def close(self) -> None:
        """Disconnect."""
        self._wire.close()

    def _begin(self, queues: Sequence[str]) -> None:
        """Consume them all, once what an earlier connection held is back in its place."""
        until = time.monotonic() + _PATIENCE
        while _consumers(self._wire, self._audit) and time.monotonic() < until:
            time.sleep(_GLANCE)
        for queue in queues:
            most = 0 if queue == self._audit else MOST
            self._wire.call(commands.Basic.Qos(prefetch_count=most), commands.Basic.QosOk)
            consume(self._wire, queue)


def consume(wire: Wire, queue: str) -> None:
    """Begin to consume a queue, under its own name; raises Unusable."""
    wire.call(commands.Basic.Consume(queue=queue, consumer_tag=queue), commands.Basic.ConsumeOk)


def empty(wire: Wire, queue: str) -> None:
    """Wait until everything that was ready is here.

    The answer may be faster than what was delivered before it; that of the next call is not.
    """
    until = time.monotonic() + _PATIENCE
    while ready(wire, queue) and time.monotonic() < until:
        time.sleep(_GLANCE)
    ready(wire, queue)


def ready(wire: Wire, queue: str) -> int:
    """Return how many messages a queue can hand out."""
    return _declared(wire, queue).message_count or 0


def _consumers(wire: Wire, queue: str) -> int:
    return _declared(wire, queue).consumer_count or 0


def _declared(wire: Wire, queue: str) -> commands.Queue.DeclareOk:
    return wire.call(commands.Queue.Declare(queue=queue, passive=True), commands.Queue.DeclareOk)


def ids(contents: Sequence[Content]) -> set[str]:
    """Return the ids of messages."""
    return {content.properties.message_id or "" for content in contents}


def _grave(group: str, content: Content) -> Grave:
    headers = content.properties.headers or {}
    deaths = headers.get("x-death")
    death = deaths[0] if isinstance(deaths, list) and deaths else {}
    moved = death if isinstance(death, dict) else {}
    died, at = headers.get("postroom-died-at"), moved.get("time")
    seconds = at.timestamp() if isinstance(at, datetime) else 0.0
    key = headers.get("postroom-key")
    return Grave(
        group=group,
        message_id=content.properties.message_id or "",
        key=None if key is None else str(key),
        reason=str(headers.get("postroom-reason") or moved.get("reason") or ""),
        died_at=died / 1_000_000 if isinstance(died, int) else seconds,
    )
