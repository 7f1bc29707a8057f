"""What commands show: results on standard output, everything else on standard error."""

import base64
import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from postroom.cli.exits import CommandFailed, Exit
from postroom.message import Entry, Message

_ENDLESS = 100_000
"""Columns of what is not a terminal: a pipe to grep must not find cut lines."""


def out() -> Console:
    """Return standard output, for results."""
    return _console(stderr=False)


def err() -> Console:
    """Return standard error, for everything else."""
    return _console(stderr=True)


def _console(*, stderr: bool) -> Console:
    stream = sys.stderr if stderr else sys.stdout
    width = None if stream.isatty() else _ENDLESS
    return Console(stderr=stderr, width=width, highlight=False, soft_wrap=False)


def document(value: object) -> None:
    """Write the one JSON document of a command to standard output."""
    sys.stdout.write(json.dumps(value, indent=2, default=_plain) + "\n")
    sys.stdout.flush()


def say(text: str, style: str = "") -> None:
    """Write one line of news to standard error."""
    err().print(Text(_printable(text), style=style))


def show(text: str, style: str = "") -> None:
    """Write one line of a result to standard output."""
    out().print(Text(_printable(text), style=style), soft_wrap=True)


def table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Write a table to standard output."""
    out().print(made_table(columns, rows))


def made_table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> Table:
    """Return a table without lines around it; numbers stand to the right."""
    lines = [tuple(row) for row in rows]
    made = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for number, name in enumerate(columns):
        right = bool(lines) and all(isinstance(row[number], int) for row in lines)
        made.add_column(name, justify="right" if right else "left", overflow="fold")
    for row in lines:
        made.add_row(*(Text("" if cell is None else _printable(str(cell))) for cell in row))
    return made


def show_entry(entry: Entry) -> None:
    """Write everything about one row of the outbox to standard output."""
    show_fields(entry_document(entry))


def show_fields(fields: Mapping[str, Any]) -> None:
    """Write named values, one a line, and the payload last."""
    plain = {key: value for key, value in fields.items() if not key.startswith("payload")}
    width = max(map(len, plain))
    for key, value in plain.items():
        if value not in (None, "", {}):
            shown = local(value) if isinstance(value, datetime) else value
            shown = pretty(shown) if isinstance(shown, dict) else shown
            show(f"{key:<{width}}  {shown}")
    show("")
    if "payload" in fields:
        show(pretty(fields["payload"]))
    else:
        show(next(str(value) for key, value in fields.items() if key.startswith("payload")))


def _printable(text: str) -> str:
    """Keep what a stranger wrote into a message from steering the terminal."""
    return "".join(c if c.isprintable() or c in "\n\t" else f"\\x{ord(c):02x}" for c in text)


def confirm(question: str, *, yes: bool) -> None:
    """Go on only if a person says yes, or said so by `--yes`."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise CommandFailed(
            Exit.NOT_CONFIRMED,
            f'nothing was changed: without a terminal nobody can be asked "{question}"',
            cure="pass --yes to do it, or --dry-run to see what it would do",
        )
    try:
        agreed = typer.confirm(question, err=True)
    except typer.Abort:
        agreed = False
    if not agreed:
        raise CommandFailed(Exit.NOT_CONFIRMED, "nothing was changed")


def age(moment: datetime | None, now: datetime | None = None) -> str:
    """Return how long ago something was, in two units at most."""
    if moment is None:
        return ""
    return span((now or datetime.now(UTC)) - moment)


def span(delta: timedelta) -> str:
    """Return a duration in a form that `--since` and the settings can read."""
    seconds = max(int(delta.total_seconds()), 0)
    parts = []
    for unit, size in (("d", 86_400), ("h", 3_600), ("m", 60), ("s", 1)):
        count, seconds = divmod(seconds, size)
        if count:
            parts.append(f"{count}{unit}")
    return "".join(parts[:2]) or "0s"


def local(moment: datetime | None) -> str:
    """Return a moment for people: UTC, to the second."""
    return "" if moment is None else f"{moment.astimezone(UTC):%Y-%m-%d %H:%M:%SZ}"


def entry_document(entry: Entry) -> dict[str, Any]:
    """Return a row of the outbox as JSON holds it."""
    return {
        **message_document(entry.message),
        "state": entry.state.value,
        "seq": entry.seq,
        "route": entry.route,
        "lane": entry.lane,
        "attempts": entry.attempts,
        "blocks": entry.blocks,
        "error": entry.error,
        "created_at": entry.created_at,
        "due_at": entry.due_at,
        "settled_at": entry.settled_at,
    }


def message_document(message: Message) -> dict[str, Any]:
    """Return a message as JSON holds it, its payload readable where that is possible."""
    return {
        "id": message.id,
        "type": message.type,
        "key": message.key,
        "version": message.version,
        "topic": message.topic,
        "headers": dict(message.headers),
        "content_type": message.content_type,
        "deliver_at": message.deliver_at,
        "expires_at": message.expires_at,
        **payload_of(message),
    }


def payload_of(message: Message) -> Mapping[str, object]:
    """Return the payload as JSON, as text, or as base64: whatever shows it unchanged."""
    try:
        text = message.payload.decode()
    except UnicodeDecodeError:
        return {"payload_base64": base64.b64encode(message.payload).decode()}
    if "json" in message.content_type:
        try:
            # Numbers stay as they are written: a float would change 0.10 or a long integer.
            return {"payload": json.loads(text), "payload_text": text}
        except ValueError:
            pass
    return {"payload_text": text}


def pretty(value: object) -> str:
    """Return a value as indented JSON."""
    return json.dumps(value, indent=2, ensure_ascii=False, default=_plain)


def _plain(value: object) -> object:
    match value:
        case datetime():
            return value.astimezone(UTC).isoformat().replace("+00:00", "Z")
        case timedelta():
            return value.total_seconds()
        case _:
            return str(value)
