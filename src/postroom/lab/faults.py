"""What a broker does wrong: a wrapper around the real one, told by a file what to do."""

import asyncio
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

from postroom.broker import BrokerFeatures
from postroom.errors import BrokerError, BrokerUnavailable, OutcomeUnknown, RefusedForNow
from postroom.message import Message
from postroom.relay import RelayBroker

_GLANCE = 0.02


@dataclass(frozen=True, slots=True, kw_only=True)
class Faults:
    """The faults of the moment; none of them by default."""

    delay: float = 0
    """Seconds before each publish."""
    hang: bool = False
    """Takes half of what it is given and answers for none of it."""
    capacity: float = 0
    """Messages per second that it can take; 0 is as many as come."""
    refuse: Mapping[str, int] = field(default_factory=dict)
    """Message ids, and how often each is refused for now (by each process)."""
    refuse_every: int = 0
    """Refuses each n-th message once."""
    closes_on: tuple[str, ...] = ()
    """Message ids on which it ends the connection with an error."""
    closes: int = 0
    """How often it does so (by each process); 0 is always."""
    gate: tuple[str, ...] = ()
    """Message ids that it lets wait while they stand here."""

    def write(self, path: Path) -> None:
        """Put these faults in force, for all processes at once."""
        fresh = path.with_suffix(".new")
        fresh.write_text(json.dumps(asdict(self)))
        fresh.replace(path)

    @staticmethod
    def read(path: Path) -> "Faults":
        """Return the faults in force."""
        try:
            fields: dict[str, Any] = json.loads(path.read_text())
        except FileNotFoundError:
            return Faults()
        for name in ("closes_on", "gate"):
            fields[name] = tuple(fields[name])
        return Faults(**fields)


class FaultyBroker:
    """The relay's side of a broker, with the faults of the moment."""

    def __init__(self, broker: RelayBroker, path: Path) -> None:
        """Wrap the broker; the file at `path` says what goes wrong."""
        self._broker = broker
        self._path = path
        self._refused: Counter[str] = Counter()
        self._closed: Counter[str] = Counter()

    @property
    def features(self) -> BrokerFeatures:
        """What this broker can do; a refusal of the wrapper's stops nothing that follows."""
        return replace(self._broker.features, refusal_stops_key=False)

    async def publish(
        self, messages: Sequence[Message], *, timeout: timedelta
    ) -> Sequence[BrokerError | None]:
        """Send the messages, as far as the faults allow."""
        faults = Faults.read(self._path)
        if await self._waits(messages, timeout):
            return [_no_answer() for _ in messages]
        if faults.hang:
            await self._broker.publish(messages[: len(messages) // 2], timeout=timeout)
            await asyncio.sleep(timeout.total_seconds())
            return [_no_answer() for _ in messages]
        if killers := {message.id for message in messages} & set(self._killers(faults)):
            return await self._close(messages, killers, timeout)
        if faults.delay:
            await asyncio.sleep(min(faults.delay, timeout.total_seconds()))
        return await self._take(messages, faults, timeout)

    async def ping(self) -> None:
        """Return once a publish has a chance."""
        if Faults.read(self._path).hang:
            raise BrokerUnavailable("the broker accepts connections and says nothing")
        await self._broker.ping()

    async def _waits(self, messages: Sequence[Message], timeout: timedelta) -> bool:
        """Wait for the gate; tell whether the time was over before it opened."""
        ids = {message.id for message in messages}
        end = asyncio.get_running_loop().time() + timeout.total_seconds() * 0.9
        while ids & set(Faults.read(self._path).gate):
            if asyncio.get_running_loop().time() > end:
                return True
            await asyncio.sleep(_GLANCE)
        return False

    def _killers(self, faults: Faults) -> Sequence[str]:
        limit = faults.closes
        return [id_ for id_ in faults.closes_on if not limit or self._closed[id_] < limit]

    async def _close(
        self, messages: Sequence[Message], killers: set[str], timeout: timedelta
    ) -> Sequence[BrokerError | None]:
        """End the connection at the first killer: what stood before it has arrived."""
        first = next(i for i, message in enumerate(messages) if message.id in killers)
        self._closed[messages[first].id] += 1
        if first:
            await self._broker.publish(messages[:first], timeout=timeout)
        reply = "406 PRECONDITION_FAILED: a header that this broker cannot store"
        return [
            OutcomeUnknown("the broker closed the channel", error_reply=reply) for _ in messages
        ]

    async def _take(
        self, messages: Sequence[Message], faults: Faults, timeout: timedelta
    ) -> Sequence[BrokerError | None]:
        refused = [self._refuses(message, faults) for message in messages]
        passed = [m for m, no in zip(messages, refused, strict=True) if not no]
        late = 0
        if faults.capacity:
            room = int(faults.capacity * timeout.total_seconds())
            late = max(len(passed) - room, 0)
            await asyncio.sleep(min(len(passed), room) / faults.capacity)
        taken = passed[: len(passed) - late]
        answers: list[BrokerError | None] = []
        if taken:
            answers.extend(await self._broker.publish(taken, timeout=timeout))
        answers.extend(_no_answer() for _ in range(late))
        rest = iter(answers)
        return [
            RefusedForNow("no queue is bound for it yet") if no else next(rest) for no in refused
        ]

    def _refuses(self, message: Message, faults: Faults) -> bool:
        times = faults.refuse.get(message.id, 0)
        if (
            not times
            and faults.refuse_every
            and int(message.id[-4:], 16) % faults.refuse_every == 0
        ):
            times = 1
        if self._refused[message.id] >= times:
            return False
        self._refused[message.id] += 1
        return True


def _no_answer() -> OutcomeUnknown:
    return OutcomeUnknown("no answer within the time-out", timed_out=True)
