"""A batch of messages on its way: judged before, sent in a thread, answered one by one."""

import asyncio
import math
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any, NamedTuple, Self

from confluent_kafka import KafkaError, KafkaException

from postroom.brokers.kafka import codes
from postroom.brokers.kafka.mapping import Record, record_of
from postroom.brokers.kafka.sender import UNSENT, Report, Sender
from postroom.brokers.kafka.topics import Topic, Topics
from postroom.brokers.kafka.wire import error_of, judged, refuses, told
from postroom.errors import (
    BrokerError,
    BrokerUnavailable,
    NotAttempted,
    OutcomeUnknown,
    RefusedForGood,
)
from postroom.message import Message

_THREADS = 16
_UNLIMITED = 2**31
_SENDING, _ANSWERING = 0.9, 0.97
"""The parts of a time-out after which nothing is sent, and after which there is an answer."""


class Deadline(NamedTuple):
    """The end of a call, in seconds of the monotonic clock."""

    sending: float
    """Nothing is sent later."""
    answering: float
    """Whatever librdkafka does, the caller has its answers by then."""
    span: float
    """The whole time-out, in seconds."""

    @classmethod
    def after(cls, seconds: float) -> Self:
        """Return the end of a call that begins now."""
        now = time.monotonic()
        return cls(now + _SENDING * seconds, now + _ANSWERING * seconds, seconds)


class _Bounds(NamedTuple):
    until: float
    lifetime: int
    batch_bytes: int


class _Item(NamedTuple):
    place: int
    key: str | None
    record: Record


class Producing:
    """Publishes; every call has a producer to itself, so that none waits for another's topic."""

    def __init__(self, config: Mapping[str, Any], topics: Topics, *, limit: int | None) -> None:
        """Refuse payloads over the limit, and whatever the broker says is too large."""
        self._config = config
        self._topics = topics
        self._limit = limit
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="postroom-kafka")
        self._idle: list[Sender] = []
        self._lock = threading.Lock()
        self._stopped = threading.Event()
        self._doubtful = False
        """Whether the last call had no answer, so that the next one asks before it sends."""

    async def close(self) -> None:
        """Disconnect; what is on its way is answered as not known."""
        self._stopped.set()
        await asyncio.to_thread(self._end)

    async def publish(
        self, messages: Sequence[Message], deadline: Deadline
    ) -> list[BrokerError | None]:
        """Return one result for each message, in time."""
        records = [self._record(message) for message in messages]
        keys = [message.key for message in messages]
        return await self.send(records, keys, deadline)

    async def send(
        self,
        records: Sequence[Record | RefusedForGood],
        keys: Sequence[str | None],
        deadline: Deadline,
    ) -> list[BrokerError | None]:
        """Send records that are made already."""
        names = {one.topic for one in records if isinstance(one, Record)}
        try:
            if self._doubtful:
                await self._topics.ping(deadline.sending - time.monotonic())
            topics = await self._topics.look(names, deadline.sending - time.monotonic())
        except BrokerUnavailable as error:
            return [error] * len(records)
        limits = {
            name: topic.limit or _UNLIMITED
            for name, topic in topics.items()
            if isinstance(topic, Topic)
        }
        answers = _Answers(len(records))
        todo = []
        for place, (record, key) in enumerate(zip(records, keys, strict=True)):
            if key in answers.blocked:
                answers.behind(place)
            elif isinstance(record, Record) and (
                record.bound <= limits.get(record.topic, -1) or not _trouble(record, topics)
            ):
                todo.append(_Item(place, key, record))
            else:
                answers.put(place, key, _trouble(record, topics))
        # What is before a refusal in its key is on its way all the same.
        answers.blocked.clear()
        if not todo:
            return answers.found
        return await self._answered(todo, answers, deadline, min(limits.values()))

    async def _answered(
        self, todo: Sequence[_Item], answers: "_Answers", deadline: Deadline, batch_bytes: int
    ) -> list[BrokerError | None]:
        """Send in a thread; return the answers when it has them, or when time is over."""
        lifetime = max(math.ceil(deadline.span), 1)
        bounds = _Bounds(deadline.sending, lifetime, batch_bytes)
        judged_before = answers.found.copy()
        loop = asyncio.get_running_loop()
        sending = loop.run_in_executor(self._threads, self._deliver, todo, answers, bounds)
        left = max(deadline.answering - time.monotonic(), 0)
        if (await asyncio.wait((sending,), timeout=left))[0]:
            sending.result()
            return answers.found
        # No thread was free, or the library does not return. What begins now sends nothing.
        sending.cancel()
        self._doubtful = True
        for item in todo:
            judged_before[item.place] = _late()
        return judged_before

    def _record(self, message: Message) -> Record | RefusedForGood:
        size = len(message.payload)
        if self._limit is not None and size > self._limit:
            return RefusedForGood(f"its payload of {size} bytes is over the limit of {self._limit}")
        try:
            return record_of(message)
        except RefusedForGood as error:
            return error

    # In a thread of the call

    def _deliver(self, todo: Sequence[_Item], answers: "_Answers", bounds: _Bounds) -> None:
        for part in _parts(todo):
            items = part
            if answers.blocked:
                items = [item for item in part if item.key not in answers.blocked]
                for item in part:
                    if item.key in answers.blocked:
                        answers.behind(item.place)
            reports = self._reports(items, bounds, careful=False)
            if not any(reports):
                continue
            left: list[tuple[_Item, Report]] = []
            refused = any(_refusal(one) for one in reports)
            for item, report in zip(items, reports, strict=True):
                if refused and (report is UNSENT or _refusal(report)):
                    # Refused was the whole batch, perhaps for the sake of another message.
                    left.append((item, report))
                else:
                    answers.put(item.place, item.key, _answer(report))
            self._one_by_one(left, answers, bounds)
        self._doubtful = answers.unknown

    def _one_by_one(
        self, left: list[tuple[_Item, Report]], answers: "_Answers", bounds: _Bounds
    ) -> None:
        """Send single records, of a key one after the other: each answer is its own."""
        while left:
            wave: list[_Item] = []
            later: list[tuple[_Item, Report]] = []
            seen = set()
            for item, report in left:
                if item.key in answers.blocked:
                    answers.behind(item.place)
                elif item.key in seen:
                    later.append((item, report))
                else:
                    wave.append(item)
                    seen |= {item.key} - {None}
            if time.monotonic() >= bounds.until:
                for item, report in left:
                    refusal = isinstance(report, KafkaError) and item.key not in answers.blocked
                    answers.put(
                        item.place,
                        item.key,
                        _answer(report) if refusal else NotAttempted("there was no time left"),
                    )
                return
            reports = self._reports(wave, bounds, careful=True)
            for item, report in zip(wave, reports, strict=True):
                self._forget_what_changed(item, report)
                answers.put(item.place, item.key, _answer(report, alone=True))
            left = later

    def _forget_what_changed(self, item: _Item, report: Report) -> None:
        if _refusal(report):
            self._topics.forget(item.record.topic)

    def _reports(self, items: Sequence[_Item], bounds: _Bounds, *, careful: bool) -> list[Report]:
        if not items or time.monotonic() >= bounds.until:
            return [UNSENT] * len(items)
        try:
            sender = self._take(bounds, careful=careful)
        except KafkaException as error:
            return [error_of(error)] * len(items)
        try:
            records = [item.record for item in items]
            return sender.send(records, until=bounds.until, stopped=self._stopped.is_set)
        finally:
            self._give_back(sender)

    def _take(self, bounds: _Bounds, *, careful: bool) -> Sender:
        _, lifetime, batch_bytes = bounds
        with self._lock:
            for number, sender in enumerate(self._idle):
                if (
                    sender.careful == careful
                    and sender.batch_bytes <= batch_bytes
                    and lifetime <= sender.lifetime <= 2 * lifetime
                ):
                    return self._idle.pop(number)
        return Sender(self._config, batch_bytes=batch_bytes, lifetime=lifetime, careful=careful)

    def _give_back(self, sender: Sender) -> None:
        with self._lock:
            if not sender.spent and not self._stopped.is_set():
                self._idle.append(sender)
                return
        # Destroying one joins its threads: nobody waits for that with an answer in hand.
        with suppress(RuntimeError):  # closing: whoever closes waits for this thread anyway
            self._threads.submit(sender.destroy)

    def _end(self) -> None:
        self._threads.shutdown(wait=True)
        with self._lock:
            self._idle.clear()


class _Answers:
    """What became of each message, and which keys must wait."""

    def __init__(self, count: int) -> None:
        self.found: list[BrokerError | None] = [None] * count
        self.blocked: set[str | None] = set()
        self.unknown = False

    def put(self, place: int, key: str | None, answer: BrokerError | None) -> None:
        self.found[place] = answer
        if answer is not None and key is not None:
            self.blocked.add(key)
        self.unknown = self.unknown or isinstance(answer, OutcomeUnknown)

    def behind(self, place: int) -> None:
        self.found[place] = NotAttempted("an earlier message of its key was not confirmed")


def _trouble(
    record: Record | RefusedForGood, topics: Mapping[str, Topic | BrokerError]
) -> BrokerError | None:
    if isinstance(record, RefusedForGood):
        return record
    topic = topics[record.topic]
    if isinstance(topic, BrokerError):
        return topic
    if topic.limit is not None and (size := record.size) > topic.limit:
        return RefusedForGood(
            f"it takes {size} bytes on the wire, and the topic {topic.name} takes "
            f"{topic.limit} (max.message.bytes)"
        )
    return None


def _parts(todo: Sequence[_Item]) -> Iterator[list[_Item]]:
    """Divide so that no key goes to two topics in one part: a refusal in one stops only itself."""
    if len({item.record.topic for item in todo}) == 1:
        yield list(todo)
        return
    part: list[_Item] = []
    seen: dict[str, str] = {}
    for item in todo:
        if item.key is not None and seen.setdefault(item.key, item.record.topic) != (
            item.record.topic
        ):
            yield part
            part, seen = [], {item.key: item.record.topic}
        part.append(item)
    yield part


def _refusal(report: Report) -> bool:
    return isinstance(report, KafkaError) and refuses(report)


def _answer(report: Report, *, alone: bool = False) -> BrokerError | None:
    if report is None:
        return None
    if report is UNSENT or report.code() in _NO_ANSWER:
        return _late()
    if alone and report.code() == KafkaError.MSG_SIZE_TOO_LARGE:
        return RefusedForGood(told(report))
    return judged(report)


def _late() -> OutcomeUnknown:
    return OutcomeUnknown("Kafka has not confirmed it in time", timed_out=True)


_NO_ANSWER = frozenset(
    {
        codes.PURGE_INFLIGHT,
        codes.PURGE_QUEUE,
        codes.MSG_TIMED_OUT,
    }
)
