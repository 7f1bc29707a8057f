"""Reading a shop's databases from outside: no code of the parts that are judged takes part."""

from collections.abc import Collection, Mapping, Sequence
from datetime import timedelta

from postroom.lab import shop
from postroom.lab.database import Database
from postroom.lab.ledger import Books, Effect, Order, Row
from postroom.lab.places import Places

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
    await places.broker.create(places.consumers)


def read(places: Places, excused: Collection[str] = ()) -> Books:
    """Return everything that the ledger judges by; no consumer runs."""
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
    arrived = places.broker.arrivals()
    done = {consumer: effects(places, consumer) for consumer in places.consumers}
    graves: dict[str, set[str]] = {}
    for grave in places.broker.graves():
        graves.setdefault(grave.group, set()).add(grave.message_id)
    return Books(
        orders=orders,
        effects=done or {"broker": at_broker(orders, arrived)},
        outbox=outbox,
        waiting=_waiting(places, done),
        graves=graves,
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


def effect_count(places: Places) -> int:
    """Count the effects of all consumers; without consumers, what the broker took."""
    if not places.consumers:
        return len(set(places.broker.arrivals()))
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
    return places.broker.arrivals().count(message_id)


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
    graves = {grave.message_id: grave.reason for grave in places.broker.graves()}
    return {**{id_: reason for id_, reason in dead}, **graves}  # noqa: C416 - as in states


def resent(places: Places) -> int:
    """Count the copies at the broker beyond the first of each message."""
    arrived = places.broker.arrivals()
    return len(arrived) - len(set(arrived))


def owners(places: Places) -> int:
    """Count the relays that own lanes."""
    return _count(places.shop, "SELECT count(DISTINCT owner) FROM postroom_lane")


def before_first_death(places: Places) -> tuple[int, int]:
    """Return how many effects came before the first dead letter, and how many there are.

    Customers with a dead letter are left out.
    """
    graves = places.broker.graves()
    if not graves:
        return 0, 0
    first = min(grave.died_at for grave in graves)
    struck = {grave.key for grave in graves}
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
    left, tried = places.broker.left()
    if not places.broker.tells_hands:
        left = max(left, _unfinished(places))
    seen = (unsent, sorted(moved.items()), left, tried, effect_count(places), attempts(places))
    return unsent + left, repr(seen)


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


def _waiting(places: Places, done: Mapping[str, Sequence[Effect]]) -> Mapping[str, Collection[str]]:
    """Return what is left at the broker.

    Where it does not tell what consumers have in their hands, a copy that one of them gave back
    at its end is not held against anybody once the message is in effect.
    """
    waiting = places.broker.waiting()
    if places.broker.tells_hands:
        return waiting
    return {
        group: set(ids) - {effect.message_id for effect in done.get(group, ())}
        for group, ids in waiting.items()
    }


def _unfinished(places: Places) -> int:
    """Count what arrived and is neither in effect nor dead, over all consumers."""
    arrived, graves = set(places.broker.arrivals()), places.broker.graves()
    count = 0
    for consumer in places.consumers:
        rows = places.effects(consumer).read("SELECT DISTINCT message_id FROM effects")
        buried = {grave.message_id for grave in graves if grave.group == consumer}
        count += len(arrived - {id_ for (id_,) in rows} - buried)
    return count
