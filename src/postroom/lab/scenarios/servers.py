"""What goes wrong at a PostgreSQL server: gone, crashed, cut off, read-only, pooled."""

import asyncio
import time
from collections.abc import Sequence
from contextlib import closing

from postroom.lab import books, power, shop
from postroom.lab.ground import to_its_end
from postroom.lab.kill import Point
from postroom.lab.plants import BY_POSITION
from postroom.lab.scenario import Scenario
from postroom.lab.scenarios.crew import (
    SOON,
    Complaints,
    close_shop,
    nobodys_fault,
    open_shop,
    said_more,
)
from postroom.lab.servers import pgbouncer
from postroom.lab.servers.postgresql import new_home
from postroom.lab.servers.proxy import Proxy
from postroom.lab.stage import Stage

_LATE = 8
"""Customers whose order is committed late."""
_SILENCE = 20
"""Seconds within which a consumer whose wire is dead notices: its client waits for an answer, and
then, in vain, for that of a rollback."""
_WAITING = 5
"""Batches that wait for a consumer when the database begins to refuse writes."""
_ENDED = 40
"""Sessions that are ended in the middle of a transaction."""


async def server_restart(stage: Stage) -> None:
    """The server is shut down and started, twice, while everybody works."""
    services = await open_shop(stage)
    for _ in range(2):
        complaints = Complaints(stage, "relay", "orders")
        async with power.down(stage, power.shut_down):
            await complaints.of_all()
        stage.healed()
        await stage.goes_on("the server's return", SOON)
    await close_shop(stage, services)
    await nobodys_fault(stage)


async def server_killed(stage: Stage) -> None:
    """The server and all its processes die by SIGKILL, three times, and recover."""
    services = await open_shop(stage)
    for _ in range(3):
        complaints = Complaints(stage, "relay", "orders")
        async with power.down(stage, power.crash):
            await complaints.of_all()
        stage.healed()
        await stage.goes_on("the server's return", SOON)
    await close_shop(stage, services)
    await nobodys_fault(stage)


async def backend_terminated(stage: Stage) -> None:
    """Sessions of everybody are ended in the middle of their transactions, forty times."""
    services = await open_shop(stage, per_second=20)
    parts = {"relay", "consumer", "orders"}
    complaints = Complaints(stage, *parts)
    ended = wrote = 0
    until = time.monotonic() + 30
    while (ended < _ENDED or complaints.parts() < parts) and time.monotonic() < until:
        some, of_them_wrote = power.end_sessions(stage, 3)
        ended, wrote = ended + some, wrote + of_them_wrote
        await asyncio.sleep(0.05)
    stage.healed()
    stage.check(f"many transactions were ended ({ended})", ended >= _ENDED)
    stage.check(f"some of them had written ({wrote})", wrote >= _ENDED // 4)
    stage.check("services, relays and consumers were struck", complaints.parts() == parts)
    await stage.goes_on("the last session was ended", SOON)
    await close_shop(stage, services)
    await nobodys_fault(stage)


async def wire_cut(stage: Stage) -> None:
    """The wire of a relay and of a consumer to the database goes dead without a word."""
    with Proxy("127.0.0.1", power.server(stage).port) as proxy:
        address = f"postgresql://postgres@127.0.0.1:{proxy.port}/postgres"
        relay = stage.start("relay", "cut relay", address=address)
        consumer = stage.start("consumer", "shipping-1", consumer="shipping", address=address)
        stage.start("consumer", "billing-1", consumer="billing")
        services = [stage.start("orders", per_second=10) for _ in range(2)]
        await stage.moving(10)
        proxy.silence()
        stage.marks.begin("wire", "fault", "cut")
        await said_more(stage, relay, "StoreLost", 0)
        stage.start("relay", "successor")
        await said_more(stage, consumer, "ConsumerPaused", 0, _SILENCE)
        stage.start("consumer", "colleague", consumer="shipping")
        # What the consumer's other handlers hold is given back as each of them notices.
        await stage.goes_on("a relay and a consumer noticed the cut", _SILENCE)
        proxy.restore()
        stage.marks.end("wire", "fault")
        stage.healed()
        await said_more(stage, relay, "StoreBack", 0)
        await said_more(stage, consumer, "ConsumerResumed", 0)
        await close_shop(stage, services)
        await stage.still()
        for actor in (relay, consumer):
            actor.terminate()
        await stage.ended(relay, consumer)
    await nobodys_fault(stage)
    for actor in (relay, consumer):
        actor.start(address=stage.through)


async def read_only(stage: Stage) -> None:
    """The server refuses every write for a while, as a primary that was demoted."""
    services = await open_shop(stage)
    # A consumer that waits for messages notices nothing, and now none come: one has some before.
    shipping = stage.actors["shipping-1"]
    shipping.terminate()
    await stage.ended(shipping)
    before = _published(stage)
    await stage.until("messages wait for shipping", lambda: _published(stage) > before + _WAITING)
    complaints = Complaints(stage, "relay", "orders")
    async with power.read_only(stage):
        told = len(shipping.said("ConsumerPaused"))
        shipping.start()
        await said_more(stage, shipping, "ConsumerPaused", told)
        await complaints.of_all()
    stage.healed()
    await stage.goes_on("writes were allowed again", SOON)
    await close_shop(stage, services)
    await nobodys_fault(stage)


def _published(stage: Stage) -> int:
    return sum(len(actor.said("Published")) for actor in stage.actors_of("relay"))


async def held_snapshot(stage: Stage) -> None:
    """Another session holds a REPEATABLE READ snapshot all the time: nothing can be vacuumed."""
    with closing(stage.places.shop.till()) as other:
        other.begin()
        other.rows("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        ((before,),) = other.rows("SELECT count(*) FROM orders")
        mortal = stage.start("relay", "mortal", point=Point(event="Published", nth=3))
        services = await open_shop(stage, per_second=40)
        await stage.ended(mortal)
        await stage.moving(400, seconds=60)
        await close_shop(stage, services)
        await stage.still()
        ((after,),) = other.rows("SELECT count(*) FROM orders")
        stage.check("the snapshot was held", (before, after) == (0, 0))
        other.rollback()
    stage.healed()
    await nobodys_fault(stage)


async def late_commit(stage: Stage) -> None:
    """One transaction has its place in the order from the beginning, and commits at the end."""
    with closing(stage.places.shop.till()) as late:
        late.begin()
        for number in range(_LATE):
            late.rows("INSERT INTO customers (name, orders) VALUES (?, 0)", f"late-{number}")
            shop.place(late, f"late-{number}", amount=1)
        services = await open_shop(stage, per_second=40)
        await stage.moving(400, seconds=60)
        await close_shop(stage, services)
        await stage.still()
        before = books.effect_count(stage.places)
        late.commit()
    stage.healed()
    if stage.plant:
        return
    await stage.until(
        "the late orders are sent",
        lambda: books.effect_count(stage.places) == before + 2 * _LATE,
        SOON,
    )
    await nobodys_fault(stage)


async def pooled(stage: Stage) -> None:
    """Everybody works through pgbouncer in transaction mode; a relay and a consumer die."""
    home = new_home("pgbouncer")
    stage.site.will.add_server(home, pgbouncer.PID_FILE)
    pooler = pgbouncer.Pgbouncer(power.server(stage).port, home)
    try:
        await to_its_end(pooler.start)
        stage.through = pooler.url
        await _work_through_pooler(stage)
    finally:
        pooler.remove()
        stage.site.will.drop_server(home)


async def _work_through_pooler(stage: Stage) -> None:
    relay = stage.start("relay", point=Point(event="Published", nth=5))
    other = stage.start("relay")
    consumers = stage.start_consumers(2)
    services = [stage.start("orders", orders=60, per_second=60) for _ in range(3)]
    await stage.moving(20)
    consumers[0].kill()
    await stage.ended(relay, consumers[0], *services)
    consumers[0].start()
    relay.start(point=None)
    stage.healed()
    await stage.still()
    stage.check("the relay was killed", relay.kills == 1)
    told = other.complaints().count("transaction pooler")
    stage.check(f"a relay says once that it only polls ({told})", told == 1)
    await nobodys_fault(stage)
    for actor in stage.actors.values():
        actor.terminate()
    await stage.ended(*stage.actors.values())
    stage.through = stage.places.address
    for actor in (other, *consumers):
        actor.start(address=stage.through)


def _no_pgbouncer() -> str:
    return "" if pgbouncer.installed() else "pgbouncer is not installed"


SCENARIOS: Sequence[Scenario] = (
    Scenario(
        name="server-restart",
        summary="the database server is shut down and started while everybody works",
        play=server_restart,
        needs="server",
        alone=True,
    ),
    Scenario(
        name="server-killed",
        summary="the database server dies by SIGKILL, with all its processes, and recovers",
        play=server_killed,
        needs="server",
        alone=True,
    ),
    Scenario(
        name="backend-terminated",
        summary="sessions are ended in the middle of their transactions",
        play=backend_terminated,
        needs="postgresql",
    ),
    Scenario(
        name="wire-cut",
        summary="the wire of a relay and of a consumer to the database goes dead without a word",
        play=wire_cut,
        needs="server",
    ),
    Scenario(
        name="read-only",
        summary="the database refuses every write for a while",
        play=read_only,
        needs="server",
        alone=True,
    ),
    Scenario(
        name="held-snapshot",
        summary="another session holds a REPEATABLE READ snapshot all the time",
        play=held_snapshot,
        needs="postgresql",
    ),
    Scenario(
        name="late-commit",
        summary="a transaction that put its messages first commits last",
        play=late_commit,
        needs="postgresql",
        plants=(BY_POSITION,),
        figures=("stuck",),
    ),
    Scenario(
        name="pooled",
        summary="everybody works through pgbouncer in transaction mode",
        play=pooled,
        needs="server",
        lacks=_no_pgbouncer,
    ),
)
