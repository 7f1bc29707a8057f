"""Brokers that take no time, so that the database alone is measured."""

import os
import struct
import time
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path

from postroom.broker import BrokerFeatures
from postroom.errors import BrokerError
from postroom.message import Message

NOTE = struct.Struct("<qd")
"""The number of a message, and when it was published by the clock of all processes."""


class Confirming:
    """Confirms whatever it is given."""

    features = BrokerFeatures(
        durable=False,
        refusal_stops_key=True,
        ordered_by_key=True,
        spreads_keys=True,
        retry_holds_key=True,
        counts_attempts=False,
        delays_retry=False,
        dead_letters=False,
        reports_unroutable=False,
        max_message_bytes=None,
    )

    async def ping(self) -> None:
        """It is there."""

    async def publish(
        self, messages: Sequence[Message], *, timeout: timedelta
    ) -> Sequence[BrokerError | None]:
        """Confirm them."""
        del timeout
        return [None] * len(messages)


class Noting(Confirming):
    """Writes down what it is given, and when."""

    def __init__(self, path: Path) -> None:
        """Write to that file; one more process may do the same to another."""
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    async def publish(
        self, messages: Sequence[Message], *, timeout: timedelta
    ) -> Sequence[BrokerError | None]:
        """Note them and confirm them."""
        now = time.clock_gettime(time.CLOCK_MONOTONIC)
        notes = b"".join(NOTE.pack(message.version or 0, now) for message in messages)
        os.write(self._file, notes)
        return await super().publish(messages, timeout=timeout)
