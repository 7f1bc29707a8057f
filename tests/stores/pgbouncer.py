"""A pooler in transaction mode, started for tests."""

import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from postroom.lab.servers.postgresql import free_port, new_home, own, unprivileged

SESSIONS = 8
"""With the server, for one database."""

_CONFIG = """
[databases]
* = host={host} port={port} user={user}

[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {listen}
unix_socket_dir =
auth_type = any
pool_mode = transaction
default_pool_size = {sessions}
max_client_conn = 200
"""


def program() -> str:
    """Return the pooler's program, or skip with a word."""
    found = shutil.which("pgbouncer") or shutil.which("pgbouncer", path="/usr/sbin")
    if found is None:
        pytest.skip("pgbouncer is not installed: apt-get install pgbouncer")
    return found


@contextmanager
def pooled(url: str) -> Iterator[str]:
    """Start a pooler in front of that server; give the address of the same database through it."""
    server = urlsplit(url)
    home, listen = new_home("pgbouncer"), free_port()
    config = home / "pgbouncer.ini"
    config.write_text(
        _CONFIG.format(
            host=server.hostname,
            port=server.port or 5432,
            user=server.username,
            listen=listen,
            sessions=SESSIONS,
        )
    )
    own(home)
    process = subprocess.Popen(
        [program(), "-q", config], cwd="/", stderr=subprocess.DEVNULL, **unprivileged()
    )
    try:
        _wait(listen)
        # With any authentication the pooler uses one user for all: the one it is told here.
        yield server._replace(netloc=f"{server.username}@127.0.0.1:{listen}").geturl()
    finally:
        process.terminate()
        process.wait()
        shutil.rmtree(Path(home), ignore_errors=True)


def _wait(port: int) -> None:
    until = time.monotonic() + 20
    while time.monotonic() < until:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
        except OSError:
            time.sleep(0.02)
            continue
        return
    raise AssertionError("pgbouncer did not start")
