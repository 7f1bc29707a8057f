"""A primary dies, its standby takes over, and the old primary comes back as a standby."""

from collections.abc import Sequence

from postroom.lab import power
from postroom.lab.scenario import Scenario
from postroom.lab.scenarios.crew import SOON, Complaints, close_shop, nobodys_fault, open_shop
from postroom.lab.servers.postgresql import PID_FILE, PostgresqlServer, new_home
from postroom.lab.stage import Stage


async def failover(stage: Stage) -> None:
    """Two servers take over from each other, there and back; clients know the names of both."""
    first = power.server(stage)
    second = _another(stage, first)
    hosts = f"127.0.0.1:{first.port},127.0.0.1:{second.port}"
    stage.move(f"postgresql://postgres@{hosts}/postgres?target_session_attrs=read-write")
    await power.follow(second, first)
    services = await open_shop(stage)
    for primary, standby in ((first, second), (second, first)):
        complaints = Complaints(stage, "relay", "orders")
        await power.crash(stage, primary)
        try:
            await complaints.of_all()
        finally:
            await power.promote(stage, standby)
        stage.healed()
        await stage.goes_on("the standby took over", SOON)
        # Now one of the two addresses that everybody knows is of a server that only reads.
        await power.follow(primary, standby)
        await stage.goes_on("the old primary was back, as a standby", SOON)
    await close_shop(stage, services)
    await nobodys_fault(stage)


def _another(stage: Stage, first: PostgresqlServer) -> PostgresqlServer:
    """Return a server like the first, not started; it goes when the judge is done."""
    home = new_home("postgresql")
    stage.site.will.add_server(home, PID_FILE)
    second = PostgresqlServer(first.binaries, home=home)
    stage.at_the_end(second.remove)
    stage.at_the_end(lambda: stage.site.will.drop_server(home))
    return second


SCENARIOS: Sequence[Scenario] = (
    Scenario(
        name="failover",
        summary="the primary dies and its standby takes over, there and back",
        play=failover,
        needs="server",
        alone=True,
    ),
)
