"""A Kafka server of one's own: one node, made, started, stopped, killed and restarted."""

import os
import shutil
import signal
import socket
import struct
import subprocess
import time
import uuid
from base64 import urlsafe_b64encode
from collections.abc import Mapping
from pathlib import Path

from postroom.lab.servers.postgresql import ServerMissing, free_port, new_home

_PATIENCE = 60.0
_JVM = (
    *("-Xms128m", "-Xmx384m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto"),
    "-Djava.awt.headless=true",
)
_SETTINGS: Mapping[str, str] = {
    "num.partitions": "4",
    "offsets.topic.num.partitions": "4",
    "offsets.topic.replication.factor": "1",
    "transaction.state.log.num.partitions": "1",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    # Tests do not wait for more members that never come, and notice soon that one is dead.
    "group.initial.rebalance.delay.ms": "0",
    "group.min.session.timeout.ms": "1000",
    "num.network.threads": "2",
    "num.io.threads": "4",
    "log.cleaner.dedupe.buffer.size": "8000000",
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:ANONYMOUS;User:admin",
    "allow.everyone.if.no.acl.found": "true",
}
USERS: Mapping[str, str] = {"admin": "admin-secret", "clerk": "clerk-secret"}
"""Who may log in at the port with passwords; nobody needs to at the plain one."""


class KafkaServer:
    """One broker that is its own controller, in a folder of its own, on loopback.

    What it has confirmed is on disk after a restart; after a `kill -9` as well, since the
    operating system still has it.
    """

    def __init__(
        self,
        libraries: Path,
        *,
        settings: Mapping[str, str] | None = None,
        certificates: Path | None = None,
    ) -> None:
        """Run it from these libraries (`installed()` finds them), with these settings.

        `certificates` holds ca.pem, server.pem and server.key (PKCS#8) for a port with TLS.
        """
        self._libraries = libraries
        self._settings = {**_SETTINGS, **(settings or {})}
        self._certificates = certificates
        self._home: Path | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._advertised: int | None = None
        self._controller_port = free_port()
        self.port, self.sasl_port, self.tls_port = free_port(), free_port(), free_port()
        self.proxied_port = free_port()

    @property
    def url(self) -> str:
        """Its address."""
        return f"kafka://127.0.0.1:{self.port}"

    def advertise(self, port: int) -> None:
        """Tell clients of `proxied_port` that it listens at that port, which is a proxy's.

        Kafka's clients connect to what the broker says of itself, not to what they were given.
        Takes effect at the next start.
        """
        self._advertised = port

    def begin(self) -> None:
        """Start it and return at once; `wait` returns when it answers."""
        fresh = self._home is None
        self._home = self._home or new_home("kafka")
        self._write_files(self._home)
        if fresh:
            cluster = urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
            self._run(
                "kafka.tools.StorageTool",
                *("format", "-t", cluster, "-c", str(self._home / "server.properties")),
            ).wait(_PATIENCE)
        self._process = self._run("kafka.Kafka", str(self._home / "server.properties"))

    def wait(self) -> None:
        """Return when it answers. Raises RuntimeError with its own words if it never does."""
        until = time.monotonic() + _PATIENCE
        while time.monotonic() < until:
            if self._process is None or self._process.poll() is not None:
                break
            if answers("127.0.0.1", self.port):
                return
            time.sleep(0.1)
        output = (self._home / "output").read_text(errors="replace")[-3000:] if self._home else ""
        self.stop(how=signal.SIGKILL)
        raise RuntimeError(f"Kafka did not start:\n{output}")

    def start(self) -> None:
        """Start it, and return when it answers."""
        self.begin()
        self.wait()

    def stop(self, *, how: signal.Signals = signal.SIGTERM) -> None:
        """End the server: SIGTERM is a planned stop, SIGKILL a crash. Its data stays."""
        process, self._process = self._process, None
        if process is None:
            return
        process.send_signal(how)
        try:
            process.wait(_PATIENCE)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the server: SIGSTOP freezes it."""
        if self._process is None:
            raise LookupError("the server does not run")
        self._process.send_signal(number)

    def remove(self) -> None:
        """End it and delete its files."""
        self.stop(how=signal.SIGKILL)
        if self._home is not None:
            shutil.rmtree(self._home, ignore_errors=True)
            self._home = None

    def _write_files(self, home: Path) -> None:
        listeners = {
            "CONTROLLER": (self._controller_port, "PLAINTEXT"),
            "PLAIN": (self.port, "PLAINTEXT"),
            "PASSWORD": (self.sasl_port, "SASL_PLAINTEXT"),
            "PROXIED": (self.proxied_port, "PLAINTEXT"),
        }
        if self._certificates is not None:
            listeners["TLS"] = (self.tls_port, "SSL")
        advertised = {name: port for name, (port, _) in listeners.items() if name != "CONTROLLER"}
        advertised["PROXIED"] = self._advertised or self.proxied_port
        settings = {
            "process.roles": "broker,controller",
            "node.id": "1",
            "controller.quorum.voters": f"1@127.0.0.1:{self._controller_port}",
            "listeners": _listed({name: port for name, (port, _) in listeners.items()}),
            "advertised.listeners": _listed(advertised),
            "controller.listener.names": "CONTROLLER",
            "inter.broker.listener.name": "PLAIN",
            "listener.security.protocol.map": ",".join(
                f"{name}:{protocol}" for name, (_, protocol) in listeners.items()
            ),
            "log.dirs": f"{home}/data",
            "sasl.enabled.mechanisms": "PLAIN",
            "listener.name.password.plain.sasl.jaas.config": _login(USERS),
            **self._settings,
        }
        if self._certificates is not None:
            settings |= self._tls(home, self._certificates)
        lines = [f"{name}={value}" for name, value in settings.items()]
        (home / "server.properties").write_text("\n".join(lines) + "\n")

    def _tls(self, home: Path, certificates: Path) -> dict[str, str]:
        chain = home / "server-chain.pem"
        parts = [(certificates / name).read_text() for name in ("server.key", "server.pem")]
        chain.write_text("\n".join(parts))
        return {
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": str(chain),
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(certificates / "ca.pem"),
            "ssl.client.auth": "requested",
        }

    def _run(self, main: str, *arguments: str) -> subprocess.Popen[bytes]:
        with (Path(str(self._home)) / "output").open("ab") as output:
            return subprocess.Popen(
                [_java(), *_JVM, "-cp", f"{self._libraries}/*", main, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                cwd="/",
                start_new_session=True,
            )


def installed() -> Path | None:
    """Return the folder with Kafka's libraries that `make servers` fetched; None without Java."""
    if shutil.which("java") is None:
        return None
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "postroom"
    found = sorted(cache.glob("kafka-*/kafka_*.jar"))
    return found[-1].parent if found else None


def any_server(
    *, settings: Mapping[str, str] | None = None, certificates: Path | None = None
) -> KafkaServer:
    """Return a server, not started. Raises ServerMissing, with what to do, if there is none."""
    libraries = installed()
    if libraries is None:
        raise ServerMissing(
            "no Kafka server is installed: install Java 17 and Maven and run `make servers`, "
            "or give the address of a running server"
        )
    return KafkaServer(libraries, settings=settings, certificates=certificates)


def answers(host: str, port: int) -> bool:
    """Say whether a Kafka broker answers there (to the request for its API versions)."""
    request = struct.pack(">ihhih", 10, 18, 0, 1, -1)
    try:
        with socket.create_connection((host, port), timeout=2) as connection:
            connection.sendall(request)
            return len(connection.recv(8)) > 0
    except OSError:
        return False


def _java() -> str:
    found = shutil.which("java")
    if found is None:
        raise ServerMissing("no java is on the PATH")
    return found


def _listed(ports: Mapping[str, int]) -> str:
    return ",".join(f"{name}://127.0.0.1:{port}" for name, port in ports.items())


def _login(users: Mapping[str, str]) -> str:
    known = " ".join(f'user_{name}="{password}"' for name, password in users.items())
    return f"org.apache.kafka.common.security.plain.PlainLoginModule required {known};"
