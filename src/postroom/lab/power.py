"""What the lab does to the server of the databases."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from postroom.lab.ground import to_its_end
from postroom.lab.servers.postgresql import PostgresqlServer
from postroom.lab.stage import Stage

_LANE = "server"


def server(stage: Stage) -> PostgresqlServer:
    """Return the server, which the lab has started."""
    if stage.site.server is None:
        raise LookupError("the lab did not start this server")
    return stage.site.server


async def crash(stage: Stage) -> None:
    """End the server and all its processes by SIGKILL."""
    await to_its_end(server(stage).kill)
    stage.server_kills += 1
    stage.marks.point(_LANE, "killed")
    stage.marks.begin(_LANE, "fault", "down")


async def shut_down(stage: Stage) -> None:
    """End the server as an administrator does who does not wait for anybody."""
    await to_its_end(server(stage).stop)
    stage.marks.begin(_LANE, "fault", "down")


async def start(stage: Stage) -> None:
    """Start the server again; returns when it takes connections."""
    await to_its_end(server(stage).start)
    stage.marks.end(_LANE, "fault")


def end_sessions(stage: Stage, most: int) -> int:
    """End sessions of the shop that are in a transaction; return how many were."""
    ((ended,),) = stage.places.shop.read(
        "SELECT count(pg_terminate_backend(pid)) FROM (SELECT pid FROM pg_stat_activity"
        " WHERE datname = current_database() AND pid <> pg_backend_pid()"
        " AND backend_type = 'client backend' AND xact_start IS NOT NULL"
        " AND strpos(query, ?) > 0 ORDER BY random() LIMIT ?) AS unlucky",
        *(stage.places.schema, most),
    )
    return int(ended)


@asynccontextmanager
async def read_only(stage: Stage) -> AsyncIterator[None]:
    """Let the server refuse every write, in sessions that are there too, as a standby does."""
    stage.places.shop.read("ALTER SYSTEM SET default_transaction_read_only = on")
    stage.places.shop.read("SELECT pg_reload_conf()")
    stage.marks.begin(_LANE, "fault", "read-only")
    try:
        yield
    finally:
        stage.places.shop.read("ALTER SYSTEM RESET default_transaction_read_only")
        stage.places.shop.read("SELECT pg_reload_conf()")
        stage.marks.end(_LANE, "fault")
