"""What each process says of itself while it runs: one line of JSON per event."""

import json
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from postroom import events

Record = Mapping[str, object]


class Journal:
    """Appends to a process's journal; every line is in the file before the next event."""

    def __init__(self, path: Path) -> None:
        """Open the file; a restarted process goes on where the killed one ended."""
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)

    def write(self, event: str, **fields: object) -> None:
        """Add a line."""
        record = {"t": time.time(), "pid": os.getpid(), "event": event, **fields}
        os.write(self._file, json.dumps(record).encode() + b"\n")

    def observe(self, event: events.Event) -> None:
        """Add a line for an event of a relay or a consumer."""
        self.write(type(event).__name__, **dict(_fields(event)))


def _fields(event: events.Event) -> Iterator[tuple[str, object]]:
    for name in type(event).__dataclass_fields__:
        value = getattr(event, name)
        if name == "entries":
            yield "ids", [entry.message.id for entry in value]
        elif name == "lanes":
            yield "lanes", len(value)
        elif name == "entry":
            yield "id", value.message.id
        elif name == "message":
            yield "id", value.id
        elif isinstance(value, str | int | float | bool):
            yield name, value


class Tail:
    """Reads a process's journal from outside, as it grows."""

    def __init__(self, path: Path) -> None:
        """Begin at the beginning; the file need not be there yet."""
        self._path = path
        self._read = 0
        self._records: list[Record] = []

    def records(self) -> Sequence[Record]:
        """Return what the process said so far; a line that is not whole yet is left out."""
        try:
            with self._path.open("rb") as file:
                file.seek(self._read)
                fresh = file.read()
        except FileNotFoundError:
            return []
        whole = fresh[: fresh.rfind(b"\n") + 1]
        self._read += len(whole)
        self._records += [json.loads(line) for line in whole.splitlines()]
        return self._records
