"""A thread that notices when another process commits."""

import sqlite3
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from postroom.brokers.sqlite.file import identity

_POLL = 0.002
_POLLS_PER_CHECK = 250
_REOPEN = 0.1


class Watch:
    """Calls `changed` within some milliseconds after each commit to the file, by anybody.

    Only a hint: whoever waits for it also looks by itself from time to time.
    """

    def __init__(self, path: Path, changed: Callable[[], None]) -> None:
        """Start the thread."""
        self._path = path
        self._changed = changed
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="postroom-watch", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the thread and wait for it."""
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stop.is_set():
            with suppress(sqlite3.Error):
                self._follow()
            self._stop.wait(_REOPEN)

    def _follow(self) -> None:
        """Poll until the file fails, or another takes its place."""
        followed = identity(self._path)
        address = f"{self._path.as_uri()}?mode=rw"  # never create it
        connection = sqlite3.connect(address, uri=True, isolation_level=None, timeout=0)
        try:
            version = None
            while identity(self._path) == followed:
                for _ in range(_POLLS_PER_CHECK):
                    newest = connection.execute("PRAGMA data_version").fetchone()[0]
                    if newest != version:
                        version = newest
                        self._changed()
                    if self._stop.wait(_POLL):
                        return
        finally:
            connection.close()
