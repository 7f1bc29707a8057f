"""Writing messages into the file, one delivery for each group, and pruning what is done."""

from collections.abc import Sequence
from dataclasses import dataclass
from sqlite3 import Connection

from postroom.brokers.sqlite.rows import COLUMNS, PLACES, to_row
from postroom.message import Message

_CHUNK = 500

_INSERT = f"INSERT INTO message (position, sent_at, {COLUMNS}) VALUES (?, ?, {PLACES})"

_FAN_OUT = """
INSERT INTO delivery (grp, position, topic, key, state)
SELECT g.grp, :position, :topic, :key,
       CASE WHEN EXISTS (SELECT 1 FROM delivery d WHERE d.grp = g.grp AND d.key = :key)
            THEN 'behind' ELSE 'ready' END
  FROM group_topic g
 WHERE g.topic = :topic
"""

_PRUNE = """
DELETE FROM message
 WHERE position > :low AND position <= :high AND sent_at < :claimed_before
   AND NOT EXISTS (SELECT 1 FROM group_topic g
                     JOIN delivery d ON d.grp = g.grp AND d.position = message.position
                    WHERE g.topic = message.topic)
   AND (sent_at < :unclaimed_before
        OR EXISTS (SELECT 1 FROM group_topic g WHERE g.topic = message.topic))
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Horizon:
    """What is old enough to be deleted, in microseconds since 1970."""

    claimed_before: int
    unclaimed_before: int


def publish(connection: Connection, messages: Sequence[Message], now: int) -> None:
    """Add the messages in order, and one delivery for every group that receives their topic."""
    first = next_position(connection)
    numbered = list(enumerate(messages, first))
    connection.executemany(_INSERT, ((place, now, *to_row(one)) for place, one in numbered))
    connection.executemany(
        _FAN_OUT,
        ({"position": place, "topic": one.topic, "key": one.key} for place, one in numbered),
    )


def next_position(connection: Connection) -> int:
    """Return the position after the highest that was ever given."""
    row = connection.execute("SELECT seq FROM sqlite_sequence WHERE name = 'message'").fetchone()
    return 1 if row is None else int(row[0]) + 1


def prune(connection: Connection, low: int, horizon: Horizon) -> int | None:
    """Delete a chunk of what every group is done with; return where to go on, None at the end."""
    row = connection.execute(
        "SELECT position, sent_at FROM message WHERE position > ?"
        " ORDER BY position LIMIT 1 OFFSET ?",
        (low, _CHUNK - 1),
    ).fetchone()
    high = next_position(connection) if row is None else row[0]
    connection.execute(
        _PRUNE,
        {
            "low": low,
            "high": high,
            "claimed_before": horizon.claimed_before,
            "unclaimed_before": horizon.unclaimed_before,
        },
    )
    finished = row is None or row[1] >= horizon.claimed_before
    return None if finished else int(high)
