"""The contract to a broker: what the relay publishes to and the consumer receives from."""

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Protocol, runtime_checkable

from postroom.errors import BrokerError
from postroom.message import Message


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerFeatures:
    """What differs between brokers; the same object serves code, tests and documentation."""

    durable: bool
    """A confirmed message survives the end of the broker's process."""
    refusal_stops_key: bool
    """After a refusal, later messages of the same key in the same call are not sent."""
    ordered_by_key: bool
    """A key goes to one consumer of a group at a time, in order; a release keeps its place."""
    spreads_keys: bool
    """Where keys are ordered, different keys go to different consumers of a group."""
    retry_holds_key: bool
    """During the delay of a retry the later messages of its key wait."""
    counts_attempts: bool
    """`Delivery.attempt` is a number."""
    delays_retry: bool
    """`Delivery.retry` waits for its delay before the message comes again."""
    dead_letters: bool
    """`Delivery.reject` keeps the message, with the reason."""
    reports_unroutable: bool
    """A message that no group receives is refused for now, instead of being kept or dropped."""
    max_message_bytes: int | None
    """Larger messages are refused for good; None where the broker sets no limit."""


class Publisher(Protocol):
    """The relay's side."""

    async def publish(
        self, messages: Sequence[Message], *, timeout: timedelta
    ) -> Sequence[BrokerError | None]:
        """Send the messages in order, after those of an earlier call that may still be under way.

        Returns one result for each message: None only where the broker confirmed it. Never raises
        for anything that the broker or the network did, and answers within the time-out (a hang
        is `OutcomeUnknown`).
        """
        ...

    async def ping(self) -> None:
        """Return once a publish has a chance; reconnects if needed.

        Raises BrokerUnavailable where it has none.
        """
        ...


class Delivery(Protocol):
    """One message in a consumer's hands. Exactly one of the four methods ends it.

    Each raises `DeliveryLost` where the broker gave the message to another consumer meanwhile,
    and `BrokerUnavailable` where the broker could not be told.
    """

    @property
    def message(self) -> Message:
        """What arrived."""
        ...

    @property
    def attempt(self) -> int | None:
        """1 for the first; one more for every `retry` before. None where nobody counts."""
        ...

    @property
    def redelivered(self) -> bool:
        """Whether the broker handed it out before; a copy may have been handled."""
        ...

    async def ack(self) -> None:
        """Tell the broker that the message is done."""
        ...

    async def retry(self, delay: timedelta, reason: str) -> None:
        """Have it delivered again after the delay, counted as a failed attempt."""
        ...

    async def release(self) -> None:
        """Give it back at once, uncounted: the consumer stops or its database is down."""
        ...

    async def reject(self, reason: str) -> None:
        """Move it to the dead letters of its group, with the reason."""
        ...


class Subscriber(Protocol):
    """The consumer's side."""

    def subscribe(
        self, topics: Sequence[str], *, group: str, prefetch: int
    ) -> AbstractAsyncContextManager[AsyncIterator[Delivery]]:
        """Receive what is sent to these topics; the consumers of a group share it.

        At most `prefetch` deliveries are out at once. On leaving, whatever is still out is
        given back, uncounted. Iterating raises `BrokerUnavailable` when the broker is lost.
        """
        ...


class Broker(Publisher, Subscriber, Protocol):
    """One implementation per broker."""

    @property
    def name(self) -> str:
        """The driver's name, as in an address."""
        ...

    @property
    def features(self) -> BrokerFeatures:
        """What this broker can do."""
        ...

    async def open(self) -> None:
        """Get ready; idempotent. Does not fail while the broker is down: `ping` tells."""
        ...

    async def close(self) -> None:
        """Disconnect; idempotent."""
        ...


ALL_TOPICS = "*"
"""Stands for a topic where a broker counts all topics of a group together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueStatus:
    """What one group still has to do of one topic."""

    group: str
    """Empty: messages of a topic that no group receives, kept for one that may come."""
    topic: str
    """`ALL_TOPICS` where the broker counts all topics of a group together."""
    ready: int
    """Can be handed out, or comes right after an earlier message of its key."""
    out: int
    """In a consumer's hands; where the broker does not tell, in those of this client."""
    delayed: int | None
    """Waiting for the delay of a retry; None where the broker does not know."""
    dead: int
    oldest_at: datetime | None
    """When the oldest message was published that is ready, out or delayed."""
    consumers: int | None = None
    """How many consumers of the group are alive; None where the broker does not know."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetter:
    """A message that one group gave up."""

    group: str
    position: int
    """Names it within its group."""
    message: Message
    reason: str
    attempts: int
    """Failed attempts, the last included."""
    died_at: datetime


@runtime_checkable
class Keeper(Protocol):
    """What a broker that keeps its queues itself shows to people (optional)."""

    async def queues(self) -> Sequence[QueueStatus]:
        """Return every group's state, by topic, after the topics that no group receives."""
        ...

    async def dead_letters(
        self, group: str | None = None, *, limit: int = 100
    ) -> Sequence[DeadLetter]:
        """Return what was given up, the oldest first."""
        ...

    async def replay_dead(
        self, group: str, positions: Sequence[int] | None = None, *, limit: int = 1000
    ) -> int:
        """Put dead letters (None: the oldest) at the end of their group's queue, attempts 0.

        Returns how many. The id stays; an inbox that has it already drops the copy.
        """
        ...

    async def discard_dead(
        self, group: str, positions: Sequence[int] | None = None, *, limit: int = 1000
    ) -> int:
        """Delete dead letters for good; return how many."""
        ...

    async def drop_group(self, group: str, topics: Sequence[str] | None = None) -> int:
        """End a group's subscription, of all topics or of these.

        What it had not done and its dead letters of these topics are deleted; returns how many.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class TopologyPart:
    """One thing that has to exist in a broker before messages flow."""

    kind: str
    """What it is in the broker's own words: `exchange`, `queue`, `binding`, `stream`."""
    name: str
    detail: str
    """How it is made."""


@runtime_checkable
class Builder(Protocol):
    """What a broker that makes nothing by itself offers to those who deploy (optional)."""

    def topology(self, groups: Mapping[str, Sequence[str]]) -> Sequence[TopologyPart]:
        """Return what has to exist for these groups, each with its topics; asks nobody."""
        ...

    async def apply_topology(self, groups: Mapping[str, Sequence[str]]) -> None:
        """Make what is missing of it, and change nothing that is there.

        Raises SettingsError for what exists but was made differently, and BrokerUnavailable.
        """
        ...
