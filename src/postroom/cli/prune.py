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
    retention = common(context).settings().retention
    sent_age, inbox_age = _ages(sent, inbox, retention)
    if inbox_age is not None and inbox_age < (sent_age or retention.sent) and not force:
        raise CommandFailed(
            Exit.USAGE,
            f"--inbox-older-than {span(inbox_age)} forgets ids of sent messages that are kept for "
            f"{span(sent_age or retention.sent)}: replayed, they would take effect twice",
            cure="give a longer time, or --force",
        )
    now = datetime.now(UTC)

    async def work() -> tuple[int, int]:
        async with opened(context) as postroom:
            return await postroom.desk.prune(
                sent_before=None if sent_age is None else now - sent_age,
                inbox_before=None if inbox_age is None else now - inbox_age,
                dry_run=dry_run,
            )

    sent_count, inbox_count = run(work())
    if as_json:
        document({"sent": sent_count, "inbox": inbox_count, "dry_run": dry_run})
        return
    for what, count, limit in (
        ("sent messages", sent_count, sent_age),
        ("handled ids", inbox_count, inbox_age),
    ):
        if limit is not None:
            verb = "would be deleted" if dry_run else "deleted"
            show(f"{count} {what} older than {span(limit)} {verb}")


def _ages(
    sent: str | None, inbox: str | None, retention: Retention
) -> tuple[timedelta | None, timedelta | None]:
    if sent is None and inbox is None:
        return retention.sent, retention.inbox
    return (
        None if sent is None else older_than(sent, "--sent-older-than"),
        None if inbox is None else older_than(inbox, "--inbox-older-than"),
    )
