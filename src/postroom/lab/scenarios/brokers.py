"""What goes wrong at the broker: locked, missing, slow, hung, saturated."""

from collections.abc import Sequence

from postroom.lab import books, outage
from postroom.lab.broker import FILE
from postroom.lab.processes import Actor
from postroom.lab.scenario import Scenario
from postroom.lab.stage import Stage


async def broker_locked(stage: Stage) -> None:
    """Another process holds the broker's file; then that process is killed."""
    relay = stage.start("relay")
    stage.start_consumers()
    services = [stage.start("orders", per_second=40) for _ in range(2)]
    await stage.moving(10)
    locker = await stage.lock("broker")
    await stage.until("the relay pauses", lambda: bool(relay.said("Paused")), 20)
    await _close(stage, services)
    locker.kill()
    await stage.ended(locker)
    stage.marks.end("broker", "fault")
    stage.healed()
    await stage.until("the relay goes on", lambda: bool(relay.said("Resumed")))
    _nobodys_fault(stage)


async def broker_missing(stage: Stage) -> None:
    """The broker's file is gone when relay and consumers start, and comes back later."""
    everyone = [stage.start("relay"), *stage.start_consumers()]
    service = stage.start("orders", orders=30)
    await stage.ended(service)
    await stage.still()
    for actor in everyone:
        actor.terminate()
    await stage.ended(*everyone)
    folder = stage.places.broker_file.parent
    away = folder.rename(folder.with_name("broker-away"))
    stage.marks.begin("broker", "fault", "missing")
    for actor in everyone:
        actor.start()
    service.start()
    await stage.ended(service)
    await stage.until("the relay pauses", lambda: bool(everyone[0].said_now("Paused")))
    stage.check("the orders wait", stage.states()["ready"] > 0)
    away.rename(folder)
    stage.marks.end("broker", "fault")
    stage.healed()
    await stage.until("the relay goes on", lambda: bool(everyone[0].said_now("Resumed")))
    _nobodys_fault(stage)


async def broker_hung(stage: Stage) -> None:
    """The broker gets slow, then takes half of what it is given and answers for nothing."""
    relay = stage.start("relay")
    stage.start_consumers()
    services = [stage.start("orders", per_second=40) for _ in range(2)]
    await stage.moving(10)
    stage.fault("slow", delay=0.5)
    await stage.moving(10)
    stage.fault("hung", hang=True)
    await stage.until("the relay pauses", lambda: bool(relay.said("Paused")))
    await _close(stage, services)
    stage.fault()
    stage.healed()
    await stage.until("the relay goes on", lambda: bool(relay.said("Resumed")))
    _nobodys_fault(stage)


async def peak_day(stage: Stage) -> None:
    """Orders come faster than the broker takes them: it saturates, and answers time out."""
    with outage.narrows(stage) as way:
        relays = [stage.start("relay", broker=way.address) for _ in range(2)]
        stage.start_consumers()
        await stage.ready()
        way.saturate()
        services = [stage.start("orders", per_second=100) for _ in range(3)]
        await stage.until("answers time out", lambda: any(relay.said("Paused") for relay in relays))
        before = books.order_count(stage.places)
        await stage.until(
            "orders are taken", lambda: books.order_count(stage.places) >= before + 100
        )
        await _close(stage, services)
        way.relieve()
        stage.healed()
        _nobodys_fault(stage)
        await stage.still()
        for relay in relays:
            relay.terminate()
        await stage.ended(*relays)


async def _close(stage: Stage, services: Sequence[Actor]) -> None:
    for service in services:
        service.terminate()
    await stage.ended(*services)


def _nobodys_fault(stage: Stage) -> None:
    stage.check("no attempt was charged", books.attempts(stage.places) == 0)
    stage.check("no message was given up", stage.states()["dead"] == 0)


SCENARIOS: Sequence[Scenario] = (
    Scenario(
        name="broker-locked",
        summary="the broker's file is locked for seconds while orders keep coming",
        play=broker_locked,
        of_broker=FILE,
    ),
    Scenario(
        name="broker-missing",
        summary="the broker's file is not there when relay and consumers start",
        play=broker_missing,
        of_broker=FILE,
    ),
    Scenario(
        name="broker-hung",
        summary="the broker gets slow, then takes messages and does not answer",
        play=broker_hung,
    ),
    Scenario(
        name="peak-day",
        summary="the broker saturates and times out while orders keep coming",
        play=peak_day,
        customers=80,
    ),
)
