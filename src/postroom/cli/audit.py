"""`audit`: what people changed, and who."""

from collections.abc import Sequence

import typer

from postroom.cli.screen import document, local, say, show, table
from postroom.cli.selection import Limit
from postroom.cli.start import Json, examples, opened, run
from postroom.store import AuditRecord

app = typer.Typer()


@app.command(epilog=examples("postroom audit", "postroom audit --limit 20 --json"))
def audit(context: typer.Context, *, limit: Limit = 100, as_json: Json = False) -> None:
    """List what people changed in the outbox and the inbox, the newest first, and who did it."""

    async def work() -> Sequence[AuditRecord]:
        async with opened(context) as postroom:
            return await postroom.desk.audit(limit=limit)

    found = run(work())
    if as_json:
        document({"count": len(found), "records": [_document(record) for record in found]})
    elif not found:
        show("nobody changed anything")
    else:
        columns = ("at", "who", "action", "count", "what")
        table(columns, ((local(r.at), r.actor, r.action, r.count, r.detail) for r in found))
        if len(found) == limit:
            say(f"the newest {limit}; more with --limit")


def _document(record: AuditRecord) -> dict[str, object]:
    return {
        "at": record.at,
        "actor": record.actor,
        "action": record.action,
        "count": record.count,
        "detail": record.detail,
    }
