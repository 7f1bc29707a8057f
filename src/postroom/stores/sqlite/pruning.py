"""Delete what is older than its retention, a little at a time."""

from dataclasses import dataclass
from datetime import datetime

from postroom.stores.rows import micros
from postroom.stores.selection import Plan
from postroom.stores.sqlite.desk import record
from postroom.stores.sqlite.work import Work


@dataclass(slots=True)
class Progress:
    """How far one pruning has come."""

    sent: int = 0
    inbox: int = 0
    record: int | None = None
    done: bool = False


def count(work: Work, plan: Plan) -> tuple[int, int]:
    """Return how many rows of each kind are older."""
    with work.reading():
        return (
            _count(work, "count-sent-before", plan.sent_before),
            _count(work, "count-inbox-before", plan.inbox_before),
        )


def step(work: Work, plan: Plan, progress: Progress, limit: int) -> None:
    """Delete at most `limit` rows and add them to the one audit record; needs the write lock."""
    sent = _delete(work, "prune-sent", plan.sent_before, limit)
    inbox = _delete(work, "prune-inbox", plan.inbox_before, limit - sent)
    progress.sent += sent
    progress.inbox += inbox
    progress.done = limit <= 0 or sent + inbox < limit
    if sent + inbox == 0:
        return
    if progress.record is None:
        progress.record = record(work, "prune", plan.actor, plan.detail, sent + inbox)
    else:
        work.change("record-more", number=progress.record, count=sent + inbox)


def _count(work: Work, query: str, before: datetime | None) -> int:
    return 0 if before is None else int(work.value(query, before=micros(before)))


def _delete(work: Work, query: str, before: datetime | None, limit: int) -> int:
    if before is None or limit <= 0:
        return 0
    return work.change(query, before=micros(before), limit=limit)
