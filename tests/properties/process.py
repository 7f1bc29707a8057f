"""A relay as an operating system sees it: it can die or be stopped at any line."""

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Collection, Sequence
from datetime import timedelta
from typing import Any, Literal, Protocol, cast

from postroom.broker import Broker
from postroom.errors import BrokerError
from postroom.events import Event
from postroom.lane import Lane
from postroom.message import Entry, Message
from postroom.outcome import Settled
from postroom.relay import Relay, RelayBroker, RelayOptions, Step
from postroom.route import Routes
from postroom.store import Store
from postroom.testing.clock import ManualClock

LEASE = timedelta(seconds=15)
RENEWAL = timedelta(seconds=5)
CALLS = [
    f"{when} {call}"
    for when in ("before", "after")
    for call in ("settle", "publish", "hold", "read", "sweep", "lease", "ping")
]
"""Spots at which a process can crash, freeze, or find the database locked."""
EVENTS = ["Published", "Publishing", "Sent", "Retried", "Dead", "Held", "Read", "LanesTaken"]
"""Spots at which it can crash."""
Fate = Literal["health", "crash", "freeze", "lock"]


class Crash(BaseException):
    """The process is gone: what stands after this line never ran."""


class Broken(BaseException):
    """A rule was broken; no `except Exception` of the relay may keep that from the test."""


class Witness(Protocol):
    """Whoever writes down what relays do to the world."""

    async def before_publish(
        self, process: "Process", messages: Sequence[Message], *, stopped: bool
    ) -> None:
        """See what is about to be sent; `stopped` if the process was frozen right before."""
        ...

    def published(
        self,
        process: "Process",
        messages: Sequence[Message],
        answers: Sequence[BrokerError | None],
    ) -> None:
        """See what the broker answered."""
        ...

    def settled(
        self,
        process: "Process",
        lanes: Sequence[Lane],
        outcomes: Sequence[Settled],
        done: Collection[int],
    ) -> None:
        """See what it wrote down, and how much of that the store took."""
        ...

    def held(
        self, process: "Process", lanes: Sequence[Lane], entries: Sequence[Entry], count: int
    ) -> None:
        """See which rows it put behind others, and how many the store took."""
        ...

    def leased(self, process: "Process", lanes: Sequence[Lane]) -> None:
        """See which lanes it has now."""
        ...

    def gave(self, process: "Process", lanes: Sequence[Lane] | None) -> None:
        """See which lanes (None: all) it gave back."""
        ...


class Process:
    """One relay whose every way to the outside can be cut.

    At one spot of a step (an event, or before or after a call to the store or to the broker) it
    meets its fate: it crashes (nothing of it reaches the outside any more), it freezes (until
    `thaw`), or the database gets locked by somebody else.
    """

    def __init__(
        self,
        name: str,
        store: Store,
        broker: Broker,
        *,
        witness: Witness,
        routes: Routes,
        options: RelayOptions,
        clock: ManualClock,
        lock: Callable[[], None],
    ) -> None:
        self.name = name
        self.gone = False
        self.frozen = False
        self.late = False
        """Whether it was frozen during its current step, so that its lanes may be gone."""
        self.confirmed: set[str] = set()
        """What the broker confirmed to it in its current step."""
        self.tried: set[str] = set()
        """What it has given to the broker in its current step."""
        self.in_flight: set[str] = set()
        """What the broker has not answered yet."""
        self.task: asyncio.Task[Step] | None = None
        self.passed = 0
        """How many spots it has come by."""
        self.asking = 0
        """How many of its calls the store is working on."""
        self._witness = witness
        self._lock = lock
        self._fate: Fate = "health"
        self._spot = ""
        self._gate = asyncio.Event()
        self._publishing = asyncio.Lock()
        self.relay = Relay(
            cast("Store", _Wire(store, self)),
            cast("RelayBroker", _Wire(broker, self)),
            routes=routes,
            options=options,
            observers=[self._observe],
            clock=clock,
            name=name,
        )

    @property
    def runs(self) -> bool:
        """Whether it is within a step and not frozen."""
        return self.task is not None and not self.task.done() and not self.frozen

    def begin_step(self, fate: Fate, spot: str) -> "asyncio.Task[Step]":
        """Start a step, which meets its fate at that spot if it comes there."""
        self._fate, self._spot = fate, spot
        self.late = False
        self.confirmed, self.tried = set(), set()
        self.task = asyncio.ensure_future(self.relay.step())
        return self.task

    def disarm(self) -> None:
        """Let whatever comes now happen in health."""
        self._fate = "health"

    def thaw(self) -> None:
        """Let it go on where it was stopped, as if no time had passed."""
        self.frozen = False
        self._gate.set()

    def kill(self) -> None:
        """End it where it is."""
        self.gone = True
        self.thaw()

    async def point(self, spot: str) -> bool:
        """Meet whatever fate this spot has; return whether time stood still here."""
        await asyncio.sleep(0)
        self.passed += 1
        fate = self._fate_at(spot)
        if fate == "freeze":
            self._gate.clear()
            self.frozen = self.late = True
        elif fate == "lock":
            self._lock()
        elif fate == "crash":
            self.gone = True
        stopped = self.frozen
        if stopped:
            # So is every other task of this process, wherever it is.
            await self._gate.wait()
        if self.gone:
            raise Crash
        return stopped

    async def call(
        self, name: str, target: Callable[..., Awaitable[Any]], args: Sequence[Any]
    ) -> Any:
        """Make one call to the outside, with the world's witness."""
        stopped = await self.point(f"before {name}")
        asks = name not in {"publish", "ping"}
        self.asking += asks
        try:
            if name == "publish":
                result = await self._publish(args[0], target, stopped=stopped)
            else:
                result = await target()
            self._note(name, args, result)
        except AssertionError as broken:
            raise Broken(*broken.args) from broken
        finally:
            self.asking -= asks
        await self.point(f"after {name}")
        return result

    async def _publish(
        self, messages: Sequence[Message], target: Callable[..., Awaitable[Any]], *, stopped: bool
    ) -> Any:
        """Publish after the witness has looked; the look must not change who goes first."""
        async with self._publishing:
            await self._witness.before_publish(self, messages, stopped=stopped)
        ids = {message.id for message in messages}
        self.tried |= ids
        self.in_flight |= ids
        try:
            return await target()
        finally:
            self.in_flight -= ids

    def _note(self, name: str, args: Sequence[Any], result: Any) -> None:
        match name:
            case "publish":
                self.confirmed |= {
                    message.id
                    for message, error in zip(args[0], result, strict=True)
                    if error is None
                }
                self._witness.published(self, args[0], result)
            case "lease":
                self._witness.leased(self, result)
            case "settle":
                self._witness.settled(self, args[0], args[1], result)
            case "hold":
                self._witness.held(self, args[0], args[1], result)
            case "give":
                self._witness.gave(self, args[0])
            case "leave":
                self._witness.gave(self, None)

    def _observe(self, event: Event) -> None:
        if self._fate == "crash" and self._fate_at(type(event).__name__) == "crash":
            self.gone = True
        if self.gone:
            raise Crash

    def _fate_at(self, spot: str) -> Fate:
        if self._fate == "health" or spot != self._spot:
            return "health"
        fate, self._fate = self._fate, "health"
        return fate


class _Wire:
    """Passes every call on, through the points where the process can end."""

    def __init__(self, inner: object, process: Process) -> None:
        self._inner = inner
        self._process = process

    def __getattr__(self, name: str) -> Any:
        target = getattr(self._inner, name)
        if not inspect.iscoroutinefunction(target):
            return target

        async def call(*args: Any, **options: Any) -> Any:
            return await self._process.call(name, lambda: target(*args, **options), args)

        return call
