"""What people see of the queues, and what they do with dead letters."""

from collections import defaultdict
from collections.abc import Sequence
from datetime import datetime
from sqlite3 import Connection

from postroom._clock import from_micros
from postroom.broker import DeadLetter, QueueStatus
from postroom.brokers.sqlite.delivering import free_keys
from postroom.brokers.sqlite.publishing import next_position
from postroom.brokers.sqlite.rows import COLUMNS, Row, from_row

_COUNTS = """
SELECT grp, topic, state, count(*), min(position) FROM delivery GROUP BY grp, topic, state
"""

_REPLAY_MESSAGE = f"""
INSERT INTO message (position, sent_at, only_grp, {COLUMNS})
SELECT :new, :now, grp, {COLUMNS} FROM dead_letter WHERE grp = :grp AND position = :position
"""

_REPLAY_DELIVERY = """
INSERT INTO delivery (grp, position, topic, key, state)
SELECT l.grp, :new, l.topic, l.key,
       CASE WHEN EXISTS (SELECT 1 FROM delivery d WHERE d.grp = l.grp AND d.key = l.key)
            THEN 'behind' ELSE 'ready' END
  FROM dead_letter l WHERE l.grp = :grp AND l.position = :position
"""


_UNCLAIMED = """
SELECT topic, count(*), min(position) FROM message
 WHERE topic NOT IN (SELECT topic FROM group_topic) AND only_grp IS NULL
 GROUP BY topic
"""


def queues(connection: Connection, now: int) -> Sequence[QueueStatus]:
    """Count what every group has of every topic, and what no group has."""
    counts: dict[tuple[str, str], dict[str, int]] = defaultdict(dict)
    oldest: dict[tuple[str, str], int] = {}
    for group, topic in connection.execute("SELECT grp, topic FROM group_topic"):
        counts[group, topic] = {}
    for group, topic, state, number, position in connection.execute(_COUNTS):
        counts[group, topic][state] = number
        oldest[group, topic] = min(position, oldest.get((group, topic), position))
    dead = "SELECT grp, topic, count(*) FROM dead_letter GROUP BY grp, topic"
    for group, topic, number in connection.execute(dead):
        counts[group, topic]["dead"] = number
    for topic, number, position in connection.execute(_UNCLAIMED):
        counts["", topic]["ready"] = number
        oldest["", topic] = position
    alive = "SELECT grp, count(*) FROM consumer WHERE seen_at + lease >= ? GROUP BY grp"
    consumers = dict(connection.execute(alive, (now,)))
    return [
        QueueStatus(
            group=group,
            topic=topic,
            ready=of.get("ready", 0) + of.get("behind", 0),
            out=of.get("out", 0),
            delayed=of.get("delayed", 0),
            dead=of.get("dead", 0),
            oldest_at=_published_at(connection, oldest.get((group, topic))),
            consumers=consumers.get(group, 0),
        )
        for (group, topic), of in sorted(counts.items())
    ]


def dead_letters(connection: Connection, group: str | None, limit: int) -> Sequence[DeadLetter]:
    """Return dead letters, the oldest first."""
    rows = connection.execute(
        f"SELECT grp, position, reason, attempts, died_at, {COLUMNS} FROM dead_letter"
        " WHERE ?1 IS NULL OR grp = ?1 ORDER BY died_at, position LIMIT ?2",
        (group, limit),
    )
    return [_letter(row) for row in rows]


def replay_dead(
    connection: Connection, group: str, positions: Sequence[int] | None, limit: int, now: int
) -> int:
    """Put dead letters at the end of their group's queue."""
    chosen = _chosen(connection, group, positions, limit)
    for new, position in enumerate(chosen, next_position(connection)):
        names = {"new": new, "now": now, "grp": group, "position": position}
        connection.execute(_REPLAY_MESSAGE, names)
        connection.execute(_REPLAY_DELIVERY, names)
    _delete(connection, group, chosen)
    return len(chosen)


def discard_dead(
    connection: Connection, group: str, positions: Sequence[int] | None, limit: int
) -> int:
    """Delete dead letters."""
    chosen = _chosen(connection, group, positions, limit)
    _delete(connection, group, chosen)
    return len(chosen)


def drop_group(connection: Connection, group: str, topics: Sequence[str] | None) -> int:
    """Delete the group's subscriptions, deliveries and dead letters of these topics."""
    rows = connection.execute("SELECT topic FROM group_topic WHERE grp = ?", (group,)).fetchall()
    dropped = 0
    for (topic,) in rows:
        if topics is not None and topic not in topics:
            continue
        names = (group, topic)
        connection.execute("DELETE FROM group_topic WHERE grp = ? AND topic = ?", names)
        for table in ("delivery", "dead_letter"):
            dropped += connection.execute(
                f"DELETE FROM {table} WHERE grp = ? AND topic = ?", names
            ).rowcount
    free_keys(connection, group)
    return dropped


def _published_at(connection: Connection, position: int | None) -> datetime | None:
    if position is None:
        return None
    row = connection.execute("SELECT sent_at FROM message WHERE position = ?", (position,))
    found = row.fetchone()
    return None if found is None else from_micros(found[0])


def _chosen(
    connection: Connection, group: str, positions: Sequence[int] | None, limit: int
) -> list[int]:
    rows = connection.execute(
        "SELECT position FROM dead_letter WHERE grp = ? ORDER BY died_at, position", (group,)
    )
    wanted = None if positions is None else frozenset(positions)
    return [row[0] for row in rows if wanted is None or row[0] in wanted][:limit]


def _delete(connection: Connection, group: str, positions: Sequence[int]) -> None:
    connection.executemany(
        "DELETE FROM dead_letter WHERE grp = ? AND position = ?",
        ((group, position) for position in positions),
    )


def _letter(row: Row) -> DeadLetter:
    group, position, reason, attempts, died_at, *columns = row
    return DeadLetter(
        group=group,
        position=position,
        message=from_row(tuple(columns)),
        reason=reason,
        attempts=attempts,
        died_at=from_micros(died_at),
    )
