"""What to do with each row of a batch that was read: a pure decision."""

from collections.abc import Container, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from postroom.lane import lane_of
from postroom.message import Entry
from postroom.outcome import Dead, Settled


@dataclass(slots=True)
class Plan:
    """The rows of one read, sorted by what happens to them."""

    send: list[Entry] = field(default_factory=list)
    """Together, in order."""
    alone: list[Entry] = field(default_factory=list)
    """Suspects, one at a time; the first of each key."""
    hold: list[Entry] = field(default_factory=list)
    """Behind an earlier message of their key."""
    give_up: list[Settled] = field(default_factory=list)
    """Expired or unreadable: the broker is not asked."""
    misplaced: list[tuple[Entry, int]] = field(default_factory=list)
    """Rows in a lane that is not their key's, and the lane that is."""


def plan(entries: Sequence[Entry], *, suspects: Container[int], now: datetime, park: bool) -> Plan:
    """Sort the rows of one read, which come in `seq` order within each lane.

    A key stops at its first row that cannot go now; whatever follows it is held, so that the
    next read finds other keys.
    """
    result = Plan()
    stopped: set[str] = set()
    for entry in entries:
        message = entry.message
        expected = lane_of(message.key, message.id)
        if expected != entry.lane:
            result.misplaced.append((entry, expected))
        if entry.behind or (message.key in stopped and entry.seq not in suspects):
            result.hold.append(entry)
        elif message.key in stopped:
            continue
        elif message.expires_at is not None and message.expires_at <= now:
            expired = Dead(error="expired before it was sent", blocks=False, attempted=False)
            result.give_up.append(Settled(entry=entry, outcome=expired))
            continue
        elif entry.unreadable is not None:
            unreadable = Dead(error=entry.unreadable, blocks=park, attempted=False)
            result.give_up.append(Settled(entry=entry, outcome=unreadable))
            if not park:
                continue
        elif entry.seq in suspects:
            result.alone.append(entry)
        else:
            result.send.append(entry)
            continue
        if message.key is not None:
            stopped.add(message.key)
    result.alone = _not_behind(result.send, result.alone)
    return result


def _not_behind(send: Sequence[Entry], alone: Sequence[Entry]) -> list[Entry]:
    """Return the suspects whose key has nothing in this round yet: that might be refused."""
    going = {entry.message.key for entry in send} - {None}
    return [entry for entry in alone if entry.message.key not in going]
