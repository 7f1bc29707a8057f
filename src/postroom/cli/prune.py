"""`prune`: delete what is finished and old."""

from datetime import UTC, datetime, timedelta
from typing import Annotated

import typer

from postroom.cli.exits import CommandFailed, Exit
from postroom.cli.screen import document, show, span
from postroom.cli.selection import older_than
from postroom.cli.start import DryRun, Json, common, examples, opened, run
from postroom.settings import Retention

app = typer.Typer()


@app.command(
    epilog=examples(
        "postroom prune",
        "postroom prune --dry-run --json",
        "postroom prune --sent-older-than 7d --inbox-older-than 30d",
    )
)
def prune(
    context: typer.Context,
    *,
    sent: Annotated[
        str | None, typer.Option("--sent-older-than", help="Delete sent messages older than this.")
    ] = None,
    inbox: Annotated[
        str | None, typer.Option("--inbox-older-than", help="Forget handled ids older than this.")
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", help="Forget ids of messages that can still be replayed.")
    ] = False,
    dry_run: DryRun = False,
    as_json: Json = False,
) -> None:
    """Delete sent messages, and ids of handled ones, that are old enough.

    Without an age both go by the retention of the settings. What was not sent is never touched.
    A copy of a message whose id is forgotten takes effect again.
    """
    sent_age, inbox_age = _ages(sent, inbox, common(context).settings().retention, force=force)
    now = datetime.now(UTC)

    async def work() -> tuple[int, int]:
        async with opened(context) as postroom:
            return await postroom.desk.prune(
                sent_before=None if sent_age is None else now - sent_age,
                inbox_before=None if inbox_age is None else now - inbox_age,
                dry_run=dry_run,
            )

    counts = run(work())
    if as_json:
        document({"sent": counts[0], "inbox": counts[1], "dry_run": dry_run})
        return
    whats, verb = ("sent messages", "handled ids"), "would be deleted" if dry_run else "deleted"
    for what, count, limit in zip(whats, counts, (sent_age, inbox_age), strict=True):
        if limit is not None:
            show(f"{count} {what} older than {span(limit)} {verb}")


def _ages(
    sent: str | None, inbox: str | None, retention: Retention, *, force: bool
) -> tuple[timedelta | None, timedelta | None]:
    """Return the ages that are meant; refuse to forget ids of what can still be replayed."""
    if sent is None and inbox is None:
        return retention.sent, retention.inbox
    sent_age = None if sent is None else older_than(sent, "--sent-older-than")
    inbox_age = None if inbox is None else older_than(inbox, "--inbox-older-than")
    kept = sent_age or retention.sent
    if inbox_age is not None and inbox_age < kept and not force:
        raise CommandFailed(
            Exit.USAGE,
            f"--inbox-older-than {span(inbox_age)} forgets ids of sent messages that are kept for "
            f"{span(kept)}: replayed, they would take effect twice",
            cure="give a longer time, or --force",
        )
    return sent_age, inbox_age
