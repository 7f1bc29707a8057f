"""Where a shop keeps its files."""

from dataclasses import dataclass
from pathlib import Path

CONSUMERS = ("shipping", "billing")


@dataclass(frozen=True, slots=True)
class Places:
    """The files of one shop, all inside one folder."""

    root: Path

    @property
    def shop(self) -> Path:
        """The order services' database: customers, orders and the outbox."""
        return self.root / "shop.db"

    @property
    def broker(self) -> Path:
        """The embedded broker, in a folder of its own so that it can be taken away whole."""
        return self.root / "broker" / "broker.db"

    @property
    def journals(self) -> Path:
        """What each process says of itself, one file each."""
        return self.root / "journals"

    @property
    def faults(self) -> Path:
        """What the broker does wrong at the moment; read by the wrapper around it."""
        return self.root / "faults.json"

    def effects(self, consumer: str) -> Path:
        """Return the database of one consumer: effects and inbox."""
        return self.root / f"{consumer}.db"

    def create(self) -> None:
        """Make the folders."""
        self.journals.mkdir(parents=True, exist_ok=True)
        self.broker.parent.mkdir(exist_ok=True)
