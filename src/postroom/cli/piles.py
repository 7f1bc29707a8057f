"""Dead messages, wherever they are: rows of the outbox, or a consumer group's dead letters."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from postroom.app import Postroom
from postroom.broker import DeadLetter, Keeper
from postroom.cli.change import ALL
from postroom.cli.exits import CommandFailed, Exit
from postroom.cli.screen import entry_document, message_document
from postroom.cli.selection import Selection
from postroom.message import State
from postroom.settings import suggestion


class Pile(Protocol):
    """What the `dead` commands do, for one place."""

    @property
    def place(self) -> str:
        """How people call it."""
        ...

    async def find(self, selection: Selection, *, limit: int) -> Sequence[dict[str, Any]]:
        """Return what matches, the oldest first, as JSON holds it."""
        ...

    async def count(self, selection: Selection) -> int:
        """Return how many match."""
        ...

    async def replay(self, selection: Selection, *, limit: int, dry_run: bool) -> int:
        """Send what matches again; return how many."""
        ...

    async def discard(self, selection: Selection, *, limit: int, dry_run: bool) -> int:
        """Delete what matches; return how many."""
        ...


@dataclass(frozen=True, slots=True)
class OutboxDead:
    """Rows that the relay gave up."""

    postroom: Postroom
    place: str = "outbox"

    async def find(self, selection: Selection, *, limit: int) -> Sequence[dict[str, Any]]:
        """Return the rows."""
        found = await self.postroom.desk.find(selection.query(State.DEAD), limit=limit)
        return [entry_document(entry) for entry in found]

    async def count(self, selection: Selection) -> int:
        """Count the rows, without reading payloads: as many as a discard would delete."""
        return await self.discard(selection, limit=ALL, dry_run=True)

    async def replay(self, selection: Selection, *, limit: int, dry_run: bool) -> int:
        """Make the rows ready again."""
        query = selection.query(State.DEAD)
        return await self.postroom.desk.replay(query, limit=limit, dry_run=dry_run)

    async def discard(self, selection: Selection, *, limit: int, dry_run: bool) -> int:
        """Delete the rows."""
        query = selection.query(State.DEAD)
        return await self.postroom.desk.discard(query, limit=limit, dry_run=dry_run)


@dataclass(frozen=True, slots=True)
class GroupDead:
    """Messages that one consumer group gave up."""

    broker: Keeper
    group: str

    @property
    def place(self) -> str:
        """The group's name."""
        return f"group {self.group}"

    async def find(self, selection: Selection, *, limit: int) -> Sequence[dict[str, Any]]:
        """Return the dead letters."""
        return [_document(letter) for letter in await self._matching(selection, limit)]

    async def count(self, selection: Selection) -> int:
        """Count the dead letters."""
        return len(await self._matching(selection, ALL))

    async def replay(self, selection: Selection, *, limit: int, dry_run: bool) -> int:
        """Put the dead letters at the end of the group's queue."""
        positions = [letter.position for letter in await self._matching(selection, limit)]
        if dry_run or not positions:
            return len(positions)
        return await self.broker.replay_dead(self.group, positions, limit=limit)

    async def discard(self, selection: Selection, *, limit: int, dry_run: bool) -> int:
        """Delete the dead letters."""
        positions = [letter.position for letter in await self._matching(selection, limit)]
        if dry_run or not positions:
            return len(positions)
        return await self.broker.discard_dead(self.group, positions, limit=limit)

    async def _matching(self, selection: Selection, limit: int) -> list[DeadLetter]:
        letters = await self.broker.dead_letters(self.group, limit=ALL)
        return [letter for letter in letters if _matches(letter, selection)][:limit]


async def pile_of(postroom: Postroom, group: str | None, selection: Selection) -> Pile:
    """Return the outbox, or the dead letters of that group; refuse a group nobody knows."""
    if group is None:
        return OutboxDead(postroom)
    if selection.route is not None:
        raise CommandFailed(Exit.USAGE, "--route is about the outbox and does not go with --from")
    broker = postroom.broker
    if not isinstance(broker, Keeper):
        raise CommandFailed(
            Exit.USAGE,
            f"{broker.name} keeps dead letters itself",
            cure="use the broker's own tools",
        )
    groups = sorted({queue.group for queue in await broker.queues() if queue.group})
    if group not in groups:
        raise CommandFailed(
            Exit.NOT_FOUND,
            f"the broker knows no group {group!r}",
            cure=suggestion(group, groups) if groups else "no consumer has subscribed yet",
        )
    return GroupDead(broker, group)


def _matches(letter: DeadLetter, selection: Selection) -> bool:
    message = letter.message
    return (
        (not selection.ids or not {message.id, str(letter.position)}.isdisjoint(selection.ids))
        and selection.type in {None, message.type}
        and selection.key in {None, message.key}
        and (selection.since is None or letter.died_at >= selection.since)
    )


def _document(letter: DeadLetter) -> dict[str, Any]:
    return {
        **message_document(letter.message),
        "group": letter.group,
        "position": letter.position,
        "attempts": letter.attempts,
        "error": letter.reason,
        "settled_at": letter.died_at,
    }
