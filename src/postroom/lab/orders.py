"""The order services: they write orders, and what announces them, in one transaction."""

import random
import signal
import time
from contextlib import suppress
from types import FrameType

from postroom.lab import shop
from postroom.lab.brief import Brief
from postroom.lab.database import Unusable, Violated
from postroom.lab.journal import Journal
from postroom.lab.kill import Trap

_PAUSE = 0.05
_DAWDLE = 0.05
"""The longest time that a dawdling transaction stays open, in seconds."""


class Mishap(Exception):
    """What goes wrong in the middle of an order, now and then, on purpose."""


class OrderService:
    """Writes orders of random customers until it has written enough or is told to stop."""

    def __init__(self, brief: Brief, journal: Journal, trap: Trap) -> None:
        """Open a till at the shop."""
        self._brief = brief
        self._journal = journal
        self._trap = trap
        self._till = brief.places.shop.till(brief.number)
        self._random = random.Random(brief.seed)  # noqa: S311
        self._stopping = False
        self._written = 0

    def run(self) -> None:
        """Write orders; SIGTERM ends it between two of them."""
        signal.signal(signal.SIGTERM, self._stop)
        self._journal.write("ready", client=self._till.client)
        while not self._stopping and not self._enough:
            began = time.monotonic()
            try:
                self._one()
            except Mishap:
                self._journal.write("mishap")
            except Unusable as error:
                self._journal.write("refused", error=str(error))
                time.sleep(_PAUSE)
            except Violated as error:
                self._journal.write("commit-failed", error=str(error))
            time.sleep(max(0.0, 1 / self._brief.per_second - (time.monotonic() - began)))
        self._till.close()
        self._journal.write("done", orders=self._written)

    @property
    def _enough(self) -> bool:
        return 0 < self._brief.orders <= self._written

    def _stop(self, _signal: int, _frame: FrameType | None) -> None:
        self._stopping = True

    def _one(self) -> None:
        if self._brief.careful:
            kind = self._random.choices(
                (self._plain, self._rolled_back, self._undone_part, self._kept_part, self._orphan),
                weights=(6, 1, 1, 1, 1),
            )[0]
        else:
            kind = self._plain
        try:
            self._till.begin()
            count = kind()
            self._dawdle()
            self._trap.reach("before-commit")
            self._till.commit()
        finally:
            self._till.rollback()
        self._written += count
        self._trap.reach("after-commit")

    def _dawdle(self) -> None:
        """Let some transactions stay open for a while, with everything written."""
        if self._random.random() < self._brief.dawdles:
            time.sleep(self._random.uniform(0, _DAWDLE))

    def _place(self, name: str) -> None:
        shop.place(self._till, name, amount=self._random.randrange(100, 10_000))

    def _names(self, count: int) -> list[str]:
        """Return random customers, in the order in which all services lock them."""
        customers = self._brief.customers
        return [shop.customer(n) for n in sorted(self._random.sample(range(customers), count))]

    def _plain(self) -> int:
        self._place(*self._names(1))
        return 1

    def _rolled_back(self) -> int:
        """Everything is written, then something else fails."""
        self._place(*self._names(1))
        raise Mishap

    def _undone_part(self) -> int:
        """The second of two orders is undone by itself."""
        first, second = self._names(2)
        self._place(first)
        with suppress(Mishap), self._till.savepoint():
            self._place(second)
            raise Mishap
        return 1

    def _kept_part(self) -> int:
        """Two orders, the second in a part of its own that holds."""
        first, second = self._names(2)
        self._place(first)
        with self._till.savepoint():
            self._place(second)
        return 2

    def _orphan(self) -> int:
        """An order of a customer whom nobody knows: the commit itself fails."""
        order = shop.OrderPlaced(customer="nobody", n=1, amount=1)
        shop.write_order(self._till, order, self._till.put(order))
        return 0
