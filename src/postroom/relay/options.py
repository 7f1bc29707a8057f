"""What can be set about a relay."""

from dataclasses import dataclass, field
from datetime import timedelta

from postroom._clock import check_span
from postroom.retry import Backoff


@dataclass(frozen=True, slots=True, kw_only=True)
class RelayOptions:
    """The times and sizes by which a relay works."""

    lease: timedelta = timedelta(seconds=15)
    """After so long without a renewal others may take its lanes."""
    renewal: timedelta = timedelta(seconds=5)
    """How often it renews at least; an expired lease must be seen twice, this far apart."""
    share: timedelta = timedelta(seconds=1)
    """How often it looks for lanes to take or to give, if that is more often than `renewal`."""
    batch: int = 500
    """Messages read and published together."""
    max_batch_bytes: int = 8 * 1024 * 1024
    """Payload bytes of a batch."""
    overlap: int = 2
    """Batches of a route under way at the same time: one waits for the broker, one is read."""
    publish_timeout: timedelta = timedelta(seconds=5)
    """How long the broker may take to answer for one call."""
    poll: timedelta = timedelta(seconds=1)
    """The longest time between two looks at the outbox; wake-ups come in between."""
    sweep: timedelta = timedelta(seconds=1)
    """How often held rows without a reason are looked for."""
    keep_sent: bool = True
    """Keep sent rows until they are pruned, or delete them at once."""
    suspect_after: int = 2
    """Unknown outcomes in a row after which a message is sent alone."""
    probe: Backoff = field(
        default_factory=lambda: Backoff(
            initial=timedelta(milliseconds=200), maximum=timedelta(seconds=10)
        )
    )
    """How often a broker or database that cannot be reached is tried."""

    def __post_init__(self) -> None:
        """Refuse times under which a healthy relay would lose its lanes or publish past them."""
        check_span("lease", self.lease, least=timedelta(milliseconds=100))
        for name in ("share", "poll", "sweep"):
            check_span(name, getattr(self, name))
        if not timedelta(0) < self.renewal * 2 < self.lease:
            raise ValueError("renewal must be positive and less than half of the lease")
        if not timedelta(0) < self.publish_timeout <= self.lease - self.renewal:
            raise ValueError("publish_timeout must be positive and at most lease - renewal")
        if min(self.share, self.poll, self.sweep) <= timedelta(0):
            raise ValueError("share, poll and sweep must be positive")
        if min(self.batch, self.overlap, self.max_batch_bytes, self.suspect_after) < 1:
            raise ValueError("batch, overlap, max_batch_bytes and suspect_after must be at least 1")
