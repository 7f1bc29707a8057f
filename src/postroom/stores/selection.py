"""Which rows a person means, and how the audit tells it; the same for every store."""

import json
from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime

from postroom.message import State
from postroom.store import Query
from postroom.stores.rows import micros


@dataclass(frozen=True, slots=True, kw_only=True)
class Action:
    """One kind of change that a person makes, and which rows it may touch."""

    name: str
    states: tuple[State, ...]
    blocking: bool = False
    """Only rows that block their key."""


DISCARD = Action(name="discard", states=(State.DEAD, State.WAITING, State.HELD, State.SCHEDULED))
RELEASE = Action(name="release", states=(State.DEAD,), blocking=True)


def replay_of(query: Query) -> Action:
    """Return the action that replays: sent rows only where the query names them."""
    states = (State.DEAD, State.SENT) if State.SENT in query.states else (State.DEAD,)
    return Action(name="replay", states=states)


def narrowed(query: Query, states: Collection[State]) -> tuple[State, ...]:
    """Return those of the states that the query means."""
    return tuple(state for state in states if not query.states or state in query.states)


def conditions(
    query: Query, states: Collection[State], *, blocking: bool = False
) -> tuple[list[str], dict[str, object]]:
    """Return the names of the conditions (`where-…`) that are given, and their values."""
    names = ["where-seq"]
    values: dict[str, object] = {"after_seq": query.after_seq}
    if len(states) == 1:
        names.append(f"where-{next(iter(states))}")
    elif states:
        names.append("where-states")
        values["states"] = [str(state) for state in states]
    if query.ids:
        names.append("where-ids")
        values["ids"] = list(query.ids)
    given: tuple[tuple[str, str, object], ...] = (
        ("where-route", "route", query.route),
        ("where-key", "key", query.key),
        ("where-type", "type", query.type),
        ("where-topic", "topic", query.topic),
        ("where-from", "created_from", micros(query.created_from)),
        ("where-before", "created_before", micros(query.created_before)),
    )
    for name, field, value in given:
        if value is not None:
            names.append(name)
            values[field] = value
    if blocking:
        names.append("where-blocking")
    return names, values


def described(query: Query) -> str:
    """Return the query as the audit shows it: the given fields as JSON."""
    fields: dict[str, object] = {
        "states": [str(state) for state in query.states],
        "ids": list(query.ids),
        "route": query.route,
        "key": query.key,
        "type": query.type,
        "topic": query.topic,
        "created_from": _text(query.created_from),
        "created_before": _text(query.created_before),
        "after_seq": query.after_seq or None,
    }
    given = {name: value for name, value in fields.items() if value not in (None, [])}
    return json.dumps(given, ensure_ascii=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What a pruning is to delete, and for whom."""

    sent_before: datetime | None
    inbox_before: datetime | None
    actor: str

    @property
    def detail(self) -> str:
        """The plan as the audit shows it."""
        parts = (("sent", self.sent_before), ("inbox", self.inbox_before))
        return ", ".join(f"{name} before {at.isoformat()}" for name, at in parts if at is not None)


def _text(moment: datetime | None) -> str | None:
    return None if moment is None else moment.isoformat()
