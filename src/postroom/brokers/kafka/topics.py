"""What the broker says of its topics, and how they are made when asked."""

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeVar

from confluent_kafka import KafkaError, KafkaException, TopicCollection
from confluent_kafka.admin import (
    AclOperation,
    AdminClient,
    ConfigResource,
    NewTopic,
    ResourceType,
)

from postroom.brokers.kafka.wire import Wire, error_of, told
from postroom.errors import BrokerError, BrokerUnavailable, RefusedForNow

T = TypeVar("T")

_SLICE = 0.05
_FRESH = 60.0
"""Seconds for which an answer about a topic is believed."""
_MISSING = frozenset({KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError.TOPIC_EXCEPTION})
_FORBIDDEN = frozenset({KafkaError.TOPIC_AUTHORIZATION_FAILED})


@dataclass(frozen=True, slots=True, kw_only=True)
class Topic:
    """What is known of a topic that we may write to."""

    name: str
    partitions: int
    limit: int | None
    """The largest batch that it takes, in bytes; None where we may not ask."""
    until: float


class Topics:
    """Asks the cluster, and remembers for a while what it said."""

    def __init__(self, config: Mapping[str, Any], place: str) -> None:
        """Connect when something is asked."""
        self._wire = Wire()
        self._place = place
        self._config = {**config, "error_cb": self._wire.noted}
        self._admin: AdminClient | None = None
        self._known: dict[str, Topic] = {}

    async def close(self) -> None:
        """Disconnect."""
        admin, self._admin = self._admin, None
        self._known.clear()
        if admin is not None:
            await asyncio.to_thread(_end, [admin])

    async def ping(self, timeout: float) -> None:
        """Return once a broker answers. Raises BrokerUnavailable."""
        admin = self._client()
        await self._answer(lambda: admin.describe_cluster(request_timeout=timeout), timeout)

    async def look(
        self, names: Iterable[str], timeout: float, *, to_read: bool = False
    ) -> dict[str, Topic | BrokerError]:
        """Return what is known of these topics; what is not known is asked first.

        A topic that is not there, or that we may not write to (or read from), is RefusedForNow.
        Raises BrokerUnavailable.
        """
        now = time.monotonic()
        found: dict[str, Topic | BrokerError] = {}
        wanted = []
        for name in names:
            known = None if to_read else self._known.get(name)
            if known is not None and now < known.until:
                found[name] = known
            else:
                wanted.append(name)
        if wanted:
            found |= await self._ask(wanted, timeout, to_read=to_read)
        return found

    def forget(self, name: str) -> None:
        """Ask again the next time."""
        self._known.pop(name, None)

    async def create(
        self, names: Mapping[str, Mapping[str, str]], *, partitions: int, replication: int
    ) -> dict[str, KafkaError | None]:
        """Make these topics, with their settings; return what became of each."""
        if not names:
            return {}
        admin = self._client()
        wanted = [
            NewTopic(
                name, num_partitions=partitions, replication_factor=replication, config=dict(how)
            )
            for name, how in names.items()
        ]
        made = {}
        futures: dict[str, Future[Any]] = await self._begun(
            lambda: admin.create_topics(wanted, operation_timeout=10, request_timeout=10)
        )
        for name, future in futures.items():
            made[name] = await self._ended(future, 12)
        return made

    async def _ask(
        self, names: Sequence[str], timeout: float, *, to_read: bool
    ) -> dict[str, Topic | BrokerError]:
        admin = self._client()
        until = time.monotonic() + timeout
        described: dict[str, Future[Any]] = await self._begun(
            lambda: admin.describe_topics(
                TopicCollection(list(names)),
                include_authorized_operations=True,
                request_timeout=timeout,
            )
        )
        found: dict[str, Topic | BrokerError] = {}
        there = {}
        for name, future in described.items():
            error = await self._ended(future, until - time.monotonic())
            if error is None:
                there[name] = future.result()
            elif error.code() in _MISSING | _FORBIDDEN:
                found[name] = RefusedForNow(_missing(name, error))
            else:
                raise self._wire.unavailable(self._place, f"does not answer ({told(error)})")
        limits = await self._limits(there, until) if there and not to_read else {}
        needed = AclOperation.READ if to_read else AclOperation.WRITE
        for name, description in there.items():
            operations = description.authorized_operations
            if operations and needed not in operations:
                verb = "read from" if to_read else "write to"
                found[name] = RefusedForNow(f"we are not allowed to {verb} the topic {name}")
                continue
            found[name] = Topic(
                name=name,
                partitions=len(description.partitions),
                limit=limits.get(name),
                until=time.monotonic() + _FRESH,
            )
        if not to_read:
            self._known |= {name: one for name, one in found.items() if isinstance(one, Topic)}
        return found

    async def _limits(self, names: Iterable[str], until: float) -> dict[str, int]:
        """Return how large a batch may be; nothing of topics of which we may not ask."""
        admin = self._client()
        resources = [ConfigResource(ResourceType.TOPIC, name) for name in names]
        futures: dict[ConfigResource, Future[Any]] = await self._begun(
            lambda: admin.describe_configs(
                resources, request_timeout=max(until - time.monotonic(), _SLICE)
            )
        )
        found = {}
        for resource, future in futures.items():
            if await self._ended(future, until - time.monotonic()) is None:
                with suppress(KeyError, TypeError, ValueError):
                    found[str(resource.name)] = int(future.result()["max.message.bytes"].value)
        return found

    def _client(self) -> AdminClient:
        if self._admin is None:
            try:
                self._admin = AdminClient(self._config)
            except KafkaException as error:
                raise BrokerUnavailable(told(error_of(error))) from error
        return self._admin

    async def _begun(self, call: Callable[[], T]) -> T:
        try:
            return call()
        except (KafkaException, ValueError, RuntimeError) as error:
            raise BrokerUnavailable(told(error_of(error))) from error

    async def _answer(self, call: "Callable[[], Future[T]]", timeout: float) -> T:
        future = await self._begun(call)
        error = await self._ended(future, timeout)
        if error is not None:
            raise self._wire.unavailable(self._place, f"does not answer ({told(error)})")
        return future.result()

    async def _ended(self, future: "Future[Any]", timeout: float) -> KafkaError | None:
        """Wait for an answer; return the error that it is, None where it is none.

        Raises BrokerUnavailable as soon as it is known that no broker can be reached.
        """
        admin = self._client()
        until = time.monotonic() + timeout
        admin.poll(0)  # what it said before is of the past
        told_before = self._wire.told
        waiting = asyncio.wrap_future(future)
        try:
            while not waiting.done():
                left = until - time.monotonic()
                if left <= 0:
                    raise self._wire.unavailable(self._place, "did not answer in time")
                await asyncio.wait((waiting,), timeout=min(_SLICE, left))
                admin.poll(0)
                fresh = self._wire.told > told_before
                if not waiting.done() and (self._wire.hopeless or (self._wire.down and fresh)):
                    raise self._wire.unavailable(self._place)
        finally:
            if not waiting.done():
                waiting.cancel()
        failure = waiting.exception()
        if failure is None:
            self._wire.answered()
            return None
        return error_of(failure)


def _end(clients: list[Any]) -> None:
    """Destroy clients: that joins their threads, and must not happen on the event loop."""
    clients.clear()


def _missing(name: str, error: KafkaError) -> str:
    if error.code() in _FORBIDDEN:
        return f"we are not allowed to use the topic {name}: {told(error)}"
    return f"there is no topic {name}: make it, for example with `postroom topology --apply`"
