"""What `status` tells: one document, the problems in it, and how it looks on a screen."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from postroom._redact import redacted
from postroom.app import Postroom
from postroom.broker import Keeper, QueueStatus
from postroom.cli.screen import age, made_table, span
from postroom.errors import BrokerError
from postroom.lane import LANES
from postroom.message import State
from postroom.store import Stats

_UNSENT_AGE = timedelta(minutes=5)
_QUEUED_AGE = timedelta(minutes=15)
_UNSENT = (State.READY, State.WAITING, State.HELD)


@dataclass(frozen=True, slots=True, kw_only=True)
class Overview:
    """The state of everything at one moment."""

    at: datetime
    store: str
    broker: str
    stats: Stats
    routes: frozenset[str]
    """Those of the settings."""
    queues: Sequence[QueueStatus] | None
    """None where the broker does not show its queues, or is away."""
    broker_error: str | None

    def problems(self, max_age: timedelta | None = None) -> list[str]:
        """Return what a person should look at, as sentences.

        Without an age, a queue is given longer than the outbox: consumers try again later.
        """
        unsent, queued = (max_age, max_age) if max_age is not None else (_UNSENT_AGE, _QUEUED_AGE)
        return [*self._outbox_problems(unsent), *self._broker_problems(queued)]

    def _outbox_problems(self, max_age: timedelta) -> list[str]:
        found = []
        for route, counts in sorted(self.stats.counts.items()):
            if dead := counts.get(State.DEAD, 0):
                found.append(f"route {route}: {dead} dead (postroom dead list --route {route})")
            oldest = self.stats.oldest_unsent_at.get(route)
            if oldest and self.at - oldest > max_age:
                found.append(f"route {route}: the oldest unsent message waits for {age(oldest)}")
        if self.stats.blocked_keys and self.dead:
            found.append(f"{_counted(self.stats.blocked_keys, 'blocked key')} (postroom held list)")
        alive = [relay for relay in self.stats.relays if relay.alive]
        unsent = sum(unserved(self.stats, ()).values())
        if unsent and not alive:
            found.append(f"{unsent} unsent and no relay alive (postroom relay)")
        served = {route for relay in alive for route in relay.routes} if alive else self.routes
        found += told_unserved(unserved(self.stats, served))
        paused = sorted({route for relay in alive for route in relay.paused_routes})
        found += [f"route {route}: paused, its broker cannot be reached" for route in paused]
        return found

    def _broker_problems(self, max_age: timedelta) -> list[str]:
        if self.broker_error:
            return [f"broker: {self.broker_error}"]
        found = [
            f"group {group}: {_counted(dead, 'dead letter')} (postroom dead list --from {group})"
            for group, dead in sorted(self.dead_letters.items())
        ]
        for queue in self.queues or ():
            if not queue.group:
                number = _counted(queue.ready, "message")
                found.append(f"topic {queue.topic}: {number}, nobody subscribes")
            elif queue.oldest_at and self.at - queue.oldest_at > max_age:
                nobody = " and no consumer is alive" if queue.consumers == 0 else ""
                found.append(
                    f"group {queue.group}: the oldest message of {queue.topic} waits for "
                    f"{age(queue.oldest_at, self.at)}{nobody}"
                )
        return found

    @property
    def dead(self) -> int:
        """Dead messages of the outbox."""
        return sum(counts.get(State.DEAD, 0) for counts in self.stats.counts.values())

    @property
    def unsent(self) -> int:
        """Messages that are ready, waiting or held."""
        return sum(
            counts.get(state, 0) for counts in self.stats.counts.values() for state in _UNSENT
        )

    @property
    def dead_letters(self) -> Mapping[str, int]:
        """Dead letters by consumer group, where there are any."""
        found: dict[str, int] = {}
        for queue in self.queues or ():
            if queue.dead:
                found[queue.group] = found.get(queue.group, 0) + queue.dead
        return found


def _counted(number: int, what: str) -> str:
    return f"{number} {what}{'s' if number != 1 else ''}"


def unserved(stats: Stats, served: Collection[str]) -> Mapping[str, int]:
    """Return how many messages are not sent, by route, of all routes but those that are served.

    Scheduled ones count: when they are due, there is nobody to see it.
    """
    found = {
        route: sum(counts.get(state, 0) for state in (*_UNSENT, State.SCHEDULED))
        for route, counts in sorted(stats.counts.items())
        if route not in served
    }
    return {route: count for route, count in found.items() if count}


def told_unserved(found: Mapping[str, int]) -> list[str]:
    """Return what `unserved` found as sentences."""
    return [
        f"no relay serves route {route}: {count} unsent row{'s' if count > 1 else ''} "
        "(is it in the settings of the relays?)"
        for route, count in found.items()
    ]


async def overview(postroom: Postroom) -> Overview:
    """Look at the store, which must answer, and at the broker, which may be away."""
    stats = await postroom.desk.stats()
    queues, error = None, None
    try:
        await postroom.broker.ping()
        if isinstance(postroom.broker, Keeper):
            queues = await postroom.broker.queues()
    except BrokerError as lost:
        error = lost.reason
    return Overview(
        at=datetime.now(UTC),
        store=redacted(postroom.settings.store),
        broker=redacted(postroom.settings.broker),
        stats=stats,
        routes=frozenset(route.name for route in postroom.routes),
        queues=queues,
        broker_error=error,
    )


def as_document(seen: Overview, problems: Sequence[str]) -> dict[str, Any]:
    """Return the overview as JSON holds it."""
    stats = seen.stats
    return {
        "at": seen.at,
        "store": {"address": seen.store, "schema_version": stats.schema_version},
        "outbox": {
            "unsent": seen.unsent,
            "dead": seen.dead,
            "blocked_keys": stats.blocked_keys,
            "routes": {route: _route(seen, route) for route in _routes(stats)},
        },
        "relays": [
            {
                "name": relay.name,
                "alive": relay.alive,
                "lanes": relay.lanes,
                "seen_at": relay.seen_at,
                "routes": list(relay.routes),
                "paused_routes": list(relay.paused_routes),
            }
            for relay in stats.relays
        ],
        "inbox": dict(stats.inbox),
        "broker": {
            "address": seen.broker,
            "reachable": seen.broker_error is None,
            "error": seen.broker_error,
            "queues": None if seen.queues is None else [_queue(queue) for queue in seen.queues],
            "dead_letters": sum(seen.dead_letters.values()),
        },
        "problems": list(problems),
    }


def as_screen(seen: Overview, problems: Sequence[str]) -> RenderableType:
    """Return the overview as a person reads it."""
    stats = seen.stats
    parts: list[RenderableType] = [
        Text(f"store   {seen.store}, schema version {stats.schema_version}"),
        Text(f"broker  {seen.broker}" + (": away" if seen.broker_error else "")),
        Text(),
        _outbox_table(seen),
        Text(),
    ]
    if stats.relays:
        parts += [_relay_table(seen), Text()]
    if stats.inbox:
        rows = sorted(stats.inbox.items())
        parts += [made_table(("consumer", "inbox rows"), rows), Text()]
    if seen.queues:
        parts += [_queue_table(seen.queues), Text()]
    style, marks = ("yellow", problems) if problems else ("green", ["nothing to worry about"])
    parts += [Text(("! " if problems else "") + mark, style=style) for mark in marks]
    return Group(*parts)


def _routes(stats: Stats) -> list[str]:
    return sorted({*stats.counts, *stats.oldest_unsent_at})


def _route(seen: Overview, route: str) -> dict[str, Any]:
    counts = seen.stats.counts.get(route, {})
    oldest = seen.stats.oldest_unsent_at.get(route)
    return {
        **{state.value: counts.get(state, 0) for state in State},
        "oldest_unsent_at": oldest,
        "oldest_unsent_seconds": None if oldest is None else (seen.at - oldest).total_seconds(),
    }


def _queue(queue: QueueStatus) -> dict[str, Any]:
    return {
        "group": queue.group,
        "topic": queue.topic,
        "ready": queue.ready,
        "out": queue.out,
        "delayed": queue.delayed,
        "dead": queue.dead,
        "oldest_at": queue.oldest_at,
        "consumers": queue.consumers,
    }


def _outbox_table(seen: Overview) -> RenderableType:
    if not seen.stats.counts:
        return Text("the outbox is empty")
    rows = []
    for route in _routes(seen.stats):
        counts = seen.stats.counts.get(route, {})
        oldest = age(seen.stats.oldest_unsent_at.get(route), seen.at)
        rows.append((route, *(counts.get(state, 0) for state in State), oldest))
    return made_table(("route", *(state.value for state in State), "oldest unsent"), rows)


def _relay_table(seen: Overview) -> RenderableType:
    rows = [
        (
            relay.name,
            "alive" if relay.alive else "gone",
            relay.lanes,
            f"{span(seen.at - relay.seen_at)} ago",
            ", ".join(relay.routes),
            ", ".join(relay.paused_routes),
        )
        for relay in seen.stats.relays
    ]
    return made_table(
        ("relay", "state", f"lanes of {LANES} a route", "seen", "routes", "paused"), rows
    )


def _queue_table(queues: Sequence[QueueStatus]) -> RenderableType:
    rows = [
        (
            q.group or "(nobody)",
            q.topic,
            q.ready,
            q.out,
            q.delayed,
            q.dead,
            age(q.oldest_at),
            "?" if q.consumers is None else q.consumers,
        )
        for q in queues
    ]
    return made_table(
        ("group", "topic", "ready", "out", "delayed", "dead", "oldest", "consumers"), rows
    )
