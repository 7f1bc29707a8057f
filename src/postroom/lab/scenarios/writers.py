"""What goes wrong while an order is written."""

from collections.abc import Sequence

from postroom.lab.kill import Point
from postroom.lab.plants import NO_SAVEPOINT_CHECK
from postroom.lab.scenario import Scenario
from postroom.lab.stage import Stage


async def commit_fails(stage: Stage) -> None:
    """Three services; one is killed before a commit, one after, and all have mishaps."""
    stage.start("relay")
    stage.start_consumers()
    before = stage.start("orders", orders=60, point=Point(event="before-commit", nth=12))
    after = stage.start("orders", orders=60, point=Point(event="after-commit", nth=12))
    calm = stage.start("orders", orders=60)
    await stage.ended(before, after)
    stage.check("both services were killed at their points", before.kills + after.kills == 2)
    for actor in (before, after):
        actor.start(point=None, orders=40)
    await stage.ended(before, after, calm)

    services = (before, after, calm)
    for event in ("mishap", "commit-failed"):
        seen = sum(len(actor.said(event)) for actor in services)
        stage.check(f"the services met {event}: the caller sees the error", seen > 0)


async def savepoint_trap(stage: Stage) -> None:
    """A service puts messages outside a transaction, and in savepoints that SQLite commits."""
    stage.start("relay")
    stage.start_consumers()
    service = stage.start("careless", orders=10)
    await stage.ended(service)
    stage.check("every careless put was refused", len(service.said("put-refused")) >= 10)


async def database_locked(stage: Stage) -> None:
    """Another process holds the order services' database for longer than anybody waits."""
    relay = stage.start("relay")
    stage.start_consumers()
    services = [stage.start("orders", per_second=40) for _ in range(2)]
    await stage.moving(10)
    locker = await stage.lock("shop")
    await stage.until("the relay notices", lambda: bool(relay.said("StoreLost")), 20)
    await stage.unlock(locker)
    stage.healed()
    await stage.until("the relay is back", lambda: bool(relay.said("StoreBack")))
    await stage.moving(10)
    for service in services:
        service.terminate()
    await stage.ended(*services)


SCENARIOS: Sequence[Scenario] = (
    Scenario(
        name="commit-fails",
        summary="commits fail, parts are undone, services die before and after a commit",
        play=commit_fails,
    ),
    Scenario(
        name="savepoint-trap",
        summary="a service puts messages where no transaction holds them",
        play=savepoint_trap,
        needs="sqlite",
        plants=(NO_SAVEPOINT_CHECK,),
        figures=("ghosts",),
    ),
    Scenario(
        name="database-locked",
        summary="the order services' database is locked for seconds",
        play=database_locked,
    ),
)
