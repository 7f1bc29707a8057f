"""A RabbitMQ server of one's own: made, started, stopped, killed and restarted."""

import base64
import json
import os
import shutil
import signal
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import quote

from postroom.lab.servers.postgresql import ServerMissing, free_port, new_home, own, unprivileged

PID_FILES = ("pid", "mapper.pid")
"""Where in its folder the numbers of its processes are: its own, and its port mapper's."""
_PATIENCE = 90.0
_SETTINGS: Mapping[str, str] = {
    "loopback_users": "none",
    "log.console": "false",
    "log.file.level": "info",
    # Larger than any default limit of ours, and small enough that a test can exceed it.
    "max_message_size": "4000000",
    # The disk of a test machine may be nearly full, and nothing is kept on it.
    "disk_free_limit.absolute": "50MB",
    "vm_memory_high_watermark.relative": "0.7",
}
_ADVANCED = "[{rabbit, [{dead_letter_worker_publisher_confirm_timeout, 2000}]}].\n"
"""Milliseconds until a quorum queue sends a delayed message again that a queue did not confirm.

The default is three minutes, which is what a retry may be late after a crash.
"""


class RabbitmqServer:
    """One server in a folder of its own, with the management plugin.

    The user is `guest`, from loopback only. It brings its own port mapper (epmd), so that no
    process is left behind; run by root, it drops to the user `nobody`.
    """

    def __init__(
        self,
        program: Path,
        *,
        settings: Mapping[str, str] | None = None,
        certificates: Path | None = None,
        home: Path | None = None,
    ) -> None:
        """Start that program (`installed()` finds it), with these lines in its rabbitmq.conf.

        `certificates` holds ca.pem, server.pem and server.key for a port with TLS, where a
        client's certificate may stand for its password.
        """
        self._program = program
        self._settings = {**_SETTINGS, **(settings or {})}
        self._certificates = certificates
        self._home = home
        self._mapper_port, self._node_port = free_port(), free_port()
        self._node = f"postroom-{os.getpid()}-{self._node_port}@localhost"
        self._mapper: subprocess.Popen[bytes] | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self.port, self.tls_port, self.api_port = free_port(), free_port(), free_port()

    @property
    def url(self) -> str:
        """Its address; the option says where its management plugin listens."""
        return f"amqp://guest:guest@127.0.0.1:{self.port}/?management={self.api_port}"

    @property
    def tls_url(self) -> str:
        """Its address with TLS, without a user, where it was given certificates."""
        return f"amqps://127.0.0.1:{self.tls_port}/"

    def begin(self) -> None:
        """Start it and return at once; `wait` returns when connections are taken."""
        if self._home is None:
            self._home = new_home("rabbitmq")
        own(self._home)
        self._write_files(self._home)
        if self._mapper is None:
            self._mapper = self._run(
                ["epmd", "-address", "127.0.0.1", "-port", str(self._mapper_port)]
            )
            (self._home / PID_FILES[1]).write_text(str(self._mapper.pid))
        self._process = self._run([str(self._program)])

    def wait(self) -> None:
        """Return when it takes connections.

        Raises RuntimeError with the server's own words if it does not come up.
        """
        until = time.monotonic() + _PATIENCE
        while time.monotonic() < until:
            if self._process is None or self._process.poll() is not None:
                break
            try:
                self.api("GET", "/overview")
            except OSError:
                time.sleep(0.1)
            else:
                return
        log = self._log()
        self.stop()
        raise RuntimeError(f"RabbitMQ did not start:\n{log}")

    def start(self) -> None:
        """Start it, and return when it takes connections."""
        self.begin()
        self.wait()

    def stop(self, *, how: signal.Signals = signal.SIGTERM) -> None:
        """End the server: SIGTERM is a planned stop, SIGKILL a crash."""
        process, self._process = self._process, None
        if process is None:
            return
        os.killpg(process.pid, how)
        try:
            process.wait(_PATIENCE)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    def kill(self) -> None:
        """End it and all its processes by SIGKILL."""
        self.stop(how=signal.SIGKILL)

    def flush(self) -> None:
        """Have it write down what was declared; it does so by itself after some seconds."""
        self.control("eval", "mnesia:sync_log().")

    def starve(self) -> None:
        """Raise its memory alarm: it blocks those who publish, and nobody else."""
        self.control("set_vm_memory_high_watermark", "absolute", "1MB")

    def feed(self) -> None:
        """End its memory alarm."""
        self.control("set_vm_memory_high_watermark", _SETTINGS["vm_memory_high_watermark.relative"])

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to every process of the server: SIGSTOP freezes it."""
        if self._process is None:
            raise LookupError("the server does not run")
        os.killpg(self._process.pid, number)

    def remove(self) -> None:
        """End everything and delete its files."""
        self.stop(how=signal.SIGKILL)
        mapper, self._mapper = self._mapper, None
        if mapper is not None:
            mapper.terminate()
            mapper.wait()
        if self._home is not None:
            shutil.rmtree(self._home, ignore_errors=True)
            self._home = None

    def api(self, method: str, path: str, body: object = None) -> object:
        """Ask the management plugin; see `ask`."""
        return ask(self.url, method, path, body)

    def control(self, *arguments: str) -> str:
        """Run rabbitmqctl on this server; return what it said."""
        tool = self._program.with_name("rabbitmqctl")
        done: subprocess.CompletedProcess[str] = subprocess.run(
            [str(tool), "--quiet", "--node", self._node, *arguments],
            env=self._environment(),
            capture_output=True,
            text=True,
            cwd="/",
            check=False,
            **unprivileged(),
        )
        if done.returncode:
            raise RuntimeError(f"rabbitmqctl {arguments[0]}: {done.stderr or done.stdout}")
        return done.stdout

    def _write_files(self, home: Path) -> None:
        settings = {
            "listeners.tcp.1": f"127.0.0.1:{self.port}",
            "management.tcp.ip": "127.0.0.1",
            "management.tcp.port": str(self.api_port),
            **self._settings,
        }
        plugins = ["rabbitmq_management"]
        if self._certificates is not None:
            plugins.append("rabbitmq_auth_mechanism_ssl")
            settings |= {
                "listeners.ssl.1": f"127.0.0.1:{self.tls_port}",
                "ssl_options.cacertfile": f"{self._certificates}/ca.pem",
                "ssl_options.certfile": f"{self._certificates}/server.pem",
                "ssl_options.keyfile": f"{self._certificates}/server.key",
                "ssl_options.verify": "verify_peer",
                "ssl_options.fail_if_no_peer_cert": "false",
                "ssl_cert_login_from": "common_name",
                "auth_mechanisms.1": "PLAIN",
                "auth_mechanisms.2": "EXTERNAL",
            }
        lines = [f"{name} = {value}" for name, value in settings.items()]
        (home / "rabbitmq.conf").write_text("\n".join(lines) + "\n")
        (home / "advanced.config").write_text(_ADVANCED)
        (home / "plugins").write_text(f"[{', '.join(plugins)}].\n")
        (home / "environment").write_text("")

    def _run(self, command: list[str]) -> subprocess.Popen[bytes]:
        if self._home is None:
            raise LookupError("the server has no folder yet")
        with (self._home / "output").open("ab") as output:
            return subprocess.Popen(
                command,
                env=self._environment(),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                cwd="/",
                start_new_session=True,
                **unprivileged(),
            )

    def _environment(self) -> dict[str, str]:
        home = str(self._home)
        return {
            "PATH": os.environ.get("PATH", "/usr/bin:/bin"),
            "LANG": "C.UTF-8",
            "HOME": home,
            "ERL_EPMD_PORT": str(self._mapper_port),
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            "RABBITMQ_CONF_ENV_FILE": f"{home}/environment",
            "RABBITMQ_CONFIG_FILE": f"{home}/rabbitmq.conf",
            "RABBITMQ_ADVANCED_CONFIG_FILE": f"{home}/advanced.config",
            "RABBITMQ_ENABLED_PLUGINS_FILE": f"{home}/plugins",
            "RABBITMQ_MNESIA_BASE": f"{home}/data",
            "RABBITMQ_LOG_BASE": f"{home}/log",
            "RABBITMQ_PID_FILE": f"{home}/pid",
            "RABBITMQ_NODENAME": self._node,
            "RABBITMQ_DIST_PORT": str(self._node_port),
            # Threads that wait busily take the two cores of a small machine from the tests.
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": (
                "+sbwt none +sbwtdcpu none +sbwtdio none "
                "-kernel inet_dist_use_interface {127,0,0,1}"
            ),
        }

    def _log(self) -> str:
        if self._home is None:
            return ""
        files = [self._home / "output", *sorted((self._home / "log").glob("*.log"))]
        texts = [path.read_text(errors="replace") for path in files if path.exists()]
        return "\n".join(texts)[-3000:]


def installed() -> Path | None:
    """Return the server's own start script, past the wrapper that only root may run."""
    found = Path("/usr/lib/rabbitmq/bin/rabbitmq-server")
    if found.exists():
        return found
    program = shutil.which("rabbitmq-server")
    return Path(program).resolve() if program else None


def any_server(
    *,
    home: Path | None = None,
    settings: Mapping[str, str] | None = None,
    certificates: Path | None = None,
) -> RabbitmqServer:
    """Return a server, not started. Raises ServerMissing, with what to do, if there is none."""
    program = installed()
    if program is None:
        raise ServerMissing(
            "no RabbitMQ server is installed: install the package rabbitmq-server of your system, "
            "or give the address of a running server"
        )
    return RabbitmqServer(program, settings=settings, certificates=certificates, home=home)


def ask(url: str, method: str, path: str, body: object = None) -> object:
    """Ask the management plugin of the server at this address.

    `?management=PORT` in the address says where it listens; 15672 by default. Raises OSError.
    """
    head, _, query = url.partition("?")
    userinfo, _, place = head.partition("://")[2].rpartition("@")
    host = place.partition("/")[0].partition(":")[0]
    options = dict(part.partition("=")[::2] for part in query.split("&") if part)
    request = urllib.request.Request(
        f"http://{host}:{options.get('management', 15672)}/api{path}",
        method=method,
        data=None if body is None else json.dumps(body).encode(),
        headers={
            "Authorization": "Basic "
            + base64.b64encode((userinfo or "guest:guest").encode()).decode(),
            "Content-Type": "application/json",
        },
    )
    with urllib.request.urlopen(request, timeout=10) as answer:  # noqa: S310 - as above
        said = answer.read()
    return json.loads(said) if said else None


def make_vhost(url: str, name: str) -> str:
    """Make a virtual host on the server at this address; return its own address."""
    ask(url, "PUT", f"/vhosts/{quote(name, safe='')}", {})
    user = url.partition("://")[2].partition(":")[0]
    allowed = {"configure": ".*", "write": ".*", "read": ".*"}
    ask(url, "PUT", f"/permissions/{quote(name, safe='')}/{user}", allowed)
    head, _, _ = url.partition("?")
    return f"{head.rpartition('/')[0]}/{quote(name, safe='')}"


def remove_vhost(url: str, name: str) -> None:
    """Delete a virtual host and everything in it."""
    ask(url, "DELETE", f"/vhosts/{quote(name, safe='')}")
