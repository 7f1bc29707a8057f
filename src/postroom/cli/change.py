"""Changes: count exactly, ask, do, tell; the same way for every command that changes rows."""

from dataclasses import dataclass
from typing import Protocol

from postroom.cli.screen import confirm, document, show

ALL = 1_000_000_000
"""A limit that no database reaches."""
_CHUNK = 1000
"""Rows of one transaction: nobody has to wait long for its locks."""


class Act(Protocol):
    """Does it, or only counts what it would do."""

    async def __call__(self, *, limit: int, dry_run: bool) -> int:
        """Return how many."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One change that a person asked for, and how."""

    action: str
    """As the JSON document names it: `replay`."""
    what: tuple[str, str]
    """What it changes: one, and several."""
    question: str
    """With `{what}`: `Send {what} again?`"""
    told: str
    """What was done to it: `sent again`."""
    limit: int | None
    """None: all that match."""
    dry_run: bool
    yes: bool
    as_json: bool

    async def make(self, act: Act) -> None:
        """Show what would be changed, or ask and change it."""
        count = await act(limit=self.limit or ALL, dry_run=True)
        if count and not self.dry_run:
            confirm(self.question.format(what=self._counted(count)), yes=self.yes)
            count = await _in_chunks(act, count)
        if self.as_json:
            document({"action": self.action, "count": count, "dry_run": self.dry_run})
            return
        were = "would be" if self.dry_run else "was" if count == 1 else "were"
        show(f"{self._counted(count)} {were} {self.told}")

    def _counted(self, count: int) -> str:
        return f"{count} {self.what[count != 1]}"


async def _in_chunks(act: Act, count: int) -> int:
    """Change so many and no more: what comes back meanwhile is not changed a second time."""
    done = 0
    while done < count:
        changed = await act(limit=min(_CHUNK, count - done), dry_run=False)
        if not changed:
            break
        done += changed
    return done
