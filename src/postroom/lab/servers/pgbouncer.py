"""A pooler between clients and a PostgreSQL server, in transaction mode."""

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

from postroom.lab.servers.postgresql import free_port, own, unprivileged

PID_FILE = "pgbouncer.pid"
"""Where in its folder it writes down its process number."""
_PATIENCE = 20.0
_SETTINGS = """
[databases]
* = host=127.0.0.1 port={server}

[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {port}
unix_socket_dir =
auth_type = trust
auth_file = {home}/users
pool_mode = transaction
default_pool_size = {pool}
max_client_conn = 500
ignore_startup_parameters = extra_float_digits
logfile = {home}/log
pidfile = {home}/{pid_file}
"""


class Pgbouncer:
    """One pooler in front of a server on loopback, for its user `postgres`."""

    def __init__(self, server_port: int, home: Path, *, pool: int = 10) -> None:
        """Pool at most so many connections to that server; all files are in `home`."""
        self._home = home
        self._server_port = server_port
        self._pool = pool
        self._process: subprocess.Popen[bytes] | None = None
        self.port = free_port()

    @property
    def url(self) -> str:
        """The address of the server's database `postgres`, through the pooler."""
        return f"postgresql://postgres@127.0.0.1:{self.port}/postgres"

    def start(self) -> None:
        """Return when it takes connections; raises RuntimeError with its own words if not."""
        own(self._home)
        (self._home / "users").write_text('"postgres" ""\n')
        settings = self._home / "pgbouncer.ini"
        settings.write_text(
            _SETTINGS.format(
                server=self._server_port,
                port=self.port,
                home=self._home,
                pool=self._pool,
                pid_file=PID_FILE,
            )
        )
        self._process = subprocess.Popen(
            [*_command(), str(settings)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd="/",
            start_new_session=True,
            **unprivileged(),
        )
        until = time.monotonic() + _PATIENCE
        while time.monotonic() < until and self._process.poll() is None:
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", self.port)) == 0:
                    return
            time.sleep(0.02)
        log = self._home / "log"
        words = log.read_text(errors="replace") if log.exists() else ""
        self.stop()
        raise RuntimeError(f"pgbouncer did not start:\n{words[-2000:]}")

    def stop(self) -> None:
        """End it, and every connection through it; it has nothing to lose."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()

    def remove(self) -> None:
        """End it and delete its files."""
        self.stop()
        shutil.rmtree(self._home, ignore_errors=True)


def installed() -> str | None:
    """Return the program's path, or None where it is not installed."""
    return shutil.which("pgbouncer", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")


def _command() -> Sequence[str]:
    program = installed()
    if program is None:
        raise FileNotFoundError("pgbouncer is not installed")
    return [program, "--quiet"]
