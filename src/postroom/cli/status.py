"""`status` and `show`: look, without changing anything."""

import asyncio
from contextlib import suppress
from datetime import timedelta
from typing import Annotated

import typer
from rich.live import Live

from postroom.app import Postroom
from postroom.cli.exits import CommandFailed, Exit
from postroom.cli.overview import as_document, as_screen, overview
from postroom.cli.screen import document, entry_document, out, show_entry
from postroom.cli.selection import older_than
from postroom.cli.start import Json, examples, fail_if, opened, run, stopped_by_signals
from postroom.store import Query

app = typer.Typer()


@app.command(
    epilog=examples(
        "postroom status",
        "postroom status --watch 2",
        "postroom status --check --max-age 10m  (exit code 1 if something is wrong)",
        "postroom status --json | jq .outbox.unsent",
    )
)
def status(
    context: typer.Context,
    *,
    check: Annotated[
        bool, typer.Option("--check", help="Exit with 1 if there is any problem.")
    ] = False,
    max_age: Annotated[
        str | None,
        typer.Option(
            "--max-age",
            help="A message that waits longer is a problem; else 5m in the outbox, 15m in a queue.",
        ),
    ] = None,
    watch: Annotated[
        float | None,
        typer.Option("--watch", min=0.1, help="Show it again every so many seconds."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Show the outbox, the relays, the queues and what is wrong; needs no relay running."""
    if watch and (as_json or check):
        raise CommandFailed(Exit.USAGE, "--watch goes with neither --json nor --check")
    limit = None if max_age is None else older_than(max_age, "--max-age")

    async def work() -> tuple[bool, bool]:
        async with opened(context) as postroom:
            if watch:
                await _watch(postroom, limit, watch)
                return False, False
            seen = await overview(postroom)
            problems = seen.problems(limit)
            if as_json:
                document(as_document(seen, problems))
            else:
                out().print(as_screen(seen, problems))
            return bool(problems), seen.broker_error is not None

    problems, away = run(work())
    fail_if(check and problems)
    if away:
        raise typer.Exit(int(Exit.UNREACHABLE))


async def _watch(postroom: Postroom, limit: timedelta | None, seconds: float) -> None:
    """Show the state again and again, until SIGTERM or Ctrl-C."""
    stop = asyncio.Event()
    console = out()
    with stopped_by_signals(stop), Live(console=console, auto_refresh=False) as live:
        while not stop.is_set():
            seen = await overview(postroom)
            screen = as_screen(seen, seen.problems(limit))
            if console.is_terminal:
                live.update(screen, refresh=True)
            else:
                console.print(screen)
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await stop.wait()


@app.command(
    epilog=examples(
        "postroom show 0197a0b2-7c1e-7d55-8f0e-2f1f5b6c7d8e",
        "postroom show 0197a0b2-7c1e-7d55-8f0e-2f1f5b6c7d8e --json | jq .payload",
    )
)
def show(
    context: typer.Context,
    message_id: Annotated[str, typer.Argument(metavar="ID", help="The message's id.")],
    *,
    as_json: Json = False,
) -> None:
    """Show one message of the outbox with everything that is known about it."""

    async def work() -> None:
        async with opened(context) as postroom:
            found = await postroom.desk.find(Query(ids=(message_id,)), limit=1)
            if not found:
                raise CommandFailed(
                    Exit.NOT_FOUND,
                    f"no message {message_id} in the outbox",
                    cure="sent messages are deleted by prune, or at once without keep_sent",
                )
            if as_json:
                document(entry_document(found[0]))
            else:
                show_entry(found[0])

    run(work())
