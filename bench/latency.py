"""From commit to effect, through relay, broker and consumer in processes of their own."""

import asyncio
import random
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path

from bench import stage
from bench.actors import EFFECT
from bench.report import Result, quantile
from bench.scale import Scale
from postroom.outbox import SyncOutbox
from postroom.stores.sqlite import SqliteStore

_WINDOW = 1_000
"""Messages under way at most while the highest rate is looked for."""
_PATIENCE = 60.0
_GAP = (0.02, 0.05)
"""Seconds between two messages of an idle shop."""
_WARM_UP = 0.5
"""Seconds of work before the first is measured."""


def measure(directory: Path, scale: Scale) -> Iterator[Result]:
    """Measure an idle shop, then a saturated one, then one at half of that rate."""
    asyncio.run(_prepare(directory))
    with _processes(directory), closing(_connect(directory)) as connection:
        shop = Shop(directory, connection)
        shop.saturated(_WARM_UP)
        idle = shop.idle(scale.idle_messages)
        peak = shop.saturated(scale.peak_seconds)
        half = shop.paced(peak / 2, scale.half_seconds)
    for name, part, goal in (("p50", 0.5, 10.0), ("p99", 0.99, 50.0)):
        title = f"commit to effect, idle, {name}{scale.suffix}"
        yield Result(name=title, value=quantile(idle, part), unit="ms", goal=goal)
    yield Result(name=f"highest sustained rate{scale.suffix}", value=peak, unit="messages/s")
    title = f"commit to effect, half load, p99{scale.suffix}"
    yield Result(name=title, value=quantile(half, 0.99), unit="ms", goal=250.0)


class Shop:
    """Commits orders, and looks up when their effects were committed elsewhere."""

    def __init__(self, directory: Path, connection: sqlite3.Connection) -> None:
        """Write on that connection."""
        self._connection = connection
        self._outbox = SyncOutbox(SqliteStore(directory / "shop.db"))
        self._effects = directory / "effects"
        self._committed: dict[int, float] = {}

    def order(self) -> None:
        """Commit an order and its message."""
        order = stage.order(len(self._committed) + 1)
        self._connection.execute("begin immediate")
        self._connection.execute(
            "insert into orders values (?, ?)", (order.number, str(order.amount))
        )
        self._outbox.put(self._connection, order)
        self._connection.execute("commit")
        self._committed[order.number] = _now()

    def settled(self) -> None:
        """Wait until everything has taken effect."""
        until = _now() + _PATIENCE
        while self._under_way() > 0:
            if _now() > until:
                raise RuntimeError(f"{self._under_way()} messages did not take effect")
            time.sleep(0.005)

    def idle(self, count: int) -> list[float]:
        """Return milliseconds from commit to effect, one message at a time."""
        before = len(self._committed)
        chance = random.Random(1)  # noqa: S311 - so that no poll falls into step with it
        for _ in range(count):
            self.order()
            time.sleep(chance.uniform(*_GAP))
        return self._millis(before)

    def saturated(self, seconds: float) -> float:
        """Return how many effects a second came while there was always more to do."""
        self._keep_busy(min(seconds / 4, 2.0))
        before, began = self._done(), _now()
        self._keep_busy(seconds)
        rate = (self._done() - before) / (_now() - began)
        self.settled()
        return rate

    def paced(self, rate: float, seconds: float) -> list[float]:
        """Return milliseconds from commit to effect, at that many orders a second."""
        before, began = len(self._committed), _now()
        while (elapsed := _now() - began) < seconds:
            if len(self._committed) - before < elapsed * rate:
                self.order()
            else:
                time.sleep(0.2 / rate)
        return self._millis(before)

    def _keep_busy(self, seconds: float) -> None:
        until = _now() + seconds
        while _now() < until:
            if self._under_way() < _WINDOW:
                self.order()
            else:
                time.sleep(0.002)

    def _under_way(self) -> int:
        return len(self._committed) - self._done()

    def _done(self) -> int:
        return self._effects.stat().st_size // EFFECT.size if self._effects.exists() else 0

    def _millis(self, before: int) -> list[float]:
        self.settled()
        effects: Mapping[int, float] = dict(EFFECT.iter_unpack(self._effects.read_bytes()))
        return [
            (effects[number] - moment) * 1000
            for number, moment in self._committed.items()
            if number > before
        ]


async def _prepare(directory: Path) -> None:
    await stage.new_outbox(directory / "shop.db", iter(()))
    await stage.new_outbox(directory / "billing.db", iter(()))
    for name, table in (("shop", "orders"), ("billing", "invoice")):
        with closing(sqlite3.connect(directory / f"{name}.db")) as connection:
            connection.execute(f"create table {table} (number integer primary key, amount text)")
    await (await stage.new_broker(directory / "broker.db")).close()


@contextmanager
def _processes(directory: Path) -> Iterator[None]:
    parts = [
        subprocess.Popen([sys.executable, "-m", "bench.actors", part, str(directory)])
        for part in ("relay", "consumer")
    ]
    try:
        yield
    finally:
        for part in parts:
            part.send_signal(signal.SIGTERM)
        for part in parts:
            part.wait(_PATIENCE)


def _connect(directory: Path) -> sqlite3.Connection:
    return sqlite3.connect(directory / "shop.db", isolation_level=None)


def _now() -> float:
    return time.clock_gettime(time.CLOCK_MONOTONIC)
