"""What several parts need: the broker, and to be told to stop."""

import asyncio
import signal

from postroom.broker import Broker
from postroom.lab.brief import Brief


def open_broker(brief: Brief) -> Broker:
    """Return the shop's broker, not opened."""
    return brief.places.broker.client(max_message_bytes=brief.max_message_bytes)


def stop_on_sigterm() -> asyncio.Event:
    """Return an event of the running loop that SIGTERM sets."""
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    return stop
