"""What goes wrong at a broker that is a server: killed, cut off, out of memory, without routes."""

import time
from collections.abc import Mapping, Sequence

from postroom.lab import books, outage, shop
from postroom.lab.broker import ALARM, LIMIT, ROUTES, SERVER, WIRE
from postroom.lab.plants import NO_CONFIRM
from postroom.lab.processes import Actor
from postroom.lab.scenario import Scenario
from postroom.lab.scenarios.crew import SOON, close_shop, nobodys_fault, open_shop, said_more
from postroom.lab.stage import Stage

_WORDS = {"relay": "Paused", "consumer": "ConsumerPaused"}
"""What each part says when the broker is away."""
_SILENCE = 20
"""Seconds within which everybody has noticed that a wire is dead, and others have taken over."""
_LARGE = "x" * 500_000
"""More than the lab's own servers take, and less than the relay of the scenario does."""
_LARGE_LIMIT = 1_048_576
_SIBLINGS = 20


async def broker_killed(stage: Stage) -> None:
    """The broker dies by SIGKILL in the middle of work and comes back; then it is shut down."""
    services = await open_shop(stage)
    for how in (outage.crash, outage.shut_down):
        before = _said(stage, "relay", "consumer")
        async with outage.down(stage, how):
            await _noticed(stage, before)
            await _orders_come(stage)
        stage.healed()
        await stage.goes_on("the broker's return", SOON)
    await close_shop(stage, services)
    await nobodys_fault(stage)


async def broker_killed_retrying(stage: Stage) -> None:
    """The broker dies while messages wait in it for their next try."""
    poisoned = {stage.place(number, note=shop.POISON) for number in range(10)}
    for number in range(10):
        stage.place(number)
    stage.start("relay")
    consumers = stage.start_consumers(attempts=10)
    for consumer in consumers:
        await said_more(stage, consumer, "HandlerFailed", 2 * len(poisoned))
    before = _said(stage, "consumer")
    async with outage.down(stage, outage.crash):
        await _noticed(stage, before)
    stage.healed()
    await stage.still()
    given_up = sum(len(one.said("DeadLettered")) for one in consumers)
    stage.check("all of them were given up afterwards", given_up >= 2 * len(poisoned))
    graves = {(grave.group, grave.message_id) for grave in stage.places.broker.graves()}
    every = {(group, id_) for group in stage.places.consumers for id_ in poisoned}
    stage.check("they are dead letters of both consumers", graves == every)
    reasons = books.reasons(stage.places).values()
    stage.check("the reason says why", all("nobody can read" in text for text in reasons))


async def broker_cut(stage: Stage) -> None:
    """The wire of a relay and of a consumer to the broker goes dead without a word."""
    with outage.behind_proxy(stage) as (proxy, address):
        relay = stage.start("relay", "cut relay", broker=address)
        consumer = stage.start("consumer", "shipping-1", consumer="shipping", broker=address)
        stage.start("consumer", "billing-1", consumer="billing")
        services = [stage.start("orders", per_second=10) for _ in range(2)]
        await stage.moving(10)
        stage.start("relay", "successor")
        stage.start("consumer", "colleague", consumer="shipping")
        await stage.ready()
        proxy.silence()
        stage.marks.begin("wire", "fault", "cut")
        await said_more(stage, relay, "Paused", 0, _SILENCE)
        await said_more(stage, consumer, "ConsumerPaused", 0, _SILENCE)
        await stage.goes_on("a relay and a consumer noticed the cut", _SILENCE)
        given = bool(relay.said("LanesGiven"))
        stage.check("the relay gave its lanes to one that reaches the broker", given)
        proxy.restore()
        stage.marks.end("wire", "fault")
        stage.healed()
        await said_more(stage, relay, "Resumed", 0)
        await said_more(stage, consumer, "ConsumerResumed", 0)
        await close_shop(stage, services)
        await stage.still()
        for actor in (relay, consumer):
            actor.terminate()
        await stage.ended(relay, consumer)
    await nobodys_fault(stage)
    for actor in (relay, consumer):
        actor.start(broker=stage.places.broker_address)


async def broker_blocked(stage: Stage) -> None:
    """The broker is short of memory: it takes nothing, and hands out what it has."""
    services = await open_shop(stage)
    relays, consumers = stage.actors_of("relay"), stage.actors_of("consumer")
    async with outage.starved(stage):
        await _noticed(stage, _said(stage, "relay"))
        await _orders_come(stage)
        disturbed = [actor.name for actor in consumers if actor.said("ConsumerPaused")]
        stage.check(f"consumers go on ({disturbed} did not)", not disturbed)
    stage.healed()
    until = time.monotonic() + SOON
    await stage.goes_on("the alarm", SOON)
    for relay in relays:
        # Each finds out by a probe of its own; the order may have gone through the other.
        await said_more(stage, relay, "Resumed", 0, until - time.monotonic())
    await close_shop(stage, services)
    await nobodys_fault(stage)


async def broker_unbound(stage: Stage) -> None:
    """No queue is bound for a while: every message comes back, and is tried again later."""
    relays = [stage.start("relay", attempts=100) for _ in range(2)]
    stage.start_consumers()
    services = [stage.start("orders", per_second=40) for _ in range(2)]
    await stage.moving(10)
    async with outage.unbound(stage):
        for relay in () if stage.plant else relays:
            await said_more(stage, relay, "Retried", 0)
        await _orders_come(stage)
    stage.healed()
    await close_shop(stage, services)
    await stage.still()
    stage.check("nothing was given up", not books.reasons(stage.places))
    stage.check("nobody took it for an outage", not any(one.said("Paused") for one in relays))


async def too_large(stage: Stage) -> None:
    """One of twenty messages of a key is larger than the broker takes; others come beside it."""
    large = ""
    for number in range(_SIBLINGS):
        if number == _SIBLINGS // 2:
            large = stage.place(0, note=_LARGE)
        else:
            stage.place(0)
        for other in range(1, 4):
            stage.place(other)
    stage.start_consumers()
    relay = stage.start("relay", attempts=3, max_message_bytes=_LARGE_LIMIT)
    service = stage.start("orders", orders=40)
    await stage.ended(service)
    await stage.still()
    suspected = {line["id"] for line in relay.said("Suspected")}
    stage.check("it was suspected", large in suspected)
    stage.check("it alone was blamed", {line["id"] for line in relay.said("Retried")} == {large})
    reasons = books.reasons(stage.places)
    stage.check("it alone is dead", set(reasons) == {large})
    stage.check(f"the reason is the broker's ({reasons.get(large)})", "size" in str(reasons))


def _said(stage: Stage, *roles: str) -> Mapping[Actor, int]:
    """Return how often everybody has said so far that the broker is away."""
    return {
        actor: len(actor.said(_WORDS[role])) for role in roles for actor in stage.actors_of(role)
    }


async def _noticed(stage: Stage, before: Mapping[Actor, int]) -> None:
    """Wait until each of them has said it again; raises Unmet if one does not."""
    for actor, count in before.items():
        await said_more(stage, actor, _WORDS[actor.brief.role], count)


async def _orders_come(stage: Stage, count: int = 20) -> None:
    """Wait until that many more orders are committed, whatever the broker does."""
    before = books.order_count(stage.places)
    await stage.until("orders are taken", lambda: books.order_count(stage.places) >= before + count)


SCENARIOS: Sequence[Scenario] = (
    Scenario(
        name="broker-killed",
        summary="the broker dies by SIGKILL, then is shut down, while everybody works",
        play=broker_killed,
        of_broker=SERVER,
        alone_at_broker=True,
    ),
    Scenario(
        name="broker-killed-retrying",
        summary="the broker dies by SIGKILL while messages wait in it for their next try",
        play=broker_killed_retrying,
        of_broker=SERVER,
        alone_at_broker=True,
    ),
    Scenario(
        name="broker-cut",
        summary="the wire of a relay and of a consumer to the broker goes dead without a word",
        play=broker_cut,
        of_broker=WIRE,
    ),
    Scenario(
        name="broker-blocked",
        summary="the broker is short of memory and takes nothing for a while",
        play=broker_blocked,
        of_broker=ALARM,
        alone_at_broker=True,
    ),
    Scenario(
        name="broker-unbound",
        summary="no queue is bound for a while: every message comes back",
        play=broker_unbound,
        of_broker=ROUTES,
        plants=(NO_CONFIRM,),
        figures=("lost",),
    ),
    Scenario(
        name="too-large",
        summary="one of twenty messages of a key is larger than the broker takes",
        play=too_large,
        of_broker=LIMIT,
    ),
)
