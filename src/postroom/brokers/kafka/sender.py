"""One producer of librdkafka, for one call at a time, in a thread of that call."""

import time
from collections.abc import Callable, Mapping, Sequence
from enum import Enum, auto
from functools import partial
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Producer
from confluent_kafka import Message as KafkaMessage

from postroom.brokers.kafka import codes
from postroom.brokers.kafka.mapping import Record
from postroom.brokers.kafka.wire import error_of, refuses

_SLICE = 0.1
_DRAIN = 0.5
"""Seconds to wait for what is in flight elsewhere after one partition has failed."""
_BATCH = 1_000_000
_BUFFER_KILOBYTES = 131_072
_LARGEST = 1_000_000_000


class Unsent(Enum):
    """A report besides confirms and errors (which cannot be compared with anything else)."""

    UNSENT = auto()
    """The broker never had it, or has thrown it away."""


UNSENT = Unsent.UNSENT
Report = KafkaError | None | Unsent
"""None is a confirm; an error with the code `_PURGE_INFLIGHT` is no answer in time."""
_Failures = dict[int, tuple[KafkaError, int | None]]
"""Errors and partitions, by the number of the record."""


class Sender:
    """Sends records in order; of each partition nothing follows what was refused.

    librdkafka alone would close the gap that a refused batch leaves and send what follows. With
    its `enable.gapless.guarantee` it stops for good instead, and this sender is spent. One that
    is `careful` sends single records in batches of their own, and goes on after a refusal: its
    caller gives it one record of a key at a time.
    """

    def __init__(
        self, config: Mapping[str, Any], *, batch_bytes: int, lifetime: int, careful: bool
    ) -> None:
        """Connect in the background. Raises KafkaException.

        What was not sent within `lifetime` seconds is never sent: librdkafka has threads of its
        own, which run first when a frozen process goes on.
        """
        self.batch_bytes = batch_bytes
        self.lifetime = lifetime
        self.careful = careful
        self.spent = False
        """Whether a new one has to be made."""
        self._whole = True
        """Whether every report has reached us, so that silence is a confirm."""
        self._producer = Producer(
            {
                **config,
                # No `error_cb`: with one a fatal error is raised in whatever callback runs, whose
                # report may be lost. The reports say what there is to know.
                "delivery.report.only.error": True,
                "enable.idempotence": True,  # and so acks=all, and order within a partition
                "enable.gapless.guarantee": not careful,
                "partitioner": "murmur2_random",
                "linger.ms": 5,
                "batch.size": min(batch_bytes, _BATCH),
                "batch.num.messages": 1 if careful else 10_000,
                # How much may wait is bounded; how large one may be is judged before.
                "queue.buffering.max.kbytes": _BUFFER_KILOBYTES,
                "message.max.bytes": _LARGEST,
                # Each call purges what it leaves; this is for one that was frozen.
                "delivery.timeout.ms": lifetime * 1000,
                "request.timeout.ms": 10_000,
                "log_level": 3,  # that there is no gap is called experimental, each time
                "topic.metadata.propagation.max.ms": 2_000,
                "topic.metadata.refresh.interval.ms": 30_000,
            }
        )

    def send(
        self, records: Sequence[Record], *, until: float, stopped: Callable[[], bool]
    ) -> list[Report]:
        """Send; return what became of each, at that moment (monotonic) at the latest."""
        failures: _Failures = {}
        given = self._give(records, failures, until)
        self._wait(until, stopped)
        if len(self._producer):
            self._purge()
        settled = self._whole and not len(self._producer)
        if settled and not failures and given == len(records):
            return [None] * given
        return self._judge(len(records), given, failures, settled=settled)

    def destroy(self) -> None:
        """End it and its threads; takes as long as they do."""
        self.spent = True
        del self._producer

    def _give(self, records: Sequence[Record], failures: _Failures, until: float) -> int:
        """Hand the records to librdkafka; return how many it took."""
        produce: Callable[..., None] = self._producer.produce
        for number, record in enumerate(records):
            report = partial(_failed, failures, number)
            topic, key, value, headers, _ = record
            while True:
                if time.monotonic() >= until:
                    return number
                try:
                    produce(topic, value, key, on_delivery=report, headers=headers)
                except BufferError:
                    if self.spent:
                        return number
                    self._serve(0.01)
                except KafkaException as error:
                    if error_of(error).fatal():
                        self.spent = True
                        return number
                    failures[number] = (error_of(error), None)
                    break
                else:
                    break
        return len(records)

    def _wait(self, until: float, stopped: Callable[[], bool]) -> None:
        producer = self._producer
        while len(producer) and not stopped():
            left = until - time.monotonic()
            if left <= 0:
                return
            if self.spent:
                until = min(until, time.monotonic() + _DRAIN)
            self._flush(min(left, _SLICE))

    def _purge(self) -> None:
        """Take back what was not answered; no answer is believed any more."""
        self.spent = True
        self._producer.purge()
        for _ in range(3):
            if not len(self._producer):
                return
            self._flush(0.05)

    def _flush(self, seconds: float) -> None:
        try:
            self._producer.flush(seconds)
        except (KafkaException, SystemError):
            self._broken()

    def _serve(self, seconds: float) -> None:
        try:
            self._producer.poll(seconds)
        except (KafkaException, SystemError):
            self._broken()

    def _broken(self) -> None:
        """Take no silence for a confirm any more: a report may be lost."""
        self.spent = True
        self._whole = False

    def _judge(self, count: int, given: int, failures: _Failures, *, settled: bool) -> list[Report]:
        """Return what became of each; who has no failure is confirmed, if all is settled."""
        failed = {partition for error, partition in failures.values() if refuses(error)}
        reports: list[Report] = []
        for number in range(count):
            if number >= given:
                reports.append(UNSENT)
                continue
            if number not in failures:
                reports.append(None if settled else _NO_ANSWER)
                continue
            error, partition = failures[number]
            code = error.code()
            self.spent = self.spent or code in _AT_AN_END
            if code == codes.PURGE_QUEUE or (
                # Behind a refused batch: the broker takes no sequence number out of turn.
                code in _NOT_KEPT and partition is not None and partition in failed
            ):
                reports.append(UNSENT)
            else:
                reports.append(error)
        return reports


_NO_ANSWER = KafkaError(codes.PURGE_INFLIGHT)
_NOT_KEPT = frozenset(
    {
        codes.PURGE_INFLIGHT,
        codes.GAPLESS_GUARANTEE,
        codes.FATAL,
        KafkaError.OUT_OF_ORDER_SEQUENCE_NUMBER,
    }
)


_AT_AN_END = frozenset(
    {
        codes.GAPLESS_GUARANTEE,
        codes.FATAL,
    }
)
"""The producer has stopped for good."""


def _failed(failures: _Failures, number: int, error: KafkaError, message: KafkaMessage) -> None:
    """Keep a report: librdkafka makes one for each record that is not confirmed."""
    failures[number] = (error, message.partition())
