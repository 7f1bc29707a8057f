"""The lab's processes, seen from their supervisor."""

import asyncio
import os
import signal
import subprocess
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from postroom.lab.brief import Brief
from postroom.lab.journal import Record, Tail
from postroom.lab.marks import Marks
from postroom.lab.nursery import Nursery

_GLANCE = 0.02


class Actor:
    """One process of the shop; it may be started again after its end."""

    def __init__(self, brief: Brief, nursery: Nursery, marks: Marks) -> None:
        """Prepare the process; `start` starts it."""
        self.brief = brief
        self.kills = 0
        """How often it was ended by SIGKILL before the lab tidied up."""
        self.exit_code: int | None = None
        """How it ended last; None while it runs."""
        self.frozen = False
        self.accidents: list[str] = []
        """Ends that nobody asked for, in words."""
        self._marks = marks
        self._nursery = nursery
        self._pid: int | None = None
        self._journal = Tail(brief.places.journals / f"{brief.name}.jsonl")
        self._errors = brief.places.journals / f"{brief.name}.err"

    @property
    def name(self) -> str:
        """The process's name in journals and pictures."""
        return self.brief.name

    @property
    def running(self) -> bool:
        """Whether the process is there, frozen or not."""
        return self._pid is not None and self.exit_code is None

    def start(self, **changes: object) -> None:
        """Start the process, with changes to its brief."""
        self.brief = self.brief.but(**changes)
        self.exit_code = None
        self.frozen = False
        self._pid = self._nursery.start(self.brief.to_json(), self._errors)
        self._marks.begin(self.name, "alive")

    def kill(self) -> None:
        """End it by SIGKILL."""
        self._send(signal.SIGKILL)

    def terminate(self) -> None:
        """Ask it to end, by SIGTERM."""
        self._send(signal.SIGTERM)

    def freeze(self) -> None:
        """Stop it in its tracks, by SIGSTOP."""
        self._send(signal.SIGSTOP)

    def thaw(self) -> None:
        """Let it go on, by SIGCONT."""
        self._send(signal.SIGCONT)

    def look(self, *, tidying: bool = False) -> None:
        """Notice what became of it: its end, or that it is frozen."""
        if self._pid is None or self.exit_code is not None:
            return
        code = self._nursery.exit_code(self._pid)
        if code is None:
            self._look_at_state(self._pid)
            return
        self.exit_code = code
        self._marks.end(self.name, "frozen")
        self._marks.end(self.name, "alive")
        if tidying:
            return
        if code == -signal.SIGKILL:
            self.kills += 1
            self._marks.point(self.name, "killed")
        elif code != 0 and not (code == -signal.SIGTERM and not self.said_now("ready")):
            self.accidents.append(f"{self.name} ended with exit code {code}: {self.complaint()}")

    def said(self, event: str = "") -> Sequence[Record]:
        """Return what it wrote into its journal, in all its lives."""
        return [line for line in self._journal.records() if not event or line["event"] == event]

    def said_now(self, event: str) -> Sequence[Record]:
        """Return what it wrote into its journal in its present life."""
        return [line for line in self.said(event) if line["pid"] == self._pid]

    def complaints(self) -> str:
        """Return all that it wrote to its standard error, in all its lives."""
        try:
            return self._errors.read_text(errors="replace")
        except FileNotFoundError:
            return ""

    def complaint(self) -> str:
        """Return the last line that it wrote to its standard error."""
        told = [line.strip(" |+-") for line in self.complaints().splitlines()]
        return next((line for line in reversed(told) if line), "")

    def _send(self, number: int) -> None:
        self.look()
        if self._pid is not None and self.running:
            # It may have ended since the look; only then is nobody there.
            with suppress(ProcessLookupError):
                os.kill(self._pid, number)

    def _look_at_state(self, pid: int) -> None:
        stopped = _is_stopped(pid)
        if stopped and not self.frozen:
            self._marks.begin(self.name, "frozen")
        elif self.frozen and not stopped:
            self._marks.end(self.name, "frozen")
        self.frozen = stopped


def _is_stopped(pid: int) -> bool:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return _is_stopped_elsewhere(pid)
    return stat.rpartition(")")[2].split()[0] == "T"


def _is_stopped_elsewhere(pid: int) -> bool:
    state = subprocess.run(
        ["ps", "-o", "state=", "-p", str(pid)],  # noqa: S607
        capture_output=True,
        check=False,
        text=True,
    )
    return state.stdout.strip().startswith("T")


async def end(actors: Sequence[Actor], *, patience: float = 3) -> None:
    """Ask every process to end, and wait for it, but no longer than `patience` seconds."""
    for actor in actors:
        actor.look(tidying=True)
        actor.thaw()
        actor.terminate()
    until = time.monotonic() + patience
    while time.monotonic() < until:
        for actor in actors:
            actor.look(tidying=True)
        if not any(actor.running for actor in actors):
            return
        await asyncio.sleep(_GLANCE)


def kill(actors: Sequence[Actor], *, patience: float = 3) -> None:
    """End every process that still runs, at once."""
    for actor in actors:
        actor.kill()
    until = time.monotonic() + patience
    while any(actor.running for actor in actors) and time.monotonic() < until:
        time.sleep(_GLANCE)
        for actor in actors:
            actor.look(tidying=True)
