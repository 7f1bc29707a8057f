"""What a consumer writes down in JetStream: failed attempts, and dead letters."""

import json
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime

from postroom._clock import to_micros
from postroom.brokers.nats import mapping
from postroom.brokers.nats.api import Api
from postroom.brokers.nats.delivery import Books, NatsDelivery
from postroom.brokers.nats.headers import Lines, line, quoted
from postroom.brokers.nats.mapping import Packed, around, to_subject
from postroom.brokers.nats.topology import Names
from postroom.errors import RefusedForGood

Reach = Callable[[], Awaitable[Api]]
"""Gives what asks JetStream; raises BrokerUnavailable."""


class Ledger:
    """The failed attempts of one group, and its dead letters.

    JetStream counts deliveries, and a message that is given back or whose consumer dies is
    delivered again without having failed. So failures are written down, and looked up where a
    message was delivered before.
    """

    def __init__(self, names: Names, group: str, reach: Reach) -> None:
        """Write for that group."""
        self._names = names
        self._group = group
        self._reach = reach

    @property
    def books(self) -> Books:
        """What a delivery needs of it."""
        return Books(failed=self.failed, forget=self.forget, bury=self.bury)

    async def failures(self, delivery: NatsDelivery) -> int:
        """Return how many attempts at this message have failed. Raises BrokerUnavailable."""
        api = await self._reach()
        subject = self._names.tried(self._group, delivery.place.sequence)
        found = await api.message(self._names.tries, {"last_by_subj": subject})
        try:
            noted = json.loads(found.data) if found is not None else {}
            # In a stream that was deleted and made again, numbers begin anew.
            same = noted.get("stamp") == delivery.place.stamp
            return max(int(noted["failed"]), 0) if same else 0
        except (ValueError, TypeError, KeyError, AttributeError):
            return 0

    async def failed(self, delivery: NatsDelivery, failures: int, reason: str) -> None:
        """Note a failed attempt. Raises BrokerUnavailable."""
        note = {
            "stamp": delivery.place.stamp,
            "id": delivery.message.id,
            "failed": failures,
            "reason": reason,
        }
        subject = self._names.tried(self._group, delivery.place.sequence)
        data = json.dumps(note).encode()
        api = await self._reach()
        packed = around(to_subject(subject), subject, b"", data, limit=api.connection.max_payload)
        await api.store(packed, self._names.tries)

    async def forget(self, delivery: NatsDelivery) -> None:
        """Drop the count. Raises BrokerUnavailable."""
        api = await self._reach()
        await api.purge(self._names.tries, self._names.tried(self._group, delivery.place.sequence))

    async def bury(self, delivery: NatsDelivery, failures: int, reason: str) -> None:
        """Keep a dead letter. Raises BrokerUnavailable."""
        api = await self._reach()
        extra = [
            (mapping.TOPIC, quoted(delivery.message.topic)),
            (mapping.GROUP, quoted(self._group)),
            (mapping.SEQUENCE, b"%d" % delivery.place.sequence),
            (mapping.REASON, quoted(reason)),
            (mapping.DIED_AT, b"%d" % to_micros(datetime.now(UTC))),
            (mapping.ATTEMPTS, b"%d" % failures),
        ]
        # Told again after a lost answer, it is stored once.
        name = f"{self._names.consumer(self._group)}.{delivery.place.sequence}"
        native = (mapping.NATIVE_ID, f"{name}.{delivery.place.stamp}".encode())
        letter = self._letter(delivery, [native, *extra], limit=api.connection.max_payload)
        await api.store(letter, self._names.dead)

    def _letter(self, delivery: NatsDelivery, extra: Lines, *, limit: int) -> Packed:
        subject = self._names.letters(self._group)
        payload, kept = delivery.message.payload, delivery.read.kept()
        before = to_subject(subject)
        try:
            return around(before, subject, joined([*kept, *extra]), payload, limit=limit)
        except RefusedForGood:
            # A foreign message that leaves no room for a reason. It stays in the stream, and the
            # letter says where.
            ours = [(name, value) for name, value in kept if name == mapping.ID]
            left_out = (mapping.LEFT_OUT, b"%d" % len(payload))
            return around(before, subject, joined([*ours, *extra, left_out]), b"", limit=limit)


def joined(lines: Lines) -> bytes:
    """Return headers as they go on the wire."""
    return b"".join(line(name, value) for name, value in lines)
