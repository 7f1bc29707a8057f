"""Changes: count exactly, ask, do, tell; the same way for every command that changes rows."""

from dataclasses import dataclass
from typing import Protocol

from postroom.cli.screen import confirm, document, show


class Act(Protocol):
    """Does it, or only counts what it would do."""

    async def __call__(self, *, dry_run: bool) -> int:
        """Return how many."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One change that a person asked for, and how."""

    action: str
    """As the JSON document names it: `replay`."""
    question: str
    """With `{count}`: `Send {count} dead messages of the outbox again?`"""
    told: str
    """With `{count}`: `{count} dead messages of the outbox will be sent again`."""
    dry_run: bool
    yes: bool
    as_json: bool

    async def make(self, act: Act) -> None:
        """Show what would be changed, or ask and change it."""
        count = await act(dry_run=True)
        if count and not self.dry_run:
            confirm(self.question.format(count=count), yes=self.yes)
            count = await act(dry_run=False)
        if self.as_json:
            document({"action": self.action, "count": count, "dry_run": self.dry_run})
        else:
            show(("dry run: " if self.dry_run else "") + self.told.format(count=count))
