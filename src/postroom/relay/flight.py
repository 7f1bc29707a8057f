"""A flight: give messages to the broker so that the order of each key survives a refusal."""

import asyncio
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta
from typing import Protocol

from postroom._clock import Clock
from postroom.broker import BrokerFeatures, Publisher
from postroom.errors import BrokerError, BrokerUnavailable, OutcomeUnknown
from postroom.events import Observers, Published, Publishing
from postroom.lane import Lane
from postroom.message import Entry, Message
from postroom.relay.options import RelayOptions
from postroom.relay.tenure import Tenure
from postroom.route import Route

Answer = tuple[Entry, BrokerError | None]
"""An entry that was given to the broker, and None where the broker confirmed it."""


class RelayBroker(Publisher, Protocol):
    """What a relay needs of a broker: its publishing side."""

    @property
    def features(self) -> BrokerFeatures:
        """What this broker can do."""
        ...


class Flight:
    """Publishes the batches of one route, never longer than the lanes are surely ours."""

    def __init__(
        self,
        broker: RelayBroker,
        route: Route,
        tenure: Tenure,
        *,
        options: RelayOptions,
        clock: Clock,
        observers: Observers,
    ) -> None:
        """Publish to that broker by the rules of that route."""
        self._broker = broker
        self._route = route
        self._tenure = tenure
        self._options = options
        self._clock = clock
        self._observers = observers

    async def send(self, entries: Sequence[Entry], lanes: Mapping[int, Lane]) -> list[Answer]:
        """Send in order; return the answers for those that were given to the broker.

        One message of a key is in flight at a time, unless the broker stops a key at a refusal
        by itself: of two in flight the first may be refused and the second taken. What is not
        answered for was not sent (its key had a refusal, the broker is gone, or time was up).
        """
        if self._route.pipelined_keys or self._broker.features.refusal_stops_key:
            return await self._call(entries, lanes)
        answers: list[Answer] = []
        until = self._clock.elapsed() + self._options.renewal.total_seconds()
        queues = _by_key(entries)
        while queues and self._clock.elapsed() < until:
            heads = [queue.popleft() for queue in queues]
            wave = await self._call(heads, lanes)
            answers += wave
            if any(_is_trouble(error) for _, error in wave):
                break
            passed = {entry.seq for entry, error in wave if error is None}
            queues = [
                queue
                for queue, head in zip(queues, heads, strict=True)
                if queue and head.seq in passed
            ]
        return answers

    async def ping(self) -> BrokerError | None:
        """Return None if a publish has a chance now, else why not."""
        try:
            async with asyncio.timeout(self._options.publish_timeout.total_seconds()):
                await self._broker.ping()
        except BrokerError as error:
            return error
        except TimeoutError:
            return BrokerUnavailable("the broker did not answer a probe in time")
        except Exception as error:
            return BrokerUnavailable(f"the probe failed: {error!r}")
        return None

    async def _call(self, entries: Iterable[Entry], lanes: Mapping[int, Lane]) -> list[Answer]:
        remaining = self._tenure.remaining
        timeout = min(self._options.publish_timeout.total_seconds(), remaining)
        owned = {number for number, lane in lanes.items() if self._tenure.owns(lane)}
        ours = tuple(entry for entry in entries if entry.lane in owned)
        if not ours or timeout <= 0:
            return []
        self._observers.emit(Publishing(route=self._route.name, entries=ours))
        began = self._clock.elapsed()
        messages = [_labelled(entry, lanes[entry.lane]) for entry in ours]
        answers = await self._publish(messages, timeout, guard=max(timeout, remaining))
        self._observers.emit(
            Published(
                route=self._route.name,
                confirmed=sum(answer is None for answer in answers),
                entries=ours,
                seconds=self._clock.elapsed() - began,
            )
        )
        return list(zip(ours, answers, strict=True))

    async def _publish(
        self, messages: Sequence[Message], timeout: float, *, guard: float
    ) -> Sequence[BrokerError | None]:
        """Publish; a driver that breaks its contract leaves the outcome unknown, never lost."""
        error: BrokerError
        try:
            async with asyncio.timeout(guard):
                answers = await self._broker.publish(messages, timeout=timedelta(seconds=timeout))
            if len(answers) == len(messages):
                return answers
            error = OutcomeUnknown(f"{len(answers)} answers for {len(messages)} messages")
        except BrokerError as raised:
            error = raised
        except TimeoutError:
            error = OutcomeUnknown("the broker did not answer in time", timed_out=True)
        except Exception as raised:
            error = OutcomeUnknown(f"the driver failed: {raised!r}")
        return [error] * len(messages)


def _is_trouble(error: BrokerError | None) -> bool:
    return isinstance(error, BrokerUnavailable | OutcomeUnknown)


def _by_key(entries: Iterable[Entry]) -> list[deque[Entry]]:
    queues: dict[str, deque[Entry]] = {}
    keyless = []
    for entry in entries:
        if entry.message.key is None:
            keyless.append(deque((entry,)))
        else:
            queues.setdefault(entry.message.key, deque()).append(entry)
    return [*queues.values(), *keyless]


def _labelled(entry: Entry, lane: Lane) -> Message:
    """Add what helps a person who looks at the wire; nothing may depend on it."""
    labels = {"postroom-seq": str(entry.seq), "postroom-epoch": str(lane.epoch)}
    return entry.message.with_headers({**entry.message.headers, **labels})
