"""What hypothesis may choose: messages, faults of the broker, queries, spots of a step."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from hypothesis import strategies as st

from postroom.message import Message, State
from postroom.store import Query
from postroom.testing.scripted import ScriptedBroker
from tests.properties.process import CALLS, EVENTS, Fate

MAX_BYTES = 1000
"""What the broker takes; every 25th message is larger."""


@dataclass(frozen=True, slots=True)
class Put:
    """One message to be; seconds from now to its delivery, and from there to its end."""

    type: str
    key: str | None
    deliver_in: int = 0
    expires_in: int = 0

    def message(self, number: int, now: datetime) -> Message:
        """Return the message; its id is the same whenever a run is played again."""
        deliver_at = now + timedelta(seconds=self.deliver_in)
        return Message(
            id=f"{number:08x}-0000-7000-8000-000000000000",
            type=self.type,
            payload=b"x" * (2 * MAX_BYTES if number % 25 == 0 else 1),
            key=self.key,
            deliver_at=deliver_at if self.deliver_in else None,
            expires_at=deliver_at + timedelta(seconds=self.expires_in) if self.expires_in else None,
        )


@dataclass(frozen=True, slots=True)
class Savepoint:
    """Puts within a savepoint, and whether it is rolled back."""

    puts: Sequence[Put]
    undone: bool


@dataclass(frozen=True, slots=True)
class Fault:
    """What the broker does to messages of this key or type, and how often."""

    kind: str
    match: str
    times: int
    also: bool
    """Whether a message arrives although its confirm is lost."""

    def befall(self, broker: ScriptedBroker) -> None:
        """Tell the broker to do so."""
        match self.kind:
            case "refuse":
                broker.refuse(self.match, times=self.times)
            case "refuse for good":
                broker.refuse_for_good(self.match, times=self.times)
            case "unroutable":
                broker.unroutable(self.match, times=self.times)
            case "lose connection":
                broker.lose_connection_after(self.match, times=self.times, delivered=self.also)
            case "hang":
                broker.hang(self.match, times=self.times, delivered=self.also)
            case "close channel":
                broker.close_channel(self.match, times=self.times, unanswered_before=self.also)


puts = st.builds(
    Put,
    type=st.sampled_from(["go", "go", "park", "pipe"]),
    key=st.sampled_from(["a", "a", "a", "a", "b", None]),
    deliver_in=st.sampled_from([0, 0, 0, 0, 0, 0, 0, 3, 20]),
    expires_in=st.sampled_from([0, 0, 0, 0, 0, 0, 0, 2, 30]),
)
savepoints = st.builds(Savepoint, puts=st.lists(puts, min_size=1, max_size=2), undone=st.booleans())
queries = st.builds(
    Query,
    states=st.sampled_from([(), (State.DEAD,), (State.SENT,), (State.HELD,), (State.WAITING,)]),
    route=st.sampled_from([None, "go", "park", "pipe"]),
    key=st.sampled_from([None, None, "a", "b"]),
)
spots = st.sampled_from([*CALLS, *CALLS, *EVENTS])
few = st.integers(1, 3)
faults = st.builds(
    Fault,
    kind=st.sampled_from(
        [
            "refuse",
            "refuse",
            "unroutable",
            "refuse for good",
            "lose connection",
            "hang",
            "close channel",
        ]
    ),
    match=st.sampled_from(["a", "b", "go", "park", "pipe"]),
    times=st.sampled_from([1, 2, 4]),
    also=st.booleans(),
)
which = st.integers(0, 2)
fates: st.SearchStrategy[Fate] = st.sampled_from(
    ["health", "health", "crash", "crash", "freeze", "lock"]
)
