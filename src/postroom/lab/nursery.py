"""Where the lab's processes come from: one process that has everything loaded, and forks.

A process of its own, as real as any, is there in a few milliseconds, so that most of a storm is
blows and not imports. The lab talks to it by lines of JSON. When the lab is gone, whatever ended
it, the nursery kills all that it started and tidies up.
"""

import ctypes
import json
import os
import select
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from postroom.lab.will import execute

_PR_SET_PDEATHSIG = 1
_GLANCE = 0.01
_PATIENCE = 30.0


class Nursery:
    """The lab's end: starts processes, and learns how they ended."""

    def __init__(self, will: Path) -> None:
        """Start the nursery; it executes that will when the lab is gone."""
        self._process = subprocess.Popen(
            [sys.executable, "-m", "postroom.lab.nursery", str(will)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        self._unread = b""
        self._started: list[int] = []
        self._ended: dict[int, int] = {}

    def __enter__(self) -> Self:
        """Return itself."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """End it, and every process that is left."""
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()
        self._process.wait(_PATIENCE)

    def start(self, brief: str, errors: Path) -> int:
        """Start a process with that brief; return its number."""
        if self._process.stdin is None:
            raise RuntimeError("the nursery has no ear")
        request = json.dumps({"brief": brief, "errors": str(errors)})
        self._process.stdin.write(request.encode() + b"\n")
        self._process.stdin.flush()
        end = time.monotonic() + _PATIENCE
        while not self._started:
            if time.monotonic() > end:
                raise RuntimeError("the nursery does not answer")
            self._listen(end - time.monotonic())
        return self._started.pop()

    def exit_code(self, pid: int) -> int | None:
        """Return how a process ended (minus the signal that killed it); None while it runs."""
        self._listen(0)
        return self._ended.get(pid)

    def _listen(self, timeout: float) -> None:
        pipe = self._process.stdout
        if pipe is None:
            return
        while select.select([pipe], [], [], timeout)[0]:
            fresh = os.read(pipe.fileno(), 65536)
            if not fresh:
                raise RuntimeError("the nursery is gone")
            *lines, self._unread = (self._unread + fresh).split(b"\n")
            for line in lines:
                news = json.loads(line)
                if "started" in news:
                    # A number may be given out anew: what it meant before is over.
                    self._ended.pop(news["started"], None)
                    self._started.append(news["started"])
                else:
                    self._ended[news["ended"]] = news["code"]
            timeout = 0


def main() -> None:
    """Start what the lab asks for, until the lab is gone."""
    # Whoever ends the lab ends this process by it; a signal to both must not come in between.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    _load()
    children: set[int] = set()
    unread = b""
    while True:
        if select.select([0], [], [], _GLANCE)[0]:
            fresh = os.read(0, 65536)
            if not fresh:
                break
            *lines, unread = (unread + fresh).split(b"\n")
            for line in lines:
                children.add(_fork(json.loads(line)))
        _reap(children)
    for pid in children:
        os.kill(pid, signal.SIGKILL)
    for pid in children:
        os.waitpid(pid, 0)
    execute(Path(sys.argv[1]))


def _load() -> None:
    """Load what the children need, as far as it is installed."""
    from postroom.lab import actors  # noqa: F401, PLC0415 - loaded once, here

    if find_spec("asyncpg") is not None:
        import postroom.lab.databases.postgresql  # noqa: PLC0415 - the same
    if find_spec("psycopg") is not None and find_spec("psycopg_pool") is not None:
        import postroom.lab.databases.psycopg  # noqa: PLC0415 - the same
    if find_spec("pamqp") is not None:
        import postroom.lab.brokers.rabbitmq.shop  # noqa: F401, PLC0415 - the same


def _fork(request: Mapping[str, Any]) -> int:
    parent = os.getpid()
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            _become(request, parent)
            code = 0
        except BaseException:  # noqa: BLE001 - the end of this process
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(code)
    _tell({"started": pid})
    return pid


def _become(request: Mapping[str, Any], parent: int) -> None:
    """Play a part, in the child."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        return
    os.setsid()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    errors = os.open(request["errors"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.dup2(errors, 1)
    os.dup2(errors, 2)
    from postroom.lab import actors  # noqa: PLC0415 - loaded once, by the parent

    actors.play(request["brief"])


def _reap(children: set[int]) -> None:
    while children:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid == 0:
            return
        children.discard(pid)
        _tell({"ended": pid, "code": os.waitstatus_to_exitcode(status)})


def _tell(news: Mapping[str, int]) -> None:
    os.write(1, json.dumps(news).encode() + b"\n")


if __name__ == "__main__":
    main()
