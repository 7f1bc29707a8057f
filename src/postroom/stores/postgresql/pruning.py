"""Delete what is older than its retention, a little at a time."""

from dataclasses import dataclass
from datetime import datetime

from postroom.stores.postgresql.desk import record
from postroom.stores.postgresql.work import Work
from postroom.stores.rows import micros
from postroom.stores.selection import Plan

_START = -(2**63)


@dataclass(slots=True)
class Progress:
    """How far one pruning has come.

    Each step begins where the last one ended: the rows deleted before are still in the index,
    and while another transaction holds vacuum back they would be looked at again and again.
    """

    sent: int = 0
    inbox: int = 0
    sent_from: int = _START
    inbox_from: int = _START
    record: int | None = None
    done: bool = False


async def count(work: Work, plan: Plan) -> tuple[int, int]:
    """Return how many rows of each kind are older."""
    return (
        await _count(work, "count-sent-before", plan.sent_before),
        await _count(work, "count-inbox-before", plan.inbox_before),
    )


async def step(work: Work, plan: Plan, progress: Progress, limit: int) -> Progress:
    """Delete at most `limit` rows, add them to the one audit record, and return how far it is."""
    sent, sent_from = await _delete(work, "prune-sent", plan.sent_before, progress.sent_from, limit)
    inbox, inbox_from = await _delete(
        work, "prune-inbox", plan.inbox_before, progress.inbox_from, limit - sent
    )
    number = progress.record
    if sent + inbox and number is None:
        number = await record(work, "prune", plan.actor, plan.detail, sent + inbox)
    elif sent + inbox:
        await work.change("record-more", number=number, count=sent + inbox)
    return Progress(
        sent=progress.sent + sent,
        inbox=progress.inbox + inbox,
        sent_from=sent_from,
        inbox_from=inbox_from,
        record=number,
        done=limit <= 0 or sent + inbox < limit,
    )


async def _count(work: Work, query: str, before: datetime | None) -> int:
    return 0 if before is None else int(await work.value(query, before=micros(before)))


async def _delete(
    work: Work, query: str, before: datetime | None, after: int, limit: int
) -> tuple[int, int]:
    """Return how many were deleted, and where to go on."""
    if before is None or limit <= 0:
        return 0, after
    ((gone, last),) = await work.rows(query, after=after, before=micros(before), limit=limit)
    return gone, after if last is None else last
