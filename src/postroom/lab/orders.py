"""The order services: they write orders, and what announces them, in one transaction."""

import random
import signal
import sqlite3
import time
from contextlib import suppress
from types import FrameType

from postroom.lab import plants, shop
from postroom.lab.brief import Brief
from postroom.lab.journal import Journal
from postroom.lab.kill import Trap
from postroom.outbox import SyncOutbox

_PAUSE = 0.05


class Mishap(Exception):
    """What goes wrong in the middle of an order, now and then, on purpose."""


class OrderService:
    """Writes orders of random customers until it has written enough or is told to stop."""

    def __init__(self, brief: Brief, journal: Journal, trap: Trap) -> None:
        """Open the shop's database."""
        self._brief = brief
        self._journal = journal
        self._trap = trap
        self._outbox: SyncOutbox = plants.outbox(brief)
        self._connection = shop.connect(brief.places.shop)
        self._random = random.Random(brief.seed)  # noqa: S311
        self._stopping = False
        self._written = 0

    def run(self) -> None:
        """Write orders; SIGTERM ends it between two of them."""
        signal.signal(signal.SIGTERM, self._stop)
        self._journal.write("ready")
        while not self._stopping and not self._enough:
            began = time.monotonic()
            try:
                self._one()
            except Mishap:
                self._journal.write("mishap")
            except sqlite3.OperationalError as error:
                self._journal.write("refused", error=str(error))
                time.sleep(_PAUSE)
            except sqlite3.IntegrityError as error:
                self._journal.write("commit-failed", error=str(error))
            time.sleep(max(0.0, 1 / self._brief.per_second - (time.monotonic() - began)))
        self._connection.close()
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
        self._connection.execute("BEGIN IMMEDIATE")
        try:
            count = kind()
            self._trap.reach("before-commit")
            self._connection.execute("COMMIT")
        finally:
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
        self._written += count
        self._trap.reach("after-commit")

    def _place(self, customer: str = "") -> None:
        name = customer or shop.customer(self._random.randrange(self._brief.customers))
        amount = self._random.randrange(100, 10_000)
        order = shop.next_order(self._connection, name, amount=amount, note="")
        (sent,) = self._outbox.put(self._connection, order)
        shop.write_order(self._connection, order, sent)

    def _plain(self) -> int:
        self._place()
        return 1

    def _rolled_back(self) -> int:
        """Everything is written, then something else fails."""
        self._place()
        raise Mishap

    def _undone_part(self) -> int:
        """The second of two orders is undone by itself."""
        self._place()
        with suppress(Mishap), shop.savepoint(self._connection, "second"):
            self._rolled_back()
        return 1

    def _kept_part(self) -> int:
        """Two orders, the second in a part of its own that holds."""
        self._place()
        with shop.savepoint(self._connection, "second"):
            self._place()
        return 2

    def _orphan(self) -> int:
        """An order of a customer whom nobody knows: the commit itself fails."""
        order = shop.OrderPlaced(customer="nobody", n=1, amount=1)
        (sent,) = self._outbox.put(self._connection, order)
        shop.write_order(self._connection, order, sent)
        return 0
