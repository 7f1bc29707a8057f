"""What people do: look, replay, discard, release; every change leaves an audit record."""

from collections import defaultdict
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import Any

from postroom._clock import nearest_moment
from postroom.message import Entry, State
from postroom.store import AuditRecord, Query, RelayStatus, Stats
from postroom.stores.postgresql.leases import relays
from postroom.stores.postgresql.work import Work
from postroom.stores.rows import entry_of, record_of
from postroom.stores.selection import Action, conditions, described, narrowed

Match = tuple[int, bool, str, int]
"""Seq, whether it blocks, route and lane."""

Change = Callable[[Work, Sequence[Match], Sequence[State]], Awaitable[int]]


async def find(work: Work, query: Query, limit: int) -> list[Entry]:
    """Return matching rows in `seq` order."""
    sql, values = _selected(work, "find", query, tuple(query.states))
    return [entry_of(row, typed=True) for row in await work.fetch(sql, {**values, "limit": limit})]


async def replay(work: Work, matches: Sequence[Match], _states: Sequence[State]) -> int:
    """Make these dead or sent rows ready, as new ones where their place is gone."""
    kept = [seq for seq, blocks, _, _ in matches if blocks]
    moved = [seq for seq, blocks, _, _ in matches if not blocks]
    done = 0
    if kept:
        done += await work.value("replay-in-place", seqs=kept)
    if moved:
        done += await work.change("replay-at-end", seqs=moved)
    return done


async def discard(work: Work, matches: Sequence[Match], states: Sequence[State]) -> int:
    """Delete these rows."""
    return await work.change(
        "discard", seqs=[match[0] for match in matches], states=[str(state) for state in states]
    )


async def release(work: Work, matches: Sequence[Match], _states: Sequence[State]) -> int:
    """Let these dead rows no longer block their keys."""
    return await work.change("unblock", seqs=[match[0] for match in matches])


_CHANGES: Mapping[str, Change] = {"replay": replay, "discard": discard, "release": release}


async def matching(work: Work, query: Query, action: Action, limit: int) -> list[Match]:
    """Return the rows that a change would touch, in `seq` order, of its states only."""
    states = narrowed(query, action.states)
    if not states:
        return []
    sql, values = _selected(work, "match", query, states, blocking=action.blocking)
    return [tuple(row) for row in await work.fetch(sql, {**values, "limit": limit})]


async def act(work: Work, action: Action, query: Query, *, limit: int, actor: str) -> int:
    """Change what matches and write down who did it; return how many rows.

    The lanes are locked before the rows, as everybody does: nobody can wait for us while we wait
    for them.
    """
    matches = await matching(work, query, action, limit)
    if not matches:
        return 0
    lanes = sorted({(route, lane) for _, _, route, lane in matches})
    await work.value(
        "lock-lanes", routes=[route for route, _ in lanes], numbers=[lane for _, lane in lanes]
    )
    count = await _CHANGES[action.name](work, matches, narrowed(query, action.states))
    if count:
        await record(work, action.name, actor, described(query), count)
    return count


async def record(work: Work, action: str, actor: str, detail: str, count: int) -> int:
    """Add an audit record; return its number."""
    return int(await work.value("record", action=action, actor=actor, detail=detail, count=count))


async def stats(work: Work, version: int) -> Stats:
    """Return counts and ages."""
    counts: dict[str, dict[State, int]] = defaultdict(dict)
    oldest: dict[str, int] = {}
    for route, state, count, created in await work.rows("count-rows"):
        counts[route][State(state)] = count
        if created is not None:
            oldest[route] = min(created, oldest.get(route, created))
    return Stats(
        counts=dict(counts),
        oldest_unsent_at={route: nearest_moment(moment) for route, moment in oldest.items()},
        blocked_keys=await work.value("count-blocked"),
        relays=await _relays(work),
        inbox=dict(await work.rows("count-inbox")),
        schema_version=version,
    )


async def audit(work: Work, limit: int) -> list[AuditRecord]:
    """Return the newest records first."""
    return [record_of(row) for row in await work.rows("records", limit=limit)]


async def _relays(work: Work) -> tuple[RelayStatus, ...]:
    owning = dict(await work.rows("count-lanes"))
    known, now = await relays(work)
    return tuple(relay.status(now, owning.get(relay.name, 0)) for relay in known)


def _selected(
    work: Work, name: str, query: Query, states: Collection[State], *, blocking: bool = False
) -> tuple[str, dict[str, Any]]:
    """Return the named query with the conditions that are given, and their values."""
    names, values = conditions(query, states, blocking=blocking)
    # The last one: a schema may be called like this, and stands before.
    before, _, after = work.sql[name].rpartition("{conditions}")
    return before + " and ".join(work.sql[one] for one in names) + after, values
