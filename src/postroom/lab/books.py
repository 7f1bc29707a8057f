"""Reading a shop's files from outside: no code of the parts that are judged takes part."""

import sqlite3
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

from postroom.brokers.sqlite import EmbeddedBroker
from postroom.lab import shop
from postroom.lab.ledger import Books, Effect, Order, Row
from postroom.lab.places import CONSUMERS, Places
from postroom.stores.sqlite import SqliteStore

_ARRIVALS = """
CREATE TABLE IF NOT EXISTS lab_arrival (id TEXT NOT NULL, at TEXT DEFAULT CURRENT_TIMESTAMP);
CREATE TRIGGER IF NOT EXISTS lab_arrival AFTER INSERT ON message WHEN new.only_grp IS NULL
BEGIN INSERT INTO lab_arrival (id) VALUES (new.id); END;
"""

_UNSENT = """
SELECT count(*) FROM postroom_outbox AS entry
WHERE state IN ('scheduled', 'ready', 'waiting') OR (state = 'held' AND NOT EXISTS (
    SELECT 1 FROM postroom_outbox AS head
    WHERE head.key = entry.key AND head.state = 'dead' AND head.blocks = 1
))
"""


async def prepare(places: Places) -> None:
    """Create all tables, and have the broker note every copy that it takes."""
    for consumer in CONSUMERS:
        shop.open_effects(places.effects(consumer))
    for path in (places.shop, *(places.effects(consumer) for consumer in CONSUMERS)):
        store = SqliteStore(path)
        await store.open()
        try:
            await store.migrate()
        finally:
            await store.close()
    broker = EmbeddedBroker(places.broker, lease=timedelta(seconds=2))
    await broker.open()
    try:
        for consumer in CONSUMERS:
            async with broker.subscribe([shop.TOPIC], group=consumer, prefetch=1):
                pass
    finally:
        await broker.close()
    with closing(shop.connect(places.broker)) as connection:
        connection.executescript(_ARRIVALS)


def read(places: Places, excused: Collection[str] = ()) -> Books:
    """Return everything that the ledger judges by."""
    with _reading(places.shop) as rows:
        orders = [
            Order(message_id=id_, customer=name, n=n, amount=amount)
            for id_, name, n, amount in rows(
                "SELECT message_id, customer, n, amount FROM orders ORDER BY placed_at"
            )
        ]
        outbox = [
            Row(message_id=id_, key=key, state=state, blocks=bool(blocks))
            for id_, key, state, blocks in rows(
                "SELECT id, key, state, blocks FROM postroom_outbox ORDER BY seq"
            )
        ]
    with _reading(places.broker) as rows:
        waiting = _by_group(
            rows("SELECT grp, id FROM delivery JOIN message USING (position)"),
        )
        graves = _by_group(rows("SELECT grp, id FROM dead_letter"))
        arrivals = [id_ for (id_,) in rows("SELECT id FROM lab_arrival")]
    return Books(
        orders=orders,
        effects={consumer: effects(places, consumer) for consumer in CONSUMERS},
        outbox=outbox,
        waiting=waiting,
        graves=graves,
        arrivals=arrivals,
        excused=excused,
    )


def effects(places: Places, consumer: str) -> Sequence[Effect]:
    """Return a consumer's effects in the order of their commits."""
    with _reading(places.effects(consumer)) as rows:
        return [
            Effect(message_id=id_, customer=name, n=n, amount=amount)
            for id_, name, n, amount in rows(
                "SELECT message_id, customer, n, amount FROM effects ORDER BY place"
            )
        ]


def effect_count(places: Places) -> int:
    """Count the effects of all consumers."""
    return sum(
        _count(places.effects(consumer), "SELECT count(*) FROM effects") for consumer in CONSUMERS
    )


def order_count(places: Places) -> int:
    """Count the orders that were committed."""
    return _count(places.shop, "SELECT count(*) FROM orders")


def arrived(places: Places, message_id: str) -> int:
    """Count the copies of a message that the broker took."""
    sql = "SELECT count(*) FROM lab_arrival WHERE id = ?"
    return _count(places.broker, sql, (message_id,))


def states(places: Places) -> Mapping[str, int]:
    """Count the outbox's rows by state."""
    with _reading(places.shop) as rows:
        return dict(rows("SELECT state, count(*) FROM postroom_outbox GROUP BY state"))


def attempts(places: Places) -> int:
    """Return how many attempts were charged to all messages of the outbox together."""
    return _count(places.shop, "SELECT coalesce(sum(attempts), 0) FROM postroom_outbox")


def reasons(places: Places) -> Mapping[str, str]:
    """Return why each dead message is dead, in the outbox or at the broker."""
    with _reading(places.shop) as rows:
        found = dict(rows("SELECT id, error FROM postroom_outbox WHERE state = 'dead'"))
    with _reading(places.broker) as rows:
        found.update(rows("SELECT id, reason FROM dead_letter"))
    return found


def resent(places: Places) -> int:
    """Count the copies at the broker beyond the first of each message."""
    return _count(places.broker, "SELECT count(*) - count(DISTINCT id) FROM lab_arrival")


def owners(places: Places) -> int:
    """Count the relays that own lanes."""
    return _count(places.shop, "SELECT count(DISTINCT owner) FROM postroom_lane")


def before_first_death(places: Places) -> tuple[int, int]:
    """Return how many effects came before the first dead letter, and how many there are.

    Customers with a dead letter are left out.
    """
    with _reading(places.broker) as rows:
        dead = rows("SELECT key, died_at FROM dead_letter")
    if not dead:
        return 0, 0
    first = min(died_at for _, died_at in dead) / 1_000_000
    struck = {key for key, _ in dead}
    times = []
    for consumer in CONSUMERS:
        with _reading(places.effects(consumer)) as rows:
            times += [
                at for name, at in rows("SELECT customer, at FROM effects") if name not in struck
            ]
    return sum(at < first for at in times), len(times)


def backlog(places: Places) -> tuple[int, int]:
    """Return how many messages are not sent, and how many are without one of their effects."""
    unsent = _count(places.shop, _UNSENT)
    done = min(
        _count(places.effects(consumer), "SELECT count(DISTINCT message_id) FROM effects")
        for consumer in CONSUMERS
    )
    return unsent, max(order_count(places) - done, 0)


def outstanding(places: Places) -> tuple[int, str]:
    """Return how much is still on its way, and a text that changes whenever anything moves.

    The outbox is read before the broker: what has left the one is in the other by then.
    """
    unsent = _count(places.shop, _UNSENT)
    moved = states(places)
    waiting = _count(places.broker, "SELECT count(*) FROM delivery")
    tried = _count(places.broker, "SELECT coalesce(sum(handed_out + attempts), 0) FROM delivery")
    seen = (unsent, sorted(moved.items()), waiting, tried, effect_count(places), attempts(places))
    return unsent + waiting, repr(seen)


def _count(path: Path, sql: str, parameters: tuple[object, ...] = ()) -> int:
    with _reading(path) as rows:
        ((count,),) = rows(sql, parameters)
    return int(count)


class _Rows:
    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def __call__(self, sql: str, parameters: tuple[object, ...] = ()) -> list[Any]:
        return self._connection.execute(sql, parameters).fetchall()


@contextmanager
def _reading(path: Path) -> Iterator[_Rows]:
    with closing(sqlite3.connect(f"file:{path}?mode=rw", uri=True, timeout=10)) as connection:
        connection.execute("PRAGMA query_only = ON")
        yield _Rows(connection)


def _by_group(rows: Sequence[tuple[str, str]]) -> dict[str, set[str]]:
    groups: dict[str, set[str]] = {consumer: set() for consumer in CONSUMERS}
    for group, id_ in rows:
        groups.setdefault(group, set()).add(id_)
    return groups
