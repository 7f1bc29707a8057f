"""Handing messages to consumers, and what consumers answer. Each function runs in a transaction.

Of each key of a group only the first pending message is anywhere but `behind`; whatever removes
it makes the next one ready. So a key is with one consumer at a time, and taking never searches.
"""

import json
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from heapq import merge
from itertools import islice
from sqlite3 import Connection

from postroom.brokers.sqlite.rows import COLUMNS, PLACES, Row, from_row
from postroom.errors import DeliveryLost
from postroom.message import Message

_EXPIRED_AT_ONCE = 200
"""How many expired messages one call buries at most, so that its transaction stays short."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Consumer:
    """One subscription, as the file knows it."""

    name: str
    group: str
    topics: tuple[str, ...]
    lease: int
    """Microseconds without a sign of life after which its deliveries go to others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Handed:
    """One message that was handed out. `number` tells it from another time it was."""

    position: int
    number: int
    message: Message
    attempts: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Taken:
    """What a look into the queue found."""

    handed: Sequence[Handed] = ()
    more: bool = False
    """Whether another look may find more at once."""
    next_at: int | None = None
    """When the next delay ends."""
    gone: bool = False
    """Whether the file knows nothing of this subscription: another file, or a dropped group."""


_BELONGS = """
SELECT EXISTS (SELECT 1 FROM consumer WHERE name = ?)
   AND ? = (SELECT count(*) FROM group_topic
             WHERE grp = ? AND topic IN (SELECT value FROM json_each(?)))
"""

_HAS_WORK = """
SELECT EXISTS (SELECT 1 FROM delivery INDEXED BY delivery_ready
                WHERE grp = ? AND topic = ? AND state = 'ready')
"""

_NEXT_DELAY = """
SELECT min(free_at) FROM delivery INDEXED BY delivery_delayed WHERE grp = ? AND state = 'delayed'
"""

_END_DELAYS = """
UPDATE delivery SET state = 'ready', free_at = 0
 WHERE grp = :grp
   AND position IN (SELECT position FROM delivery INDEXED BY delivery_delayed
                     WHERE grp = :grp AND state = 'delayed' AND free_at <= :now
                     ORDER BY free_at LIMIT 500)
"""

_READY = """
SELECT position FROM delivery INDEXED BY delivery_ready
 WHERE grp = ? AND topic = ? AND state = 'ready' ORDER BY position LIMIT ?
"""

_LOAD = f"""
SELECT d.attempts, d.handed_out, {", ".join(f"m.{column}" for column in COLUMNS.split(", "))}
  FROM delivery d JOIN message m ON m.position = d.position WHERE d.grp = ? AND d.position = ?
"""

_HAND_OUT = """
UPDATE delivery SET state = 'out', owner = ?, handed_out = handed_out + 1
 WHERE grp = ? AND position = ?
"""

_PROMOTE = """
UPDATE delivery SET state = 'ready'
 WHERE grp = :grp AND state = 'behind'
   AND position = (SELECT min(position) FROM delivery WHERE grp = :grp AND key = :key)
"""

_FIRSTS_OF_KEYS = """
UPDATE delivery SET state = 'ready'
 WHERE grp = :grp
   AND position IN (SELECT min(position) FROM delivery
                     WHERE grp = :grp AND key IS NOT NULL
                     GROUP BY key HAVING sum(state <> 'behind') = 0)
"""

_BACKFILL = """
INSERT INTO delivery (grp, position, topic, key, state)
SELECT :grp, position, topic, key, CASE WHEN key IS NULL THEN 'ready' ELSE 'behind' END
  FROM message WHERE topic = :topic AND only_grp IS NULL
"""

_BURY = f"""
INSERT INTO dead_letter (grp, position, reason, attempts, died_at, {COLUMNS})
VALUES (?, ?, ?, ?, ?, {PLACES})
"""

_MINE = "grp = ? AND position = ? AND state = 'out' AND owner = ? AND handed_out = ?"


def join(connection: Connection, consumer: Consumer, now: int) -> None:
    """Add the consumer, and its group to its topics; new ones bring all that is still kept."""
    connection.execute(
        "INSERT INTO consumer (name, grp, seen_at, lease) VALUES (?, ?, ?, ?)",
        (consumer.name, consumer.group, now, consumer.lease),
    )
    joined = 0
    for topic in consumer.topics:
        added = connection.execute(
            "INSERT OR IGNORE INTO group_topic (grp, topic, created_at) VALUES (?, ?, ?)",
            (consumer.group, topic, now),
        ).rowcount
        if added == 1:
            connection.execute(_BACKFILL, {"grp": consumer.group, "topic": topic})
            joined += 1
    if joined:
        free_keys(connection, consumer.group)


def free_keys(connection: Connection, group: str) -> None:
    """Make the first message of each key ready where the key has nothing ready, out or delayed."""
    connection.execute(_FIRSTS_OF_KEYS, {"grp": group})


def show_life(connection: Connection, consumer: Consumer, now: int) -> None:
    """Write down that the consumer lives; one that the file does not know stays unknown."""
    connection.execute("UPDATE consumer SET seen_at = ? WHERE name = ?", (now, consumer.name))


def look(connection: Connection, consumer: Consumer, now: int) -> Taken:
    """Say whether there is anything to take, without writing."""
    if not _belongs(connection, consumer):
        return Taken(gone=True)
    next_at: int | None = connection.execute(_NEXT_DELAY, (consumer.group,)).fetchone()[0]
    if next_at is not None and next_at <= now:
        return Taken(more=True)
    for topic in consumer.topics:
        if connection.execute(_HAS_WORK, (consumer.group, topic)).fetchone()[0]:
            return Taken(more=True)
    return Taken(next_at=next_at)


def take(connection: Connection, consumer: Consumer, room: int, now: int) -> Taken:
    """Hand out at most `room` messages, in order; what has expired becomes a dead letter.

    Nothing to a consumer that the file does not know: what it has in its hands may be of another
    file, and an answer to that must not be taken for one to a message of this.
    """
    if not _belongs(connection, consumer):
        return Taken(gone=True)
    show_life(connection, consumer, now)
    connection.execute(_END_DELAYS, {"grp": consumer.group, "now": now})
    handed: list[Handed] = []
    buried = 0
    while len(handed) < room and buried < _EXPIRED_AT_ONCE:
        positions = _ready(connection, consumer, room - len(handed))
        for position in positions:
            row = connection.execute(_LOAD, (consumer.group, position)).fetchone()
            one = _handed(position, row)
            if (expires_at := row[-1]) is not None and expires_at <= now:
                _bury(connection, consumer.group, position, row, reason="expired", now=now)
                buried += 1
            else:
                connection.execute(_HAND_OUT, (consumer.name, consumer.group, position))
                handed.append(one)
        if not positions:
            break
    next_at = connection.execute(_NEXT_DELAY, (consumer.group,)).fetchone()[0]
    full = len(handed) == room or buried >= _EXPIRED_AT_ONCE
    return Taken(handed=handed, more=full, next_at=next_at)


def ack(connection: Connection, consumer: Consumer, handed: Handed) -> None:
    """Forget the delivery."""
    _own(
        connection.execute(f"DELETE FROM delivery WHERE {_MINE}", _mine(consumer, handed)).rowcount
    )
    _promote(connection, consumer.group, handed.message.key)


def retry(
    connection: Connection, consumer: Consumer, handed: Handed, *, free_at: int, reason: str
) -> None:
    """Keep the delivery, and its key, until `free_at`."""
    _own(
        connection.execute(
            "UPDATE delivery SET state = 'delayed', owner = NULL, free_at = ?,"
            f" attempts = attempts + 1, last_error = ? WHERE {_MINE}",
            (free_at, reason, *_mine(consumer, handed)),
        ).rowcount
    )


def release(connection: Connection, consumer: Consumer, handed: Handed) -> None:
    """Make the delivery ready again, at its old place."""
    _own(
        connection.execute(
            f"UPDATE delivery SET state = 'ready', owner = NULL WHERE {_MINE}",
            _mine(consumer, handed),
        ).rowcount
    )


def reject(
    connection: Connection, consumer: Consumer, handed: Handed, *, reason: str, now: int
) -> None:
    """Make the message a dead letter of the group."""
    mine = _mine(consumer, handed)
    _own(
        connection.execute(
            f"UPDATE delivery SET attempts = attempts + 1 WHERE {_MINE}", mine
        ).rowcount
    )
    row = connection.execute(_LOAD, (consumer.group, handed.position)).fetchone()
    _bury(connection, consumer.group, handed.position, row, reason=reason, now=now)


def leave(connection: Connection, consumer: Consumer, unseen: Sequence[Handed]) -> None:
    """Give back all that is out, and remove the consumer; `unseen` were never really handed out."""
    connection.executemany(
        f"UPDATE delivery SET handed_out = handed_out - 1 WHERE {_MINE}",
        (_mine(consumer, handed) for handed in unseen),
    )
    remove(connection, [consumer.name])


def remove(connection: Connection, names: Collection[str]) -> None:
    """Remove consumers; what they have out becomes ready, at its old place."""
    rows = [(name,) for name in names]
    connection.executemany(
        "UPDATE delivery INDEXED BY delivery_out SET state = 'ready', owner = NULL"
        " WHERE state = 'out' AND owner = ?",
        rows,
    )
    connection.executemany("DELETE FROM consumer WHERE name = ?", rows)


def _belongs(connection: Connection, consumer: Consumer) -> bool:
    topics = consumer.topics
    values = (consumer.name, len(topics), consumer.group, json.dumps(topics))
    return bool(connection.execute(_BELONGS, values).fetchone()[0])


def _ready(connection: Connection, consumer: Consumer, room: int) -> list[int]:
    found = [
        [row[0] for row in connection.execute(_READY, (consumer.group, topic, room))]
        for topic in consumer.topics
    ]
    return list(islice(merge(*found), room))


def _handed(position: int, row: Row) -> Handed:
    attempts, handed_out, *columns = row
    return Handed(
        position=position,
        number=handed_out + 1,
        message=from_row(tuple(columns)),
        attempts=attempts,
    )


def _bury(
    connection: Connection, group: str, position: int, row: Row, *, reason: str, now: int
) -> None:
    attempts, _, *columns = row
    connection.execute(_BURY, (group, position, reason, attempts, now, *columns))
    connection.execute("DELETE FROM delivery WHERE grp = ? AND position = ?", (group, position))
    _promote(connection, group, columns[1])


def _promote(connection: Connection, group: str, key: str | None) -> None:
    if key is not None:
        connection.execute(_PROMOTE, {"grp": group, "key": key})


def _mine(consumer: Consumer, handed: Handed) -> Row:
    return (consumer.group, handed.position, consumer.name, handed.number)


def _own(changed: int) -> None:
    if changed != 1:
        raise DeliveryLost("the broker has given this delivery to another consumer")
