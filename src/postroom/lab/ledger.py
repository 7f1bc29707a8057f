"""The judge: what the files say at the end, against what the order services committed."""

from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """An order that was committed."""

    message_id: str
    customer: str
    n: int
    amount: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Effect:
    """What a consumer did; effects stand in the order of their commits."""

    message_id: str
    customer: str
    n: int
    amount: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A row of the outbox."""

    message_id: str
    key: str | None
    state: str
    blocks: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Books:
    """Everything that the files of a shop say, read from outside."""

    orders: Sequence[Order] = ()
    effects: Mapping[str, Sequence[Effect]] = field(default_factory=dict)
    """By consumer."""
    outbox: Sequence[Row] = ()
    waiting: Mapping[str, Collection[str]] = field(default_factory=dict)
    """By consumer: ids that the broker still has for it."""
    graves: Mapping[str, Collection[str]] = field(default_factory=dict)
    """By consumer: ids among the broker's dead letters."""
    arrivals: Sequence[str] = ()
    """The id of every copy that the broker ever took."""
    excused: Collection[str] = ()
    """Ids that were dead under `continue` at some time, and replayed: out of their order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The figures of one run."""

    messages: int
    lost: int
    """Committed, and at the end neither in effect nor visible in a named state."""
    duplicate_effects: int
    """Effects beyond the first of one message in one consumer."""
    out_of_order: int
    """Orders whose first effect was committed before that of the customer's order before."""
    stuck: int
    """Due, not parked, and yet not where they should be after the time to recover."""
    ghosts: int
    """Messages, or effects, of orders that were never committed like this."""
    resent: int
    """Copies at the broker beyond the first; allowed after a fault."""
    dead: int
    parked: int
    ordered_amount: int
    """Sum of all orders, in cents."""
    effect_amounts: Mapping[str, int]
    """Sum of the effects by consumer, in cents."""

    @property
    def clean(self) -> bool:
        """Whether all figures that must be zero are."""
        return not any(
            (self.lost, self.duplicate_effects, self.out_of_order, self.stuck, self.ghosts)
        )


def judge(books: Books) -> Verdict:
    """Count what went wrong, by the definitions of the guarantees page."""
    fates = _Fates(books)
    consumers = tuple(books.effects)
    copies = Counter(books.arrivals)
    return Verdict(
        messages=len(books.orders),
        lost=len(set().union(*(fates.lost(consumer) for consumer in consumers))),
        duplicate_effects=sum(_repeats(books.effects[consumer]) for consumer in consumers),
        out_of_order=sum(_inversions(books, fates, consumer) for consumer in consumers),
        stuck=len(set().union(*(fates.stuck(consumer) for consumer in consumers))),
        ghosts=len(_ghosts(books)),
        resent=sum(copies.values()) - len(copies),
        dead=len(set(fates.dead).union(*(books.graves.get(c, ()) for c in consumers))),
        parked=len(fates.parked),
        ordered_amount=sum(order.amount for order in books.orders),
        effect_amounts={
            consumer: sum(effect.amount for effect in books.effects[consumer])
            for consumer in consumers
        },
    )


class _Fates:
    """Where each committed order is at the end."""

    def __init__(self, books: Books) -> None:
        self._committed = {order.message_id for order in books.orders}
        self._books = books
        blocked = {row.key for row in books.outbox if row.state == "dead" and row.blocks}
        self.dead = {r.message_id for r in books.outbox if r.state == "dead" and not r.blocks}
        self.parked = {
            row.message_id
            for row in books.outbox
            if row.key in blocked and (row.state == "held" or (row.state == "dead" and row.blocks))
        }
        self.unsent = {
            row.message_id
            for row in books.outbox
            if row.state not in {"sent", "dead"} and row.message_id not in self.parked
        }
        self._done = {
            consumer: {effect.message_id for effect in effects}
            for consumer, effects in books.effects.items()
        }

    def stuck(self, consumer: str) -> set[str]:
        """Return the ids that should have moved on, in the outbox or at the broker."""
        waiting = self._books.waiting.get(consumer, ())
        return self.unsent | (set(waiting) & self._committed)

    def lost(self, consumer: str) -> set[str]:
        """Return the ids that are nowhere."""
        graves = self._books.graves.get(consumer, ())
        visible = self.stuck(consumer).union(self.dead, self.parked, graves)
        return self._committed - self._done[consumer] - visible


def _repeats(effects: Sequence[Effect]) -> int:
    return len(effects) - len({effect.message_id for effect in effects})


def _inversions(books: Books, fates: _Fates, consumer: str) -> int:
    first: dict[str, int] = {}
    for place, effect in enumerate(books.effects[consumer]):
        first.setdefault(effect.message_id, place)
    skipped = {*fates.dead, *books.graves.get(consumer, ()), *books.excused}
    skipped |= fates.lost(consumer)
    by_customer: dict[str, list[Order]] = defaultdict(list)
    for order in sorted(books.orders, key=lambda order: order.n):
        if order.message_id not in skipped:
            by_customer[order.customer].append(order)
    count = 0
    for orders in by_customer.values():
        places = [first.get(order.message_id) for order in orders]
        for before, after in pairwise(places):
            count += after is not None and (before is None or before > after)
    return count


def _ghosts(books: Books) -> set[str]:
    committed = {order.message_id: order for order in books.orders}
    ghosts = {row.message_id for row in books.outbox if row.message_id not in committed}
    ghosts |= {id_ for id_ in books.arrivals if id_ not in committed}
    for effects in books.effects.values():
        for effect in effects:
            order = committed.get(effect.message_id)
            if order is None or not _same(order, effect):
                ghosts.add(effect.message_id)
    return ghosts


def _same(order: Order, effect: Effect) -> bool:
    return (order.customer, order.n, order.amount) == (effect.customer, effect.n, effect.amount)
