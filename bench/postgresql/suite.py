"""The measurements of the PostgreSQL store, on a server that is given or started for them."""

import asyncio
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import asyncpg

from bench.postgresql import full, held, latency, memory, put, rate, relays, released, snapshot
from bench.postgresql.ground import Ground, prepared
from bench.postgresql.scale import FULL, QUICK, Scale
from bench.report import Result
from postroom._redact import redacted
from postroom.lab.servers.postgresql import any_server

MEASUREMENTS: Mapping[str, Callable[[Ground, Scale], Iterator[Result]]] = {
    "put": put.measure,
    "rate": rate.measure,
    "snapshot": snapshot.measure,
    "full": full.measure,
    "held": held.measure,
    "released": released.measure,
    "relays": relays.measure,
    "latency": latency.measure,
    "memory": memory.measure,
}
_SETTINGS = {
    # As in production: a commit waits for the disk, and checkpoints are seldom.
    "fsync": "on",
    "full_page_writes": "on",
    "shared_buffers": "512MB",
    "max_wal_size": "8GB",
    "checkpoint_timeout": "15min",
    "autovacuum_naptime": "10s",
}
_SHOWN = (*_SETTINGS, "synchronous_commit")

Measure = Callable[[Path], Iterator[Result]]


@contextmanager
def opened(
    address: str, folder: Path | None, *, quick: bool
) -> Iterator[tuple[str, Mapping[str, Measure]]]:
    """Give a word about the server, and the measurements on it."""
    scale = QUICK if quick else FULL
    with server(address, folder) as (url, origin):
        fact = asyncio.run(described(url, origin))
        yield fact, {name: partial(_measured, name, url, scale) for name in MEASUREMENTS}


def _measured(name: str, url: str, scale: Scale, directory: Path) -> Iterator[Result]:
    with prepared(url, name, directory) as ground:
        yield from MEASUREMENTS[name](ground, scale)


@contextmanager
def server(address: str, folder: Path | None) -> Iterator[tuple[str, str]]:
    """Give the address of a server and where it comes from: the one given, or one of our own."""
    if "://" in address:
        yield address, f"at {redacted(address)}"
        return
    home = None if folder is None else Path(tempfile.mkdtemp(prefix="postgresql-", dir=folder))
    own = any_server(home=home, settings=_SETTINGS)
    try:
        own.start()
        yield own.url, "started for this run, the newest version installed"
    finally:
        own.remove()


async def described(url: str, origin: str) -> str:
    """Say what answers there, and with which settings."""
    connection = await asyncpg.connect(url)
    try:
        version = await connection.fetchval("show server_version")
        settings = [f"{name} {await connection.fetchval(f'show {name}')}" for name in _SHOWN]
    finally:
        await connection.close()
    return f"PostgreSQL {version} ({origin}): {', '.join(settings)}"
