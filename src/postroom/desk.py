"""The desk: look, replay, discard, release and prune. For people, through any front end."""

from collections.abc import Iterable, Sequence
from datetime import datetime

from postroom.events import DeskActed, Observer, Observers
from postroom.message import Entry
from postroom.store import AuditRecord, Query, Stats, Store


class Desk:
    """What a person does with rows at rest.

    Every change takes a limit, has an exact preview (`dry_run=True` counts what the same call
    would change), and is written to the audit table under the name of `actor`.
    """

    def __init__(
        self, store: Store, *, actor: str = "", observers: Iterable[Observer] = ()
    ) -> None:
        """Work on that store, in that person's name."""
        self._store = store
        self._actor = actor
        self._observers = Observers(observers)

    async def stats(self) -> Stats:
        """Return counts and ages; needs no relay."""
        return await self._store.stats()

    async def find(self, query: Query, *, limit: int = 100) -> Sequence[Entry]:
        """Return matching rows in the order of their seq."""
        return await self._store.find(query, limit=limit)

    async def replay(self, query: Query, *, limit: int = 1000, dry_run: bool = False) -> int:
        """Send matching dead rows again (sent ones if the query names that state)."""
        count = await self._store.replay(query, limit=limit, actor=self._actor, dry_run=dry_run)
        return self._done("replay", count, dry_run=dry_run)

    async def discard(self, query: Query, *, limit: int = 1000, dry_run: bool = False) -> int:
        """Delete matching rows that are dead, waiting, held or scheduled."""
        count = await self._store.discard(query, limit=limit, actor=self._actor, dry_run=dry_run)
        return self._done("discard", count, dry_run=dry_run)

    async def release(self, query: Query, *, limit: int = 1000, dry_run: bool = False) -> int:
        """Let keys go on past their dead heads; the heads stay dead. Returns how many heads."""
        count = await self._store.release(query, limit=limit, actor=self._actor, dry_run=dry_run)
        return self._done("release", count, dry_run=dry_run)

    async def prune(
        self,
        *,
        sent_before: datetime | None = None,
        inbox_before: datetime | None = None,
        limit: int = 1000,
        dry_run: bool = False,
    ) -> tuple[int, int]:
        """Delete what was sent, and inbox rows, before these moments; return how many of each.

        An inbox row is the memory that a copy was handled: `inbox_before` must lie further back
        than the longest time after which a copy can still come. `limit` bounds one transaction,
        not the whole.
        """
        sent, inbox = await self._store.prune(
            sent_before=sent_before,
            inbox_before=inbox_before,
            limit=limit,
            actor=self._actor,
            dry_run=dry_run,
        )
        self._done("prune", sent + inbox, dry_run=dry_run)
        return sent, inbox

    async def audit(self, *, limit: int = 100) -> Sequence[AuditRecord]:
        """Return what people changed, the newest first."""
        return await self._store.audit(limit=limit)

    def _done(self, action: str, count: int, *, dry_run: bool) -> int:
        if count and not dry_run:
            self._observers.emit(DeskActed(action=action, count=count))
        return count
