"""Bring the tables of a file up to date, and tell whether they are."""

import sqlite3
import time
from collections.abc import Iterator, Sequence
from datetime import timedelta

from postroom.errors import StoreUnavailable
from postroom.stores.queries import Migration
from postroom.stores.sqlite.errors import code_of
from postroom.stores.sqlite.work import Work
from postroom.stores.version import check_not_newer

_PAUSE = 0.02


def version_of(work: Work) -> int:
    """Return the version of the tables, 0 where there are none."""
    if not work.value("tables"):
        return 0
    return int(work.value("version") or 0)


def migrate(
    work: Work, migrations: Sequence[Migration], busy: timedelta, place: object
) -> list[str]:
    """Apply what is missing, each migration in one transaction; return the names.

    Raises SchemaMismatch, and changes nothing, where the tables are newer than these.
    """
    check_not_newer(version_of(work), migrations, place)
    _use_wal(work, time.monotonic() + busy.total_seconds())
    applied = []
    for migration in migrations:
        with work.writing():
            # Looked up under the lock: another process may have applied it a moment ago.
            if version_of(work) >= migration.version:
                continue
            for statement in statements(migration.sql):
                work.connection.execute(statement)
            work.change(
                "migrated",
                version=migration.version,
                name=migration.name,
                applied_at=work.now(),
            )
        applied.append(migration.name)
    return applied


def printed(migrations: Sequence[Migration], migrated: str) -> str:
    """Return the SQL that does the same as `migrate` when a person runs it on an empty file."""
    parts = ["pragma journal_mode = wal;\n"]
    for migration in migrations:
        record = (
            migrated.replace(":version", str(migration.version))
            .replace(":name", f"'{migration.name}'")
            .replace(":applied_at", "cast(strftime('%s', 'now') as integer) * 1000000")
        )
        parts.append(f"begin immediate;\n\n{migration.sql.strip()}\n\n{record};\ncommit;\n")
    return "\n".join(parts)


def statements(script: str) -> Iterator[str]:
    """Split a script into its statements; `executescript` would end our transaction."""
    statement = ""
    for line in script.splitlines(keepends=True):
        statement += line
        if line.rstrip().endswith(";") and sqlite3.complete_statement(statement):
            yield statement
            statement = ""


def _use_wal(work: Work, deadline: float) -> None:
    """Switch the file to write-ahead logging; SQLite does not wait for the lock by itself."""
    while True:
        try:
            mode = work.connection.execute("pragma journal_mode = wal").fetchone()[0]
        except sqlite3.OperationalError as error:
            if code_of(error) != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                raise
            time.sleep(_PAUSE)
            continue
        if mode != "wal":
            raise StoreUnavailable(
                f"SQLite cannot use write-ahead logging here (it stays at {mode}): "
                "put the file on a local disk"
            )
        return
