"""What the lab does to the server of the databases."""

import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from postroom.lab.database import Rows
from postroom.lab.ground import to_its_end
from postroom.lab.places import Places
from postroom.lab.servers.postgresql import PostgresqlServer
from postroom.lab.stage import Stage, Unmet

_LANE = "server"
_PATIENCE = 20.0
_GLANCE = 0.05
_SYNCHRONOUS = "SELECT count(*) FROM pg_stat_replication WHERE sync_state = 'sync'"
_END_SOME = """
SELECT pg_terminate_backend(pid), wrote FROM (
    SELECT pid, backend_xid IS NOT NULL AS wrote FROM pg_stat_activity AS session
    WHERE datname = current_database() AND pid <> pg_backend_pid() AND xact_start IS NOT NULL
        AND backend_type = 'client backend' AND EXISTS (
            SELECT 1 FROM pg_locks AS held
            JOIN pg_class AS used ON used.oid = held.relation
            JOIN pg_namespace AS space ON space.oid = used.relnamespace
            WHERE held.pid = session.pid AND starts_with(space.nspname, ?)
        )
    ORDER BY random() LIMIT ?
) AS unlucky
"""
"""Those that have touched the shop's tables in a transaction that is still open."""


def server(stage: Stage) -> PostgresqlServer:
    """Return the server, which the lab has started."""
    if stage.site.server is None:
        raise LookupError("the lab did not start this server")
    return stage.site.server


async def crash(stage: Stage, which: PostgresqlServer | None = None) -> None:
    """End a server, the shop's where none is named, and all its processes by SIGKILL."""
    await to_its_end((which or server(stage)).kill)
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


async def follow(standby: PostgresqlServer, primary: PostgresqlServer) -> None:
    """Let one server follow another: from now on every commit waits until it is in both."""
    await to_its_end(lambda: standby.follow(primary))
    await to_its_end(lambda: _wait_for_both(primary.url))


async def promote(stage: Stage, standby: PostgresqlServer) -> None:
    """Make the standby the primary; returns when it takes writes."""

    def promoted() -> None:
        _asked(standby.url, "SELECT pg_promote()")

    await to_its_end(promoted)
    stage.marks.end(_LANE, "fault")


@asynccontextmanager
async def down(stage: Stage, how: Callable[[Stage], Awaitable[None]]) -> AsyncIterator[None]:
    """End the server, by `crash` or `shut_down`, for the length of a block."""
    await how(stage)
    try:
        yield
    finally:
        await start(stage)


def _wait_for_both(address: str) -> None:
    _asked(address, "ALTER SYSTEM SET synchronous_standby_names = '*'")
    _asked(address, "SELECT pg_reload_conf()")
    until = time.monotonic() + _PATIENCE
    while not _asked(address, _SYNCHRONOUS)[0][0]:
        if time.monotonic() > until:
            raise Unmet("the standby follows")
        time.sleep(_GLANCE)


def _asked(address: str, sql: str) -> Rows:
    """Return what a server answers, whichever the shop uses."""
    places = Places(Path(), address, "none")
    try:
        return places.shop.read(sql)
    finally:
        places.close()


def end_sessions(stage: Stage, most: int) -> tuple[int, int]:
    """End sessions of the shop in the middle of a transaction.

    Returns how many were ended, and how many of them had written already.
    """
    rows = stage.places.shop.read(_END_SOME, stage.places.schema, most)
    ended = [wrote for done, wrote in rows if done]
    return len(ended), sum(ended)


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
