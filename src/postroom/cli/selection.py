"""Which rows a person means: the filters that several commands share."""

from collections.abc import Collection
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Annotated

import typer

from postroom.cli.exits import CommandFailed, Exit
from postroom.message import State
from postroom.settings import duration
from postroom.store import Query

Ids = Annotated[list[str] | None, typer.Argument(help="Ids of messages; all that match if none.")]
DeadIds = Annotated[
    list[str] | None,
    typer.Argument(help="Ids of messages (with --from also positions); all that match if none."),
]
Type = Annotated[str | None, typer.Option("--type", help="Only messages of this type.")]
Key = Annotated[str | None, typer.Option("--key", help="Only messages of this key.")]
RouteName = Annotated[str | None, typer.Option("--route", help="Only messages of this route.")]
Since = Annotated[
    str | None,
    typer.Option(
        "--since",
        help="Only messages put (with --from: given up) since: 2h ago, or 2026-01-31T12:00Z.",
    ),
]
Limit = Annotated[int, typer.Option("--limit", min=1, help="At most so many.")]
UpTo = Annotated[
    int | None,
    typer.Option("--limit", min=1, help="At most so many, the oldest first; all if left out."),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """The filters of one command."""

    ids: tuple[str, ...] = ()
    type: str | None = None
    key: str | None = None
    route: str | None = None
    since: datetime | None = None

    def query(self, *states: State, after_seq: int = 0) -> Query:
        """Return the rows of the outbox in these states that are meant."""
        return Query(
            states=states,
            ids=self.ids,
            type=self.type,
            key=self.key,
            route=self.route,
            created_from=self.since,
            after_seq=after_seq,
        )

    def require(self, there: Collection[str], problem: str, *, cure: str) -> None:
        """Refuse the whole command where an id was named that is not there."""
        if missing := sorted(set(self.ids).difference(there)):
            raise CommandFailed(Exit.NOT_FOUND, f"{problem}: {', '.join(missing)}", cure=cure)


def selected(
    ids: Collection[str] | None = None,
    *,
    type_name: str | None = None,
    key: str | None = None,
    route: str | None = None,
    since: str | None = None,
) -> Selection:
    """Return the filters that were given."""
    return Selection(
        ids=tuple(ids or ()),
        type=type_name,
        key=key,
        route=route,
        since=None if since is None else moment(since, "--since"),
    )


def moment(text: str, option: str) -> datetime:
    """Read a moment: a duration before now, or a date with a time zone."""
    try:
        return datetime.now(UTC) - duration(text)
    except (ValueError, OverflowError):
        pass
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise CommandFailed(
            Exit.USAGE,
            f"{option}: {text!r} is neither a duration nor a date",
            cure=f"for example {option} 2h, {option} 7d or {option} 2026-01-31T12:00:00Z",
        ) from None
    return found.replace(tzinfo=UTC) if found.tzinfo is None else found


def older_than(text: str, option: str) -> timedelta:
    """Read the age of an option such as `--sent-older-than 7d`."""
    try:
        return duration(text)
    except ValueError as error:
        raise CommandFailed(Exit.USAGE, f"{option}: {error}") from None
