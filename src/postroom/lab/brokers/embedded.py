"""The embedded broker in one shop: a file, read by SQL."""

from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path

from postroom.brokers.sqlite import EmbeddedBroker
from postroom.lab.broker import EMBEDDED, Berth, Grave
from postroom.lab.databases.sqlite import SqliteDatabase
from postroom.lab.shop import TOPIC

_ARRIVALS = """
CREATE TABLE IF NOT EXISTS lab_arrival (id TEXT NOT NULL, at TEXT DEFAULT CURRENT_TIMESTAMP);
CREATE TRIGGER IF NOT EXISTS lab_arrival AFTER INSERT ON message WHEN new.only_grp IS NULL
BEGIN INSERT INTO lab_arrival (id) VALUES (new.id); END;
"""


class EmbeddedShop:
    """What the shop needs of the embedded broker."""

    tells_hands = True

    def __init__(self, path: Path) -> None:
        """Name the file; its folder is there."""
        self._path = path
        self._database = SqliteDatabase(path)

    def client(self, *, max_message_bytes: int = 262_144) -> EmbeddedBroker:
        """Return the driver."""
        return EmbeddedBroker(
            self._path,
            lease=timedelta(seconds=2),
            max_message_bytes=max_message_bytes,
            busy_timeout=timedelta(seconds=1),
        )

    async def create(self, groups: Sequence[str]) -> None:
        """Make the file, with the groups; a trigger notes what arrives."""
        broker = self.client()
        await broker.open()
        try:
            await broker.ping()
            for group in groups:
                async with broker.subscribe([TOPIC], group=group, prefetch=1):
                    pass
        finally:
            await broker.close()
        self._database.create(_ARRIVALS)

    def arrivals(self) -> Sequence[str]:
        """Return what the trigger noted."""
        rows = self._database.read("SELECT id FROM lab_arrival ORDER BY rowid")
        return [id_ for (id_,) in rows]

    def left(self) -> tuple[int, str]:
        """Count the deliveries, and how often they were tried."""
        ((count, tried),) = self._database.read(
            "SELECT count(*), coalesce(sum(handed_out + attempts), 0) FROM delivery"
        )
        return count, str(tried)

    def waiting(self) -> Mapping[str, Collection[str]]:
        """Return the deliveries."""
        groups: dict[str, set[str]] = {}
        for group, id_ in self._database.read(
            "SELECT grp, id FROM delivery JOIN message USING (position)"
        ):
            groups.setdefault(group, set()).add(id_)
        return groups

    def graves(self) -> Sequence[Grave]:
        """Return the dead letters."""
        return [
            Grave(group=group, message_id=id_, key=key, reason=reason, died_at=died_at / 1_000_000)
            for group, id_, key, reason, died_at in self._database.read(
                "SELECT grp, id, key, reason, died_at FROM dead_letter"
            )
        ]

    def remove(self) -> None:
        """Leave the file: it goes with its folder."""

    def close(self) -> None:
        """Do nothing: nothing is kept open."""


class Folders:
    """Every shop has the broker in its own folder."""

    name = EMBEDDED

    @asynccontextmanager
    async def berth(self, root: Path, *, alone: bool, shared: bool) -> AsyncIterator[Berth]:
        """Give nothing: the file is made by its first use, and gives keys to many processes."""
        del root, alone, shared
        yield Berth()
