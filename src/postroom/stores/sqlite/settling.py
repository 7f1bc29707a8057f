"""Write down what became of a batch, and let held rows follow their head."""

import json
from collections.abc import Collection, Iterable, Sequence
from typing import assert_never

from postroom._clock import span_micros
from postroom.message import Entry, State
from postroom.outcome import Dead, Retry, Sent, Settled
from postroom.stores.rows import text_of
from postroom.stores.sharing import Place
from postroom.stores.sqlite.reading import fetch
from postroom.stores.sqlite.work import Work

CHUNK = 500
"""Held rows of one key that become ready together."""
_LOOK = 200
"""Ready rows looked at, to see whether the last chunk of a key is still on its way."""

Key = tuple[str, str]
"""A route and a key of it."""


def settle(
    work: Work, places: set[Place], settled: Sequence[Settled], *, keep: bool
) -> frozenset[int]:
    """Settle what is still ours; needs the write lock, and `places` looked up under it."""
    ours = still_ready(work, places, [one.entry for one in settled])
    now = work.now()
    sent: list[Entry] = []
    passed: list[Entry] = []
    for one in settled:
        entry, outcome = one.entry, one.outcome
        if entry.seq not in ours:
            continue
        match outcome:
            case Sent():
                sent.append(entry)
                passed.append(entry)
            case Retry():
                _retry(work, entry, outcome, now)
            case Dead():
                _bury(work, entry, outcome, now)
                if not outcome.blocks:
                    passed.append(entry)
            case _:
                assert_never(outcome)
    if keep:
        work.change_each("sent", [(now, entry.seq) for entry in sent])
    else:
        work.change_each("delete", [(entry.seq,) for entry in sent])
    _release_behind(work, passed)
    return frozenset(ours)


def hold(work: Work, places: set[Place], entries: Iterable[Entry]) -> int:
    """Hold those of these rows that are still ours; needs the write lock."""
    ours = still_ready(work, places, list(entries))
    return work.change_each("hold", [(seq,) for seq in sorted(ours)])


def still_ready(work: Work, places: Collection[Place], entries: Sequence[Entry]) -> set[int]:
    """Return the seqs of entries that are ready, the same message, and in these lanes."""
    ids = {entry.seq: entry.message.id for entry in entries}
    rows = fetch(work, work.sql["still-ready"], {"seqs": json.dumps(list(ids))})
    return {
        seq
        for seq, message_id, route, lane in rows
        if ids[seq] == text_of(message_id) and (route, lane) in places
    }


def release(work: Work, place: Place, one: int, *, after: int, limit: int) -> int:
    """Make the first held rows of a key ready if only such stand first; return how many.

    The key is that of row `one`, whatever it is made of; its rows stand in that place.
    Not while the last chunk is still on its way: if its head failed, all of them would have to
    be held again.
    """
    route, lane = place
    rows = work.rows("blockers", route=route, one=one, limit=limit)
    free: list[tuple[int]] = []
    for seq, state in rows:
        if state != State.HELD:
            break
        free.append((seq,))
    if not free:
        return 0
    ahead = {"after": after, "before": free[0][0], "look": _LOOK}
    if work.rows("ready-among", route=route, lane=lane, one=one, **ahead):
        return 0
    return work.change_each("ready", free)


def _release_behind(work: Work, passed: Iterable[Entry]) -> None:
    last: dict[Key, Entry] = {}
    for entry in passed:
        if entry.message.key is not None:
            last[entry.route, entry.message.key] = entry
    for route in {route for route, _ in last}:
        if not work.connection.execute(work.sql["some-blocker"], (route,)).fetchone():
            continue
        keys = json.dumps([key for one, key in last if one == route])
        for (key,) in work.rows("blocked-among", route=route, keys=keys):
            _release_after(work, (route, key), last[route, key])


def _release_after(work: Work, key: Key, passed: Entry) -> None:
    first = work.connection.execute(work.sql["first-blocker"], key).fetchone()
    if first and first[1] == State.HELD:
        place = (passed.route, passed.lane)
        release(work, place, first[0], after=passed.seq, limit=CHUNK)


def _retry(work: Work, entry: Entry, outcome: Retry, now: int) -> None:
    work.change(
        "retry",
        seq=entry.seq,
        due_at=now + span_micros(outcome.delay),
        error=outcome.error,
    )


def _bury(work: Work, entry: Entry, outcome: Dead, now: int) -> None:
    work.change(
        "dead",
        seq=entry.seq,
        blocks=int(outcome.blocks),
        attempts=int(outcome.attempted),
        error=outcome.error,
        settled_at=now,
    )
