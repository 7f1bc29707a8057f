"""Reading a shop's databases from outside: no code of the parts that are judged takes part."""

from collections.abc import Collection, Mapping, Sequence
from datetime import timedelta

from postroom.brokers.sqlite import EmbeddedBroker
from postroom.lab import shop
from postroom.lab.database import Database
from postroom.lab.ledger import Books, Effect, Order, Row
from postroom.lab.places import Places

_ARRIVALS = """
CREATE TABLE IF NOT EXISTS lab_arrival (id TEXT NOT NULL, at TEXT DEFAULT CURRENT_TIMESTAMP);
CREATE TRIGGER IF NOT EXISTS lab_arrival AFTER INSERT ON message WHEN new.only_grp IS NULL
BEGIN INSERT INTO lab_arrival (id) VALUES (new.id); END;
"""

_UNSENT = """
SELECT count(*) FROM postroom_outbox AS entry
WHERE state IN ('scheduled', 'ready', 'waiting') OR (state = 'held' AND NOT EXISTS (
    SELECT 1 FROM postroom_outbox AS head
    WHERE head.key = entry.key AND head.state = 'dead' AND head.blocks
))
"""


async def prepare(places: Places, customers: int) -> None:
    """Create all tables, and have the broker note every copy that it takes."""
    databases = [places.shop, *(places.effects(consumer) for consumer in places.consumers)]
    for database in databases:
        store = database.store(patience=timedelta(seconds=10))
        await store.open()
        try:
            await store.migrate()
        finally:
            await store.close()
    shop.open_shop(places.shop, customers)
    for consumer in places.consumers:
        shop.open_effects(places.effects(consumer))
    broker = EmbeddedBroker(places.broker, lease=timedelta(seconds=2))
    await broker.open()
    try:
        await broker.ping()
        for consumer in places.consumers:
            async with broker.subscribe([shop.TOPIC], group=consumer, prefetch=1):
                pass
    finally:
        await broker.close()
    places.deliveries.create(_ARRIVALS)


def read(places: Places, excused: Collection[str] = ()) -> Books:
    """Return everything that the ledger judges by."""
    orders = [
        Order(message_id=id_, customer=name, n=n, amount=amount)
        for id_, name, n, amount in places.shop.read(
            "SELECT message_id, customer, n, amount FROM orders ORDER BY placed_at"
        )
    ]
    outbox = [
        Row(message_id=id_, key=key, state=state, blocks=bool(blocks))
        for id_, key, state, blocks in places.shop.read(
            "SELECT id, key, state, blocks FROM postroom_outbox ORDER BY seq"
        )
    ]
    broker = places.deliveries
    arrived = arrivals(places)
    return Books(
        orders=orders,
        effects={consumer: effects(places, consumer) for consumer in places.consumers}
        or {"broker": at_broker(orders, arrived)},
        outbox=outbox,
        waiting=_by_group(
            broker.read("SELECT grp, id FROM delivery JOIN message USING (position)")
        ),
        graves=_by_group(broker.read("SELECT grp, id FROM dead_letter")),
        arrivals=arrived,
        excused=excused,
    )


def effects(places: Places, consumer: str) -> Sequence[Effect]:
    """Return a consumer's effects; those of one customer in the order of their commits."""
    return [
        Effect(message_id=id_, customer=name, n=n, amount=amount)
        for id_, name, n, amount in places.effects(consumer).read(
            "SELECT message_id, customer, n, amount FROM effects ORDER BY place"
        )
    ]


def arrivals(places: Places) -> Sequence[str]:
    """Return the id of every copy that the broker took, in the order in which they came."""
    rows = places.deliveries.read("SELECT id FROM lab_arrival ORDER BY rowid")
    return [id_ for (id_,) in rows]


def effect_count(places: Places) -> int:
    """Count the effects of all consumers; without consumers, what the broker took."""
    if not places.consumers:
        return _count(places.deliveries, "SELECT count(DISTINCT id) FROM lab_arrival")
    return sum(
        _count(places.effects(consumer), "SELECT count(*) FROM effects")
        for consumer in places.consumers
    )


def in_effect(places: Places, message_id: str) -> bool:
    """Say whether every consumer has done what this message asks for."""
    sql = "SELECT count(*) FROM effects WHERE message_id = ?"
    return all(_count(places.effects(one), sql, message_id) for one in places.consumers)


def order_count(places: Places) -> int:
    """Count the orders that were committed."""
    return _count(places.shop, "SELECT count(*) FROM orders")


def arrived(places: Places, message_id: str) -> int:
    """Count the copies of a message that the broker took."""
    return _count(places.deliveries, "SELECT count(*) FROM lab_arrival WHERE id = ?", message_id)


def states(places: Places) -> Mapping[str, int]:
    """Count the outbox's rows by state."""
    rows = places.shop.read("SELECT state, count(*) FROM postroom_outbox GROUP BY state")
    return {state: count for state, count in rows}  # noqa: C416 - rows of asyncpg are not pairs


def attempts(places: Places) -> int:
    """Return how many attempts were charged to all messages of the outbox together."""
    return _count(places.shop, "SELECT coalesce(sum(attempts), 0) FROM postroom_outbox")


def reasons(places: Places) -> Mapping[str, str]:
    """Return why each dead message is dead, in the outbox or at the broker."""
    dead = places.shop.read("SELECT id, error FROM postroom_outbox WHERE state = 'dead'")
    graves = places.deliveries.read("SELECT id, reason FROM dead_letter")
    return {id_: reason for rows in (dead, graves) for id_, reason in rows}


def resent(places: Places) -> int:
    """Count the copies at the broker beyond the first of each message."""
    return _count(places.deliveries, "SELECT count(*) - count(DISTINCT id) FROM lab_arrival")


def owners(places: Places) -> int:
    """Count the relays that own lanes."""
    return _count(places.shop, "SELECT count(DISTINCT owner) FROM postroom_lane")


def before_first_death(places: Places) -> tuple[int, int]:
    """Return how many effects came before the first dead letter, and how many there are.

    Customers with a dead letter are left out.
    """
    dead = places.deliveries.read("SELECT key, died_at FROM dead_letter")
    if not dead:
        return 0, 0
    first = min(died_at for _, died_at in dead) / 1_000_000
    struck = {key for key, _ in dead}
    times = [
        at
        for consumer in places.consumers
        for name, at in places.effects(consumer).read("SELECT customer, at FROM effects")
        if name not in struck
    ]
    return sum(at < first for at in times), len(times)


def backlog(places: Places) -> tuple[int, int]:
    """Return how many messages are not sent, and how many are without one of their effects."""
    unsent = _count(places.shop, _UNSENT)
    done = min(
        (
            _count(places.effects(consumer), "SELECT count(DISTINCT message_id) FROM effects")
            for consumer in places.consumers
        ),
        default=effect_count(places),
    )
    return unsent, max(order_count(places) - done, 0)


def outstanding(places: Places) -> tuple[int, str]:
    """Return how much is still on its way, and a text that changes whenever anything moves.

    The outbox is read before the broker: what has left the one is in the other by then.
    """
    unsent = _count(places.shop, _UNSENT)
    moved = states(places)
    waiting = _count(places.deliveries, "SELECT count(*) FROM delivery")
    tried = _count(
        places.deliveries, "SELECT coalesce(sum(handed_out + attempts), 0) FROM delivery"
    )
    seen = (unsent, sorted(moved.items()), waiting, tried, effect_count(places), attempts(places))
    return unsent + waiting, repr(seen)


def at_broker(orders: Sequence[Order], arrived: Sequence[str]) -> Sequence[Effect]:
    """Return the first copies that the broker took as if each were an effect."""
    placed = {order.message_id: order for order in orders}
    return [
        Effect(message_id=id_, customer=order.customer, n=order.n, amount=order.amount)
        for id_ in dict.fromkeys(arrived)
        if (order := placed.get(id_)) is not None
    ]


def _count(database: Database, sql: str, *values: object) -> int:
    ((count,),) = database.read(sql, *values)
    return int(count)


def _by_group(rows: Sequence[tuple[str, str]]) -> dict[str, set[str]]:
    groups: dict[str, set[str]] = {}
    for group, id_ in rows:
        groups.setdefault(group, set()).add(id_)
    return groups
