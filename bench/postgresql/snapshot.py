"""Reads and sweeps while another session's snapshot keeps vacuum from cleaning up."""

import asyncio
import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta

from bench import stage
from bench.postgresql.brokers import Confirming
from bench.postgresql.ground import Ground
from bench.postgresql.probes import TimedStore, buffers
from bench.postgresql.running import opened
from bench.postgresql.scale import Scale
from bench.report import Result
from postroom.errors import BrokerError, NotAttempted, RefusedForNow
from postroom.events import Event, Sent
from postroom.message import Message
from postroom.relay import Relay, RelayBroker
from postroom.retry import Backoff, RetryPolicy
from postroom.route import Route, Routes

_CHUNK = 10_000
_LOOKS = 5
_ROUTE = Route(retry=RetryPolicy(backoff=Backoff(initial=timedelta(milliseconds=50))))


class Choosy(Confirming):
    """Refuses one of a hundred messages once, and with it what follows of its key."""

    def __init__(self) -> None:
        """Refuse nothing yet."""
        self._refused: set[str] = set()

    async def publish(
        self, messages: Sequence[Message], *, timeout: timedelta
    ) -> Sequence[BrokerError | None]:
        """Confirm or refuse."""
        del timeout
        stopped: set[str | None] = set()
        answers: list[BrokerError | None] = []
        for message in messages:
            if message.key in stopped:
                answers.append(NotAttempted("behind a refused one"))
            elif (message.version or 0) % 100 == 0 and message.id not in self._refused:
                self._refused.add(message.id)
                stopped.add(message.key)
                answers.append(RefusedForNow("not now"))
            else:
                answers.append(None)
        return answers


@dataclass(frozen=True, slots=True)
class Run:
    """What was seen while messages passed."""

    reads: Sequence[float]
    """Seconds of each read of a whole batch, in order."""
    buffers: tuple[float, float]
    """Of a read of a hundred messages, at the start and at the end."""
    swept: float
    """The share of the time that sweeps took which found nothing to do."""

    def results(self, title: str) -> Iterator[Result]:
        """Judge it."""
        part = max(len(self.reads) // 10, 1)
        start = statistics.median(self.reads[:part]) * 1000
        end = statistics.median(self.reads[-part:]) * 1000
        yield _grown(f"{title}: read", start, end, "ms")
        yield _grown(f"{title}: buffers of a read", *self.buffers, "buffers")
        yield Result(
            name=f"{title}: idle sweeps", value=self.swept * 100, unit="% of the time", goal=1
        )


def measure(ground: Ground, scale: Scale) -> Iterator[Result]:
    """Let messages pass while the snapshot is held: plain ones, then some that are retried."""
    for name, broker, passed in (
        ("", Confirming(), scale.passed),
        (", 1 % refused once", Choosy(), scale.passed // 5),
    ):
        run = asyncio.run(_held(ground, broker, passed))
        yield from run.results(f"snapshot held over {passed:,}{name}{scale.suffix}")
        asyncio.run(ground.emptied())


async def _held(ground: Ground, broker: RelayBroker, passed: int) -> Run:
    store = TimedStore(ground.url, schema=ground.schema)
    async with opened(store), ground.connected() as other:
        passage = Passage(ground, store, broker)
        async with other.transaction(isolation="repeatable_read", readonly=True):
            await other.fetchval("select count(*) from postroom_lane")
            await passage.send(_CHUNK)
            before = await passage.buffers()
            while passage.sent < passed:
                await passage.send(_CHUNK)
            after = await passage.buffers()
        return passage.run((before, after))


class Passage:
    """Messages on their way through one relay, chunk by chunk."""

    def __init__(self, ground: Ground, store: TimedStore, broker: RelayBroker) -> None:
        """Send them from that store to that broker."""
        self._ground = ground
        self._store = store
        self._relay = Relay(store, broker, routes=Routes([_ROUTE]), observers=[self._observe])
        self._wanted = 0
        self._spent = 0.0
        self.sent = 0
        """How many were sent."""

    async def send(self, count: int) -> None:
        """Add so many, and return when they were sent; only the second takes time."""
        await self._ground.add(count, first=self._wanted)
        self._wanted += count
        began = time.perf_counter()
        while self.sent < self._wanted:
            if (await self._relay.step()).idle:
                await asyncio.sleep(0.005)
        self._spent += time.perf_counter() - began

    async def buffers(self) -> float:
        """Return how many buffers a read of a hundred messages touches."""
        found = []
        for _ in range(_LOOKS):
            with buffers() as seen:
                await self.send(100)
            found.append(seen[0])
        return statistics.median(found)

    def run(self, buffers: tuple[float, float]) -> Run:
        """Return what was seen."""
        reads = [seconds for count, seconds in self._store.reads if count >= stage.BATCH]
        return Run(reads, buffers, sum(self._store.vain_sweeps) / self._spent)

    def _observe(self, event: Event) -> None:
        self.sent += isinstance(event, Sent)


def _grown(name: str, start: float, end: float, unit: str) -> Result:
    return Result(name=name, value=end, unit=unit, baseline=start, ratio=end / start, goal=1.5)
