"""What a process of the lab is told when it starts."""

import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

from postroom.lab.kill import Point
from postroom.lab.places import Places


@dataclass(frozen=True, slots=True, kw_only=True)
class Brief:
    """The part that one process plays; fields that its role does not know are ignored."""

    role: str
    name: str
    root: str
    address: str = ""
    """The PostgreSQL database in which the shop's schemas are; files where empty."""
    schema: str = ""
    """What the names of those schemas begin with."""
    broker: str = ""
    """The address of the shop's broker; the embedded one where empty."""
    number: int = 0
    """The how-manieth process of its role it is."""
    seed: int = 0
    point: Point | None = None
    """Where it is hit by a signal of its own."""
    plant: str = ""
    """The wrong variant that it runs, for the lab to prove that it would notice."""

    # order services
    orders: int = 0
    """How many it writes before it ends; 0 is until it is told to stop."""
    per_second: float = 100
    customers: int = 10
    careful: bool = True
    """False: it writes nothing but plain orders, all of which succeed."""
    dawdles: float = 0
    """Which part of its transactions stays open for up to 50 ms, with everything written."""

    # relays
    lease: float = 2
    on_dead: Literal["continue", "park"] = "continue"
    attempts: int = 6
    publish_timeout: float = 1
    max_message_bytes: int = 262_144

    # consumers
    consumer: str = ""
    pause: float = 0
    """How long it thinks about each message."""

    # whoever locks a database
    database: str = ""

    @property
    def places(self) -> Places:
        """Where the shop's files and databases are."""
        return Places(Path(self.root), self.address, self.schema, self.broker)

    def but(self, **changes: Any) -> "Brief":
        """Return the brief with some fields changed."""
        return replace(self, **changes)

    def to_json(self) -> str:
        """Return the brief as it is handed to the process."""
        return json.dumps(asdict(self))

    @staticmethod
    def from_json(text: str) -> "Brief":
        """Read a brief."""
        fields = json.loads(text)
        point = fields.pop("point")
        return Brief(**fields, point=Point(**point) if point else None)
