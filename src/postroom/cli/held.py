"""`held`: keys whose messages wait behind a head that is not sent."""

from collections.abc import AsyncIterator, Sequence
from functools import partial
from typing import Any

import typer

from postroom.cli.change import ALL, Change
from postroom.cli.screen import document, local, say, show, table
from postroom.cli.selection import Ids, Key, Limit, RouteName, Selection, Type, UpTo, selected
from postroom.cli.start import DryRun, Json, Yes, examples, opened, run
from postroom.desk import Desk
from postroom.message import Entry, State
from postroom.store import Query

app = typer.Typer(
    no_args_is_help=True,
    help="Look at keys that wait behind a message that is not sent, and let them go on.",
)

_PAGE = 500


@app.command(
    "list", epilog=examples("postroom held list", "postroom held list --key order-7 --json")
)
def list_held(
    context: typer.Context,
    *,
    type_name: Type = None,
    key: Key = None,
    route: RouteName = None,
    limit: Limit = 100,
    as_json: Json = False,
) -> None:
    """List blocked keys: the message at their head, why it is not sent, and how many wait."""
    wanted = selected(type_name=type_name, key=key, route=route)

    async def work() -> Sequence[dict[str, Any]]:
        async with opened(context) as postroom:
            heads = _heads(postroom.desk, wanted, limit)
            return [await _blocked(postroom.desk, head) async for head in heads]

    found = run(work())
    if as_json:
        document({"count": len(found), "keys": found})
    elif not found:
        show("no key is blocked")
    else:
        columns = ("route", "key", "waiting behind", "head", "state", "next try", "reason")
        table(columns, (tuple(_shown(each)) for each in found))
        if len(found) == limit:
            say(f"the first {limit}; more with --limit")


@app.command(
    "release",
    epilog=examples(
        "postroom held release --key order-7",
        "postroom held release --type shop.order-placed --dry-run",
        "postroom held release 0197a0b2-7c1e-7d55-8f0e-2f1f5b6c7d8e --yes",
    ),
)
def release(
    context: typer.Context,
    ids: Ids = None,
    *,
    type_name: Type = None,
    key: Key = None,
    route: RouteName = None,
    limit: UpTo = None,
    dry_run: DryRun = False,
    yes: Yes = False,
    as_json: Json = False,
) -> None:
    """Let keys go on past their dead heads; the heads stay dead and can be replayed later.

    A head that waits for its next try is not dead: it goes on by itself.
    """
    wanted = selected(ids, type_name=type_name, key=key, route=route)
    change = Change(
        action="release",
        what=("key", "keys"),
        question="Let {what} go on past the dead head?",
        told="let go past the dead head",
        limit=limit,
        dry_run=dry_run,
        yes=yes,
        as_json=as_json,
    )

    async def work() -> None:
        async with opened(context) as postroom:
            await _all_blocking(postroom.desk, wanted)
            await change.make(partial(postroom.desk.release, wanted.query(State.DEAD)))

    run(work())


async def _all_blocking(desk: Desk, wanted: Selection) -> None:
    """Refuse the whole command where an id was named that is no dead head of a key."""
    if not wanted.ids:
        return
    found = await desk.find(wanted.query(State.DEAD), limit=ALL)
    heads = {entry.message.id for entry in found if entry.blocks and entry.message.key is not None}
    wanted.require(heads, "no dead head of a key", cure="`postroom held list` shows what is there")


async def _heads(desk: Desk, wanted: Selection, limit: int) -> AsyncIterator[Entry]:
    """Go through the rows that keep others back, page by page."""
    found = after = 0
    while True:
        query = wanted.query(State.WAITING, State.DEAD, after_seq=after)
        page = await desk.find(query, limit=_PAGE)
        for entry in page:
            if entry.blocks and entry.message.key is not None:
                yield entry
                found += 1
                if found == limit:
                    return
        if len(page) < _PAGE:
            return
        after = page[-1].seq


async def _blocked(desk: Desk, head: Entry) -> dict[str, Any]:
    behind = Query(states=(State.HELD,), route=head.route, key=head.message.key)
    return {
        "route": head.route,
        "key": head.message.key,
        # What a discard would delete is an exact count that reads no payload.
        "held": await desk.discard(behind, limit=ALL, dry_run=True),
        "head": head.message.id,
        "type": head.message.type,
        "state": head.state.value,
        "due_at": head.due_at,
        "attempts": head.attempts,
        "error": head.error,
    }


def _shown(key: dict[str, Any]) -> tuple[object, ...]:
    return (
        key["route"],
        key["key"],
        key["held"],
        key["head"],
        key["state"],
        local(key["due_at"]),
        key["error"],
    )
