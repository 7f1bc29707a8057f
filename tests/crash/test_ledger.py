"""The judge itself, on books written by hand."""

from collections.abc import Mapping, Sequence

import pytest

from postroom.lab.books import at_broker
from postroom.lab.ledger import Books, Effect, Order, Row, judge
from postroom.lab.storm import schedule

ORDERS = [
    Order(message_id=f"{customer}{n}", customer=customer, n=n, amount=n)
    for customer in ("a", "b")
    for n in (1, 2, 3)
]


def effect(message_id: str, **changes: int) -> Effect:
    customer, n = message_id[0], int(message_id[1])
    return Effect(
        message_id=message_id,
        customer=customer,
        n=changes.get("n", n),
        amount=changes.get("amount", n),
    )


def row(message_id: str, state: str, *, blocks: bool = False) -> Row:
    return Row(message_id=message_id, key=message_id[0], state=state, blocks=blocks)


def figures(
    effects: str,
    *,
    outbox: Sequence[Row] = (),
    waiting: Sequence[str] = (),
    graves: Sequence[str] = (),
    excused: Sequence[str] = (),
    ghosts: Sequence[str] = (),
) -> Mapping[str, int]:
    ids = effects.split()
    verdict = judge(
        Books(
            orders=ORDERS,
            effects={"shipping": [effect(one) for one in ids]},
            outbox=outbox,
            waiting={"shipping": waiting},
            graves={"shipping": graves},
            arrivals=[*ids, *ghosts],
            excused=excused,
        )
    )
    counted = {
        "lost": verdict.lost,
        "double": verdict.duplicate_effects,
        "disorder": verdict.out_of_order,
        "stuck": verdict.stuck,
        "ghosts": verdict.ghosts,
    }
    return {name: count for name, count in counted.items() if count}


@pytest.mark.parametrize("effects", ["a1 a2 a3 b1 b2 b3", "b1 a1 b2 a2 b3 a3"])
def test_each_order_once_and_in_its_key_s_order_is_clean(effects: str) -> None:
    assert figures(effects) == {}


def test_what_is_nowhere_is_lost() -> None:
    assert figures("a1 a3 b1 b2 b3") == {"lost": 1}


def test_what_waits_in_the_outbox_or_at_the_broker_is_stuck() -> None:
    assert figures("a1 a2 b1 b2 b3", outbox=[row("a3", "ready")]) == {"stuck": 1}
    assert figures("a1 a2 b1 b2 b3", outbox=[row("a3", "held")]) == {"stuck": 1}
    assert figures("a1 a2 b1 b2 b3", waiting=["a3"]) == {"stuck": 1}


def test_a_second_effect_is_counted() -> None:
    assert figures("a1 a2 a1 a3 b1 b2 b3") == {"double": 1}


def test_a_later_order_before_an_earlier_one_is_disorder() -> None:
    assert figures("a2 a1 a3 b1 b2 b3") == {"disorder": 1}
    assert figures("a3 a2 a1 b1 b2 b3") == {"disorder": 2}


def test_a_later_copy_is_no_disorder() -> None:
    assert figures("a1 a2 a3 b1 b2 b3 a1") == {"double": 1}


def test_dead_under_continue_is_visible_and_excuses_the_order() -> None:
    assert figures("a2 a3 b1 b2 b3", outbox=[row("a1", "dead")]) == {}
    assert figures("a1 a3 b1 b2 b3", graves=["a2"]) == {}


def test_a_parked_key_must_wait() -> None:
    parked = [row("a1", "dead", blocks=True), row("a2", "held"), row("a3", "held")]

    assert figures("b1 b2 b3", outbox=parked) == {}
    assert figures("a2 b1 b2 b3", outbox=parked) == {"disorder": 1}


def test_a_replayed_order_has_lost_its_place() -> None:
    assert figures("a2 a3 a1 b1 b2 b3", excused=["a1"]) == {}


def test_what_was_never_committed_is_a_ghost() -> None:
    assert figures("a1 a2 a3 b1 b2 b3 b4") == {"ghosts": 1}
    assert figures("a1 a2 a3 b1 b2 b3", outbox=[row("b5", "sent")]) == {"ghosts": 1}
    assert figures("a1 a2 a3 b1 b2 b3", ghosts=["b6"]) == {"ghosts": 1}


def test_another_amount_than_ordered_is_a_ghost() -> None:
    verdict = judge(
        Books(orders=ORDERS[:1], effects={"shipping": [effect("a1", amount=9)]}, arrivals=["a1"])
    )

    assert verdict.ghosts == 1


def test_copies_beyond_the_first_are_resent() -> None:
    verdict = judge(Books(orders=ORDERS[:1], arrivals=["a1", "a1", "a1"]))

    assert verdict.resent == 2


@pytest.mark.parametrize(("arrived", "disorder"), [("a1 a2 a1 a3", 0), ("a2 a1 a3 a2", 1)])
def test_without_consumers_the_first_copies_are_judged(arrived: str, disorder: int) -> None:
    ids = arrived.split()
    orders = ORDERS[:3]

    verdict = judge(
        Books(orders=orders, effects={"broker": at_broker(orders, ids)}, arrivals=ids),
    )

    assert (verdict.lost, verdict.out_of_order, verdict.resent) == (0, disorder, 1)


def test_one_seed_is_one_storm() -> None:
    assert schedule(5, 30) == schedule(5, 30)
    assert schedule(5, 30) != schedule(6, 30)


def test_a_storm_begins_with_an_outage_of_everything_that_can_have_one() -> None:
    blows = schedule(5, 10, server=True, broker=True)

    assert {"lock", "crash", "broker-crash"} <= {blow.kind for blow in blows if blow.at < 6}
    assert not any(blow.kind == "broker-crash" for blow in schedule(5, 600, server=True))


def test_two_minutes_of_storm_are_over_a_hundred_kills() -> None:
    for seed in range(20):
        assert sum(blow.kind == "kill" for blow in schedule(seed, 120)) > 130
