"""What became of a round, in numbers."""

from collections.abc import Iterable
from dataclasses import dataclass

from postroom.outcome import Dead, Retry, Sent, Settled


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """What one round did, or several."""

    read: int = 0
    sent: int = 0
    refused: int = 0
    """Refused by the broker, for now or for good."""
    held: int = 0
    ready: int = 0
    """Made ready by a sweep."""

    @property
    def idle(self) -> bool:
        """Whether the round found nothing to do."""
        return not (self.read or self.ready)

    def __add__(self, other: "Step") -> "Step":
        """Return both rounds as one."""
        return Step(
            read=self.read + other.read,
            sent=self.sent + other.sent,
            refused=self.refused + other.refused,
            held=self.held + other.held,
            ready=self.ready + other.ready,
        )


def counted(settled: Iterable[Settled]) -> Step:
    """Return how many of these the broker took, and how many it refused."""
    sent = refused = 0
    for one in settled:
        match one.outcome:
            case Sent():
                sent += 1
            case Retry() | Dead(attempted=True):
                refused += 1
            case Dead():
                pass
    return Step(sent=sent, refused=refused)
