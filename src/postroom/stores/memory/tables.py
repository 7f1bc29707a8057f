"""The tables of the memory store, and the rule of order: which row blocks which."""

import json
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import islice

from postroom._clock import from_micros, to_micros
from postroom.lane import Lane, lane_of
from postroom.message import Entry, Message, State
from postroom.statement import Row
from postroom.store import Addressed, AuditRecord, Query
from postroom.stores.liveness import Sighting
from postroom.stores.sharing import Place

Key = tuple[str, str]
"""Route and ordering key."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LaneRow:
    """Who owns a lane; `epoch` has counted every take and every give."""

    owner: str | None = None
    epoch: int = 0


class Tables:
    """All rows. `outbox` is in the order of `seq`, since only rows at its end get new numbers."""

    def __init__(self) -> None:
        self.outbox: dict[int, Entry] = {}
        self.inbox: dict[tuple[str, str], datetime] = {}
        self.lanes: dict[Place, LaneRow] = {}
        self.relays: dict[str, Sighting] = {}
        self.audit: list[AuditRecord] = []
        self.ids: set[str] = set()
        self._last_seq = 0

    def append(self, entry: Entry) -> None:
        """Put an entry at the end of the order, under a number that was never used."""
        self._last_seq += 1
        self.outbox[self._last_seq] = replace(entry, seq=self._last_seq)
        self.ids.add(entry.message.id)

    def remove(self, entry: Entry) -> None:
        """Delete a row."""
        del self.outbox[entry.seq]
        self.ids.discard(entry.message.id)

    def move_to_end(self, entry: Entry) -> None:
        """Give a row a new place, after all others."""
        self.remove(entry)
        self.append(entry)

    def change(self, entry: Entry) -> None:
        """Replace the row with the seq of this entry."""
        self.outbox[entry.seq] = entry

    def owned(self, lanes: Collection[Lane]) -> frozenset[Place]:
        """Return those lanes whose epoch is still the one that the caller knows: the fence."""
        rows = ((lane, self.lanes.get((lane.route, lane.number))) for lane in lanes)
        return frozenset(
            (lane.route, lane.number)
            for lane, row in rows
            if row is not None and row.owner is not None and row.epoch == lane.epoch
        )

    def ours(self, entry: Entry, places: Collection[Place]) -> Entry | None:
        """Return the row of this entry as it is now, if it is ready and in one of the lanes."""
        row = self.outbox.get(entry.seq)
        if row is None or row.message.id != entry.message.id or row.state is not State.READY:
            return None
        return row if place_of(row) in places else None

    def blocking(self) -> dict[Key, list[Entry]]:
        """Return, by key, the rows that keep later ones back, in order."""
        return self._by_key(lambda entry: entry.blocks)

    def free_held(self, keys: Collection[Key], places: Collection[Place], chunk: int) -> int:
        """Make ready the held rows of these keys that nothing unsent precedes any more.

        At most `chunk` of each key: the first ones, so that order is kept. A ready row before
        them is the end of the last chunk; should it fail, the next one would only be held again.
        Returns how many.
        """
        unsent = self._by_key(lambda entry: entry.blocks or entry.state is State.READY)
        freed = 0
        for key in set(keys):
            for entry in unsent.get(key, ())[:chunk]:
                if entry.state is not State.HELD or place_of(entry) not in places:
                    break
                self.change(replace(entry, state=State.READY, blocks=False))
                freed += 1
        return freed

    def matching(self, query: Query, states: Collection[State], limit: int) -> list[Entry]:
        """Return the first rows that a query means, among those in these states."""
        wanted = set(states) & set(query.states or states)
        rows = (e for e in self.outbox.values() if e.state in wanted and matches(e, query))
        return list(islice(rows, limit))

    def _by_key(self, wanted: Callable[[Entry], bool]) -> dict[Key, list[Entry]]:
        rows: dict[Key, list[Entry]] = {}
        for entry in self.outbox.values():
            key = key_of(entry)
            if key is not None and wanted(entry):
                rows.setdefault(key, []).append(entry)
        return rows


def place_of(entry: Entry) -> Place:
    """Return the lane of a row."""
    return entry.route, entry.lane


def key_of(entry: Entry) -> Key | None:
    """Return what the row has in common with those whose order it shares."""
    return None if entry.message.key is None else (entry.route, entry.message.key)


def matches(entry: Entry, query: Query) -> bool:
    """Tell whether all given fields but the states match."""
    message, created = entry.message, entry.created_at
    return (
        entry.seq > query.after_seq
        and (not query.ids or message.id in query.ids)
        and query.route in {None, entry.route}
        and query.key in {None, message.key}
        and query.type in {None, message.type}
        and query.topic in {None, message.topic}
        and (query.created_from is None or (created is not None and created >= query.created_from))
        and (
            query.created_before is None or (created is not None and created < query.created_before)
        )
    )


def rows_of(messages: Sequence[Addressed]) -> list[Row]:
    """Return what travels in a statement: texts, whole numbers and bytes, as for any database."""
    return [
        {
            "route": addressed.route,
            "lane": lane_of(addressed.message.key, addressed.message.id),
            "id": addressed.message.id,
            "type": addressed.message.type,
            "key": addressed.message.key,
            "version": addressed.message.version,
            "payload": addressed.message.payload,
            "content_type": addressed.message.content_type,
            "headers": json.dumps(dict(addressed.message.headers)),
            "topic": addressed.message.topic,
            "deliver_at": _micros(addressed.message.deliver_at),
            "expires_at": _micros(addressed.message.expires_at),
        }
        for addressed in messages
    ]


def entry_of(row: Row, now: datetime) -> Entry:
    """Return the entry that a row of `rows_of` stands for; it gets its seq at the commit."""
    match row:
        case {
            "route": str(route),
            "lane": int(lane),
            "id": str(id_),
            "type": str(type_),
            "key": (str() | None) as key,
            "version": (int() | None) as version,
            "payload": bytes(payload),
            "content_type": str(content_type),
            "headers": str(headers),
            "topic": str(topic),
            "deliver_at": (int() | None) as deliver_at,
            "expires_at": (int() | None) as expires_at,
        }:
            message = Message(
                id=id_,
                type=type_,
                key=key,
                version=version,
                payload=payload,
                content_type=content_type,
                headers=json.loads(headers),
                topic=topic,
                deliver_at=None if deliver_at is None else from_micros(deliver_at),
                expires_at=None if expires_at is None else from_micros(expires_at),
            )
        case _:
            raise ValueError("this row was not made by MemoryStore.insert")
    due_at = message.deliver_at
    later = due_at is not None and due_at > now
    return Entry(
        seq=0,
        route=route,
        lane=lane,
        state=State.SCHEDULED if later else State.READY,
        message=message,
        created_at=now,
        due_at=due_at if later else None,
    )


def _micros(moment: datetime | None) -> int | None:
    return None if moment is None else to_micros(moment)
