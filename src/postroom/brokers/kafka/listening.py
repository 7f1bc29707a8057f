"""The thread of a subscription: it alone talks to Kafka, and never stops to poll."""

import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from confluent_kafka import (
    OFFSET_INVALID,
    Consumer,
    KafkaError,
    KafkaException,
    TopicPartition,
)
from confluent_kafka import Message as KafkaMessage

from postroom.brokers.kafka import codes
from postroom.brokers.kafka.mapping import Headers, message_of
from postroom.brokers.kafka.partition import Partition, Received, note, noted, told_reserve
from postroom.brokers.kafka.wire import Wire, error_of, told

_TICK = 0.05
_BETWEEN_COMMITS = 0.1
_COMMIT_PATIENCE = 10.0
_HANDOVER = 1.0
"""Seconds to wait for what is out, before a partition goes to another consumer as planned."""
_AT_ONCE = 500
_MANY_BYTES = 16_777_216
"""Of a partition, in our hands; more are not taken from Kafka."""
Place = tuple[str, int]

_OVER = frozenset(
    {
        KafkaError.UNKNOWN_TOPIC_OR_PART,
        codes.UNKNOWN_TOPIC,
        codes.UNKNOWN_PARTITION,
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.GROUP_AUTHORIZATION_FAILED,
        KafkaError.INCONSISTENT_GROUP_PROTOCOL,
        codes.FATAL,
    }
)
"""The subscription cannot go on."""


class Hearing:
    """What a thread tells its subscription; called in that thread."""

    def changed(self) -> None:
        """Look again: something arrived, or may be handed out now."""
        raise NotImplementedError

    def assigned(self) -> None:
        """Hear that the group has given us partitions."""
        raise NotImplementedError

    def failed(self, reason: str) -> None:
        """Hear that there is nothing more to come."""
        raise NotImplementedError

    def doubtful(self) -> None:
        """Hear that no broker may be reachable; the client goes on trying."""
        raise NotImplementedError

    def ended(self) -> None:
        """Hear that the thread has left the group."""
        raise NotImplementedError


class Listener:
    """Receives for one subscription. `lock` guards the partitions."""

    def __init__(
        self,
        config: Mapping[str, Any],
        topics: Sequence[str],
        hearing: Hearing,
        *,
        prefetch: int,
        patience: float,
    ) -> None:
        """Receive as that configuration says; after `patience` without a poll we are out."""
        self.lock = threading.Condition()
        """Guards the partitions; notified when a delivery has its answer."""
        self.partitions: dict[Place, Partition] = {}
        self.polled = time.monotonic()
        """When the thread was last alive."""
        self._wire = Wire()
        self._config = {**config, "error_cb": self._heard, "on_commit": self._committed}
        self._topics = list(topics)
        self._hearing = hearing
        self._prefetch = prefetch
        self._ahead = max(2 * prefetch, 200)
        self._many = max(4 * prefetch, 1000)
        self._patience = patience
        self._stop = threading.Event()
        self._frozen = threading.Event()
        self._asked = False
        """Whether a commit is on its way."""
        self._asked_at = 0.0
        self._next_commit = 0.0
        self._thread = threading.Thread(target=self._run, name="postroom-kafka", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """Commit what is done, and leave the group."""
        self._stop.set()
        self._frozen.clear()
        with self.lock:
            self.lock.notify_all()

    def freeze(self, *, frozen: bool = True) -> None:
        """Stop to poll, as a process does that hangs; for tests."""
        (self._frozen.set if frozen else self._frozen.clear)()

    @property
    def expelled(self) -> bool:
        """Whether the thread was not alive for so long that the group has gone on without us."""
        return time.monotonic() - self.polled > self._patience

    def _run(self) -> None:
        consumer: Consumer | None = None
        try:
            consumer = Consumer(self._config)
            consumer.subscribe(
                self._topics,
                on_assign=self._on_assign,
                on_revoke=self._on_revoke,
                on_lost=self._on_lost,
            )
            while not self._stop.is_set():
                self._turn(consumer)
        except Exception as error:  # noqa: BLE001 - whatever it is, the subscription must hear it
            self._hearing.failed(told(error_of(error)))
        finally:
            if consumer is not None:
                self._leave(consumer)
            self._hearing.ended()

    def _turn(self, consumer: Consumer) -> None:
        while self._frozen.is_set():
            time.sleep(_TICK)
        first = consumer.poll(_TICK)
        self.polled = time.monotonic()
        if first is not None:
            self._take_in([first, *consumer.consume(_AT_ONCE, 0)])
        self._commit(consumer)
        self._pause_and_resume(consumer)

    def _take_in(self, messages: Iterable[KafkaMessage]) -> None:
        records = []
        for message in messages:
            error = message.error()
            if error is None:
                records.append(_received(message))
            elif error.code() in _OVER or error.fatal():
                self._hearing.failed(told(error))
        with self.lock:
            for place, record in records:
                partition = self.partitions.get(place)
                if partition is not None:
                    partition.receive(record)
        if records:
            self._hearing.changed()

    # Offsets

    def _commit(self, consumer: Consumer) -> None:
        now = time.monotonic()
        if self._asked and now - self._asked_at < _COMMIT_PATIENCE:
            return
        with self.lock:
            hungry = any(partition.starving for partition in self.partitions.values())
            if not hungry and now < self._next_commit:
                return
            asked = {
                place: wanted
                for place, partition in self.partitions.items()
                if not partition.lost and (wanted := partition.wanted()) is not None
            }
        if not asked:
            return
        self._asked, self._asked_at = True, now
        self._next_commit = now + _BETWEEN_COMMITS
        try:
            consumer.commit(offsets=_offsets(asked), asynchronous=True)
        except KafkaException:
            self._asked = False

    def _committed(self, error: KafkaError | None, offsets: list[TopicPartition]) -> None:
        """Hear what became of a commit; what failed is asked for again.

        Only what the answer itself names is believed: it may be that of an earlier commit.
        """
        self._asked = False
        if error is not None:
            return
        with self.lock:
            for one in offsets:
                partition = self.partitions.get((one.topic, one.partition))
                reserve = told_reserve(one.metadata)
                if one.error is None and partition is not None and reserve is not None:
                    partition.confirm((one.offset, reserve))
        self._hearing.changed()

    def _commit_for_good(self, consumer: Consumer, places: Iterable[Place]) -> None:
        """Commit exactly what is done, while the partitions are still ours."""
        with self.lock:
            asked = {
                place: wanted
                for place in places
                if (partition := self.partitions.get(place)) is not None
                and (wanted := partition.wanted(final=True)) is not None
            }
        if asked:
            with suppress(KafkaException):  # what is not committed comes again
                consumer.commit(offsets=_offsets(asked), asynchronous=False)

    # Rebalances

    def _on_assign(self, consumer: Consumer, given: list[TopicPartition]) -> None:
        known = consumer.committed(given, timeout=_COMMIT_PATIENCE) if given else []
        with self.lock:
            for one in known:
                if one.error is not None:
                    raise KafkaException(one.error)
                start = None if one.offset == OFFSET_INVALID else one.offset
                self.partitions[one.topic, one.partition] = Partition(
                    topic=one.topic,
                    number=one.partition,
                    start=start,
                    seen=0 if start is None else noted(one.metadata, start, self._prefetch),
                    ahead=self._ahead,
                )
        if known:
            starts = [TopicPartition(one.topic, one.partition, one.offset) for one in known]
            consumer.incremental_assign(starts)
            self._hearing.assigned()

    def _on_revoke(self, consumer: Consumer, taken: list[TopicPartition]) -> None:
        places = _places(taken)
        self._bring_to_rest(places)
        self._commit_for_good(consumer, places)
        self._lose(places)

    def _bring_to_rest(self, places: Iterable[Place]) -> None:
        """Hand out no more of these, and wait a moment for what is out."""
        with self.lock:
            leaving = [self.partitions[place] for place in places if place in self.partitions]
            for partition in leaving:
                partition.leaving = True
            self.lock.wait_for(
                lambda: self._stop.is_set() or not any(partition.out for partition in leaving),
                timeout=min(_HANDOVER, self._patience / 4),
            )

    def _on_lost(self, _: Consumer, taken: list[TopicPartition]) -> None:
        self._lose(_places(taken))

    def _lose(self, places: Iterable[Place]) -> None:
        with self.lock:
            for place in places:
                partition = self.partitions.pop(place, None)
                if partition is not None:
                    partition.lost = True
        self._hearing.changed()

    # How much

    def _pause_and_resume(self, consumer: Consumer) -> None:
        pause, resume = [], []
        with self.lock:
            for (topic, number), partition in self.partitions.items():
                count, size = len(partition.pending), partition.size
                if not partition.paused and (count >= self._many or size >= _MANY_BYTES):
                    partition.paused = True
                    pause.append(TopicPartition(topic, number))
                elif partition.paused and count <= self._many // 2 and size <= _MANY_BYTES // 2:
                    partition.paused = False
                    resume.append(TopicPartition(topic, number))
        with suppress(KafkaException):  # it was taken from us meanwhile
            if pause:
                consumer.pause(pause)
            if resume:
                consumer.resume(resume)

    # The wire

    def _heard(self, error: KafkaError) -> None:
        self._wire.noted(error)
        if self._wire.hopeless:
            self._hearing.failed(self._wire.said)
        elif self._wire.down:
            self._wire.answered()
            self._hearing.doubtful()

    def _leave(self, consumer: Consumer) -> None:
        with self.lock:
            places = list(self.partitions)
        self._commit_for_good(consumer, places)
        with self.lock:
            for partition in self.partitions.values():
                partition.lost = True
            self.partitions.clear()
        with suppress(KafkaException, RuntimeError):
            consumer.close()


def _received(message: KafkaMessage) -> tuple[Place, Received]:
    topic = message.topic() or ""
    key, value, headers = message.key(), message.value(), _headers(message)
    offset = message.offset()
    record = Received(
        offset=-1 if offset is None else offset,
        message=message_of(topic, key, value, headers),
        key=key,
        value=value,
        headers=headers,
    )
    return (topic, message.partition() or 0), record


def _headers(message: KafkaMessage) -> Headers:
    """Return the headers; none where the library cannot read them."""
    found: Callable[[], Any] = message.headers
    try:
        return [(str(name), _bytes(value)) for name, value in found() or ()]
    except (UnicodeDecodeError, SystemError, TypeError, ValueError):
        return []


def _bytes(value: object) -> bytes | None:
    return value if isinstance(value, bytes) or value is None else str(value).encode()


def _offsets(asked: Mapping[Place, tuple[int, int]]) -> list[TopicPartition]:
    return [
        TopicPartition(topic, number, position, metadata=note(reserve))
        for (topic, number), (position, reserve) in asked.items()
    ]


def _places(partitions: Iterable[TopicPartition]) -> list[Place]:
    return [(one.topic, one.partition) for one in partitions]
