"""What people do: look, replay, discard, release; every change leaves an audit record."""

import json
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence

from postroom._clock import nearest_moment
from postroom.message import Entry, State
from postroom.store import AuditRecord, Query, RelayStatus, Stats
from postroom.stores.rows import entry_of, record_of, text_of
from postroom.stores.selection import Action, conditions, described, narrowed
from postroom.stores.sqlite.leases import relays
from postroom.stores.sqlite.reading import fetch
from postroom.stores.sqlite.schema import version_of
from postroom.stores.sqlite.sweeping import new_places
from postroom.stores.sqlite.work import Work

Match = tuple[int, str, int]
"""Seq, state, and whether it blocks."""


def find(work: Work, query: Query, limit: int) -> list[Entry]:
    """Return matching rows in `seq` order."""
    sql, values = _selected(work, "find", query, tuple(query.states))
    sql = sql.replace("{columns}", work.sql["columns"])
    return [entry_of(row) for row in fetch(work, sql, {**values, "limit": limit})]


def replay(work: Work, matches: Sequence[Match]) -> None:
    """Make these dead or sent rows ready, as new ones where their place is gone."""
    work.change_each("replay-in-place", [{"seq": seq} for seq, _, blocks in matches if blocks])
    moved = [seq for seq, _, blocks in matches if not blocks]
    if moved:
        places = zip(moved, new_places(work, len(moved)), strict=True)
        work.change_each("replay-at-end", [{"seq": seq, "place": place} for seq, place in places])


def discard(work: Work, matches: Sequence[Match]) -> None:
    """Delete these rows."""
    work.change_each("delete", [(seq,) for seq, _, _ in matches])


def release(work: Work, matches: Sequence[Match]) -> None:
    """Let these dead rows no longer block their keys."""
    work.change_each("unblock", [(seq,) for seq, _, _ in matches])


_CHANGES: Mapping[str, Callable[[Work, Sequence[Match]], None]] = {
    "replay": replay,
    "discard": discard,
    "release": release,
}


def matching(work: Work, query: Query, action: Action, limit: int) -> list[Match]:
    """Return the rows that a change would touch, in `seq` order, of its states only."""
    states = narrowed(query, action.states)
    if not states:
        return []
    sql, values = _selected(work, "match", query, states, blocking=action.blocking)
    return work.connection.execute(sql, {**values, "limit": limit}).fetchall()


def act(work: Work, action: Action, query: Query, *, limit: int, actor: str, dry_run: bool) -> int:
    """Change what matches and write down who did it; a dry run does the same and undoes it."""
    with work.writing(undo=dry_run):
        matches = matching(work, query, action, limit)
        if matches:
            _CHANGES[action.name](work, matches)
            record(work, action.name, actor, described(query), len(matches))
        return len(matches)


def record(work: Work, action: str, actor: str, detail: str, count: int) -> int:
    """Add an audit record; return its number."""
    return int(
        work.connection.execute(
            work.sql["record"],
            {
                "at": work.now(),
                "actor": actor,
                "action": action,
                "detail": detail,
                "count": count,
            },
        ).lastrowid
        or 0
    )


def stats(work: Work) -> Stats:
    """Return counts and ages, all of the same moment."""
    with work.reading():
        counts: dict[str, dict[State, int]] = defaultdict(dict)
        oldest: dict[str, float] = {}
        for raw, state, count, created in fetch(work, work.sql["count-rows"], {}):
            route = text_of(raw)
            counts[route][State(state)] = counts[route].get(State(state), 0) + count
            if isinstance(created, int | float):
                oldest[route] = min(created, oldest.get(route, created))
        return Stats(
            counts=dict(counts),
            oldest_unsent_at={route: nearest_moment(moment) for route, moment in oldest.items()},
            blocked_keys=work.value("count-blocked"),
            relays=_relays(work),
            inbox={text_of(name): n for name, n in fetch(work, work.sql["count-inbox"], {})},
            schema_version=version_of(work),
        )


def audit(work: Work, limit: int) -> list[AuditRecord]:
    """Return the newest records first."""
    return [record_of(row) for row in work.rows("records", limit=limit)]


def _relays(work: Work) -> tuple[RelayStatus, ...]:
    owning = dict(work.rows("count-lanes"))
    now = work.now()
    return tuple(relay.status(now, owning.get(relay.name, 0)) for relay in relays(work))


def _selected(
    work: Work, name: str, query: Query, states: Collection[State], *, blocking: bool = False
) -> tuple[str, dict[str, object]]:
    """Return the named query with the conditions that are given, and their values.

    Without statistics SQLite would look through the whole table for a few rows of a rare state.
    """
    names, values = conditions(query, states, blocking=blocking)
    given = {
        name: json.dumps(value) if isinstance(value, list) else value
        for name, value in values.items()
    }
    index = "" if query.ids or len(states) != 1 else f"index-{next(iter(states))}"
    sql = work.sql[name].replace("{index}", work.sql.get(index, ""))
    return sql.replace("{conditions}", " and ".join(work.sql[one] for one in names)), given
