"""What happens to relays: killed at a point, frozen, many, told to end."""

import signal
import time
from collections.abc import Sequence

from postroom.lab import books
from postroom.lab.kill import Point
from postroom.lab.plants import MARK_FIRST, NO_FENCE
from postroom.lab.scenario import Scenario
from postroom.lab.stage import Stage

_LARGE = "x" * 300_000
_LARGE_LIMIT = 1_048_576


async def crash_before_publish(stage: Stage) -> None:
    """The relay dies twice with a batch in its hands that nobody has sent yet."""
    service = stage.start("orders", orders=80, per_second=400)
    await stage.ended(service)
    relay = stage.start("relay", point=Point(event="Read"))
    await stage.ended(relay)
    if not stage.plant:
        stage.check("all orders are still ready", stage.states()["ready"] > 0)
    stage.start_consumers()
    for number in range(10):
        stage.place(number)
    relay.start(point=Point(event="Publishing"))
    await stage.ended(relay)
    relay.start(point=None)
    stage.healed()
    await stage.still()
    stage.check("the relay was killed twice", relay.kills == 2)
    if not stage.plant:
        stage.check("nothing was sent twice", stage.resent() == 0)


async def crash_before_settle(stage: Stage) -> None:
    """The relay dies twice when the broker has confirmed and the outbox does not know."""
    stage.start_consumers()
    service = stage.start("orders", orders=80, per_second=400)
    relay = stage.start("relay", point=Point(event="Published"))
    await stage.ended(relay, service)
    relay.start(point=Point(event="Published", nth=2))
    await stage.ended(relay)
    relay.start(point=None)
    stage.healed()
    stage.check("the relay was killed twice", relay.kills == 2)
    await stage.still()
    stage.check("what it had sent was sent again", stage.resent() > 0)


async def frozen_relay(stage: Stage) -> None:
    """A relay stops in its tracks between confirm and settle; another takes its lanes over."""
    stage.start_consumers()
    first = stage.start("relay", point=Point(event="Published", nth=3, signal=signal.SIGSTOP))
    services = [stage.start("orders", orders=80, per_second=100) for _ in range(2)]
    await stage.frozen(first)
    stage.start("relay")
    await stage.ended(*services)
    await stage.still()
    first.thaw()
    stage.healed()
    await stage.until(
        "the late writes are refused",
        lambda: bool(first.said("SettleRefused")) or not first.running,
    )
    stage.check("its late writes were refused", bool(first.said("SettleRefused")))
    stage.check("the relay lives on", first.running)
    await stage.ended(stage.start("orders", orders=20))


async def late_verdict(stage: Stage) -> None:
    """A relay with an old size limit is frozen before it writes a message down as dead.

    Its successor has the new limit and is about to send it when the first one wakes up.
    """
    large = stage.place(0, note=_LARGE)
    second, _ = stage.place(0), stage.place(0)
    stage.start_consumers()
    point = Point(event="Published", message=large, signal=signal.SIGSTOP)
    old = stage.start("relay", "old relay", point=point)
    await stage.frozen(old)
    stage.fault("slow for one message", gate=(large,))
    new = stage.start(
        "relay", "new relay", lease=30, publish_timeout=20, max_message_bytes=_LARGE_LIMIT
    )
    await stage.until(
        "the successor sends it",
        lambda: any(large in _ids(line) for line in new.said("Publishing")),
    )
    old.thaw()
    await stage.until(
        "the first one is told, or has its way",
        lambda: bool(old.said("SettleRefused") or old.said("Dead")),
    )
    if old.said("Dead"):
        await stage.until("it goes on", lambda: books.arrived(stage.places, second) > 0, 10)
    stage.fault()
    stage.healed()
    await stage.until(
        "the successor has sent it",
        lambda: any(line["id"] == large for line in new.said("Sent")),
    )
    await stage.still()
    stage.check("the large message is not dead", stage.states()["dead"] == 0)


async def ten_relays(stage: Stage) -> None:
    """Ten relays share the lanes; all of them are healthy."""
    stage.start_consumers()
    relays = [stage.start("relay", lease=15) for _ in range(10)]
    services = [stage.start("orders", orders=70, per_second=60) for _ in range(3)]
    await stage.ended(*services)
    await stage.ready(*relays)
    stage.start("orders", orders=60, per_second=60)
    await stage.ended(*stage.actors_of("orders"))
    await stage.still()
    stage.check("nothing was sent twice", stage.resent() == 0)
    busy = sum(bool(relay.said("Sent")) for relay in relays)
    stage.check(f"several of them worked ({busy} of 10)", busy > 1)


async def sigterm(stage: Stage) -> None:
    """Everything is asked to end, first one relay at rest, then all in the middle of work."""
    stage.start_consumers()
    first, second = stage.start("relay"), stage.start("relay")
    await stage.ready()
    await stage.until("the relays share", lambda: books.owners(stage.places) == 2)
    asked = time.time()
    first.terminate()
    await stage.ended(first)
    given = [line["t"] for line in first.said("LanesGiven")]
    prompt = bool(given) and float(str(given[-1])) - asked < 2
    stage.check("idle lanes were given back within two seconds", prompt)
    await stage.until("the other takes them", lambda: books.owners(stage.places) == 1)

    services = [stage.start("orders", per_second=100) for _ in range(2)]
    await stage.moving(40)
    everyone = [actor for actor in stage.actors.values() if actor.running]
    for actor in everyone:
        actor.terminate()
    await stage.ended(*everyone)
    for actor in (first, second, *services, *stage.actors_of("consumer")):
        stage.check(f"{actor.name} ended with exit code 0", actor.exit_code == 0)
    stage.healed()
    second.start()
    for actor in stage.actors_of("consumer"):
        actor.start()
    await stage.still()
    stage.check("nothing was sent twice", stage.resent() == 0)


def _ids(line: object) -> Sequence[str]:
    return line.get("ids", ()) if isinstance(line, dict) else ()


SCENARIOS: Sequence[Scenario] = (
    Scenario(
        name="crash-before-publish",
        summary="the relay is killed after it read, before it published",
        play=crash_before_publish,
        plants=(MARK_FIRST,),
        figures=("lost",),
    ),
    Scenario(
        name="crash-before-settle",
        summary="the relay is killed after the broker confirmed, before it wrote that down",
        play=crash_before_settle,
    ),
    Scenario(
        name="frozen-relay",
        summary="a relay is stopped past its lease; its late writes are refused",
        play=frozen_relay,
    ),
    Scenario(
        name="late-verdict",
        summary="a frozen relay wakes up and would give a message up that its successor sends",
        play=late_verdict,
        plants=(NO_FENCE,),
        figures=("out_of_order", "duplicate_effects"),
    ),
    Scenario(
        name="ten-relays",
        summary="ten healthy relays share the work and send nothing twice",
        play=ten_relays,
        customers=40,
    ),
    Scenario(
        name="sigterm",
        summary="everything is asked to end in the middle of its work",
        play=sigterm,
    ),
)
