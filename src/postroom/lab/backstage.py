"""What several parts need: the broker, and to be told to stop."""

import asyncio
import signal
from datetime import timedelta

from postroom.brokers.sqlite import EmbeddedBroker
from postroom.lab.brief import Brief


def open_broker(brief: Brief) -> EmbeddedBroker:
    """Return the shop's broker, not opened."""
    return EmbeddedBroker(
        brief.places.broker,
        lease=timedelta(seconds=2),
        max_message_bytes=brief.max_message_bytes,
        busy_timeout=timedelta(seconds=1),
    )


def stop_on_sigterm() -> asyncio.Event:
    """Return an event of the running loop that SIGTERM sets."""
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    return stop
