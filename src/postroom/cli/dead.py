"""`dead`: what was given up, in the outbox or by a consumer group."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Annotated, Any

import typer

from postroom.cli.change import ALL, Act, Change
from postroom.cli.piles import Pile, pile_of
from postroom.cli.screen import document, local, say, show, show_fields, table
from postroom.cli.selection import (
    DeadIds,
    Key,
    Limit,
    RouteName,
    Selection,
    Since,
    Type,
    UpTo,
    selected,
)
from postroom.cli.start import DryRun, Json, Yes, examples, opened, run

app = typer.Typer(
    no_args_is_help=True,
    help="Look at messages that were given up, send them again, or delete them.",
)

From = Annotated[
    str | None,
    typer.Option(
        "--from", metavar="GROUP", help="Dead letters of this consumer group, not the outbox."
    ),
]


_DEAD = ("dead message", "dead messages")


@app.command(
    "list",
    epilog=examples(
        "postroom dead list",
        "postroom dead list --type shop.order-placed --since 2h",
        "postroom dead list --from shipping --json",
    ),
)
def list_dead(
    context: typer.Context,
    *,
    group: From = None,
    type_name: Type = None,
    key: Key = None,
    route: RouteName = None,
    since: Since = None,
    limit: Limit = 100,
    as_json: Json = False,
) -> None:
    """List dead messages, the oldest first, with the reason."""
    wanted = selected(type_name=type_name, key=key, route=route, since=since)

    async def work() -> tuple[str, Sequence[dict[str, Any]], int]:
        async with opened(context) as postroom:
            pile = await pile_of(postroom, group, wanted)
            found = await pile.find(wanted, limit=limit)
            total = len(found) if len(found) < limit else await pile.count(wanted)
            return pile.place, found, total

    place, found, total = run(work())
    if as_json:
        document({"place": place, "count": len(found), "total": total, "messages": found})
        return
    if not found:
        show(f"no dead messages in the {place}" if group is None else f"no dead letters in {place}")
        return
    # Two dead letters of one message have one id: a position names one of them.
    fields = [*([] if group is None else ["position"]), "id", "type", "key", "attempts"]
    table(
        (*fields, "given up", "reason"),
        ((*(m[name] for name in fields), local(m["settled_at"]), m["error"]) for m in found),
    )
    if len(found) < total:
        say(f"the first {len(found)} of {total}; more with --limit")


@app.command(
    "show",
    epilog=examples(
        "postroom dead show 0197a0b2-7c1e-7d55-8f0e-2f1f5b6c7d8e",
        "postroom dead show 0197a0b2-7c1e-7d55-8f0e-2f1f5b6c7d8e --from shipping --json",
    ),
)
def show_dead(
    context: typer.Context,
    message_id: Annotated[str, typer.Argument(metavar="ID", help="The message's id.")],
    *,
    group: From = None,
    as_json: Json = False,
) -> None:
    """Show one dead message with its payload and the reason."""
    wanted = selected([message_id])

    async def work() -> dict[str, Any]:
        async with opened(context) as postroom:
            pile = await pile_of(postroom, group, wanted)
            return (await _all_named(pile, group, wanted))[0]

    found = run(work())
    if as_json:
        document(found)
    else:
        show_fields(found)


@app.command(
    "replay",
    epilog=examples(
        "postroom dead replay --dry-run",
        "postroom dead replay --type shop.order-placed --since 2h --yes",
        "postroom dead replay 0197a0b2-7c1e-7d55-8f0e-2f1f5b6c7d8e",
        "postroom dead replay --from shipping --key order-7",
    ),
)
def replay(  # noqa: PLR0913 - its parameters are its options
    context: typer.Context,
    ids: DeadIds = None,
    *,
    group: From = None,
    type_name: Type = None,
    key: Key = None,
    route: RouteName = None,
    since: Since = None,
    limit: UpTo = None,
    dry_run: DryRun = False,
    yes: Yes = False,
    as_json: Json = False,
) -> None:
    """Send dead messages again, under the same id: who handled a copy already drops it."""
    wanted = selected(ids, type_name=type_name, key=key, route=route, since=since)
    change = Change(
        action="replay",
        what=_DEAD,
        question="Send {what} again?",
        told="sent again",
        limit=limit,
        dry_run=dry_run,
        yes=yes,
        as_json=as_json,
    )
    _make(context, group, wanted, change, lambda pile: partial(pile.replay, wanted))


@app.command(
    "discard",
    epilog=examples(
        "postroom dead discard 0197a0b2-7c1e-7d55-8f0e-2f1f5b6c7d8e",
        "postroom dead discard --type shop.test --dry-run --json",
        "postroom dead discard --from shipping --since 1d --yes",
        "postroom dead discard --from shipping 17  (a position: one copy of a message)",
    ),
)
def discard(  # noqa: PLR0913 - its parameters are its options
    context: typer.Context,
    ids: DeadIds = None,
    *,
    group: From = None,
    type_name: Type = None,
    key: Key = None,
    route: RouteName = None,
    since: Since = None,
    limit: UpTo = None,
    dry_run: DryRun = False,
    yes: Yes = False,
    as_json: Json = False,
) -> None:
    """Delete dead messages for good."""
    wanted = selected(ids, type_name=type_name, key=key, route=route, since=since)
    change = Change(
        action="discard",
        what=_DEAD,
        question="Delete {what} for good?",
        told="deleted",
        limit=limit,
        dry_run=dry_run,
        yes=yes,
        as_json=as_json,
    )
    _make(context, group, wanted, change, lambda pile: partial(pile.discard, wanted))


def _make(
    context: typer.Context,
    group: str | None,
    wanted: Selection,
    change: Change,
    act: Callable[[Pile], Act],
) -> None:
    """Count, ask and change, in the outbox or in the group's dead letters."""

    async def work() -> None:
        async with opened(context) as postroom:
            pile = await pile_of(postroom, group, wanted)
            await _all_named(pile, group, wanted)
            await change.make(act(pile))

    run(work())


async def _all_named(pile: Pile, group: str | None, wanted: Selection) -> Sequence[dict[str, Any]]:
    """Refuse the whole command where an id was named that is not there."""
    if not wanted.ids:
        return ()
    found = await pile.find(wanted, limit=ALL)
    there = {str(each[name]) for each in found for name in ("id", "position") if name in each}
    wanted.require(
        there,
        f"not among the dead of the {pile.place}",
        cure=(
            "`postroom dead list` shows what is there; with --from GROUP what a consumer gave up"
            if group is None
            else f"`postroom dead list --from {group}` shows what is there"
        ),
    )
    return found
