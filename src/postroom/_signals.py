"""A clean stop by SIGTERM or Ctrl-C."""

import asyncio
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

_ONE_WISH = 1.0
"""Seconds in which a second signal says the same as the first."""


@contextmanager
def stopped_by_signals(
    stop: asyncio.Event,
    tell: Callable[[signal.Signals], object] = lambda _kind: None,
    *,
    at_once: bool = False,
) -> Iterator[None]:
    """Set `stop` on SIGTERM or Ctrl-C; a later second one has its usual effect.

    Two of them within a second are one wish: `timeout` signals the process and its group. After
    a signal the handlers stay also behind the block, where a program that ends takes its time.
    With `at_once` a second signal ends the process, whatever runs: the exception that Ctrl-C
    usually raises would wait for the threads of handlers.
    """
    loop = asyncio.get_running_loop()
    first: list[float] = []

    def on_signal(number: int, _: FrameType | None) -> None:
        if not first:
            first.append(time.monotonic())
            loop.call_soon_threadsafe(_stopping, stop, tell, signal.Signals(number))
        elif time.monotonic() - first[0] > _ONE_WISH:
            earlier = signal.SIG_DFL if at_once else before[signal.Signals(number)]
            signal.signal(number, earlier)
            signal.raise_signal(number)

    before = {kind: signal.signal(kind, on_signal) for kind in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        if not first:
            for kind, earlier in before.items():
                signal.signal(kind, earlier)


def _stopping(
    stop: asyncio.Event, tell: Callable[[signal.Signals], object], kind: signal.Signals
) -> None:
    if not stop.is_set():
        tell(kind)
        stop.set()
