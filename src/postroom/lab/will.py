"""What is removed when the lab is gone, however that came: a file that the nursery reads."""

import json
import os
import shutil
import signal
import time
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from importlib.util import find_spec
from pathlib import Path

from postroom.lab.database import Unusable

_PATIENCE = 10.0
_GLANCE = 0.02


@dataclass(slots=True)
class Will:
    """Written down anew whenever it changes, before what it names is made."""

    path: Path
    folders: list[str] = field(default_factory=list)
    servers: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Folders of servers, and the files inside that have the numbers of processes."""
    schemas: list[tuple[str, str]] = field(default_factory=list)
    """Addresses of PostgreSQL databases, and what names of schemas in them begin with."""
    brokers: list[str] = field(default_factory=list)
    """Shops' addresses of brokers in which something was made."""

    def add_server(self, home: Path, *pid_files: str) -> None:
        """Have a server ended, and its folder removed."""
        self.servers[str(home)] = pid_files
        self.write()

    def drop_server(self, home: Path) -> None:
        """Forget a server that is gone."""
        self.servers.pop(str(home), None)
        self.write()

    def add_broker(self, address: str) -> None:
        """Have everything removed that the lab made there."""
        self.brokers.append(address)
        self.write()

    def drop_broker(self, address: str) -> None:
        """Forget a broker where nothing is left."""
        self.brokers.remove(address)
        self.write()

    def write(self) -> None:
        """Write it down; only its owner may read it, since addresses may have passwords."""
        fresh = self.path.with_suffix(".new")
        record = {name: value for name, value in asdict(self).items() if name != "path"}
        file = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(file, "w") as text:
            json.dump(record, text)
        fresh.replace(self.path)


def execute(path: Path) -> None:
    """Do what the will says; what is gone already is no matter."""
    try:
        record = json.loads(path.read_text())
    except FileNotFoundError:
        return
    # What is in servers first: they may be some that are ended here.
    for address, prefix in record["schemas"]:
        drop_schemas(address, prefix)
    for address in record["brokers"]:
        _clear(address)
    for home, pid_files in record["servers"].items():
        for pid_file in pid_files:
            _end(Path(home), pid_file)
        shutil.rmtree(home, ignore_errors=True)
    path.unlink(missing_ok=True)
    for folder in record["folders"]:
        shutil.rmtree(folder, ignore_errors=True)


def drop_schemas(address: str, prefix: str) -> None:
    """Drop every schema of that database whose name begins so."""
    if find_spec("asyncpg") is None:
        return
    from postroom.lab.databases.line import Line  # noqa: PLC0415 - an extra
    from postroom.lab.databases.postgresql import PostgresqlDatabase  # noqa: PLC0415

    line = Line()
    database = PostgresqlDatabase(address, "public", name="public", line=line)
    with suppress(Unusable):
        names = database.read(
            "SELECT nspname FROM pg_namespace WHERE starts_with(nspname, ?)", prefix
        )
        for (name,) in names:
            database.read(f"DROP SCHEMA IF EXISTS {name} CASCADE")
    database.close()
    line.close()


def _clear(address: str) -> None:
    """Remove what the lab made in a broker, if it still answers."""
    from postroom.lab.brokers import shop_broker  # noqa: PLC0415 - it knows the will

    with suppress(Unusable):
        shop_broker(address, Path()).remove()


def _end(home: Path, pid_file: str) -> None:
    """End a process of the server of that folder, if it runs."""
    try:
        pid = int((home / pid_file).read_text().split()[0])
        files = [Path(f"/proc/{pid}/{name}").read_bytes() for name in ("cmdline", "environ")]
    except (OSError, ValueError, IndexError):
        return
    if not any(str(home).encode() in content for content in files):
        return
    until = time.monotonic() + _PATIENCE
    number = signal.SIGQUIT
    while time.monotonic() < until:
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            return
        time.sleep(_GLANCE)
        number = signal.SIGQUIT if time.monotonic() < until - _PATIENCE / 2 else signal.SIGKILL
