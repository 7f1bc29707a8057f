"""Bring the tables up to date, and tell whether they are."""

from collections.abc import Sequence

from postroom.errors import StoreError
from postroom.stores.postgresql.names import Names, identifier
from postroom.stores.postgresql.work import Work
from postroom.stores.queries import Migration
from postroom.stores.version import check_not_newer

_LOCK = 5795975185870843756
"""One number for all schemas: two of them may wait for each other, which harms nobody."""


async def version_of(work: Work, names: Names) -> int:
    """Return the version of the tables, 0 where there are none."""
    if not await work.value("tables", name=names.quoted("schema")):
        return 0
    return int(await work.value("version") or 0)


async def require_utf8(work: Work, place: str) -> None:
    """Raise StoreError unless the database can keep any text, as errors and keys may be."""
    encoding = await work.value("encoding")
    if encoding != "UTF8":
        raise StoreError(
            f"{place}: the database has the encoding {encoding}, which cannot keep every text; "
            "keep the outbox in one made with ENCODING 'UTF8'"
        )


async def migrate(
    work: Work, names: Names, migrations: Sequence[Migration], place: str
) -> list[str]:
    """Apply what is missing, all in one transaction; return the names.

    Raises SchemaMismatch, and changes nothing, where the tables are newer than these.
    """
    await require_utf8(work, place)
    await work.value("migration-lock", number=_LOCK)
    if names.schema is not None and not await work.value("schema-exists", name=names.schema):
        await work.script(created(names.schema))
    found = await version_of(work, names)
    check_not_newer(found, migrations, place)
    applied = []
    for migration in migrations:
        if migration.version > found:
            await work.script(migration.sql)
            await work.change("migrated", version=migration.version, name=migration.name)
            applied.append(migration.name)
    return applied


def printed(names: Names, migrations: Sequence[Migration], migrated: str) -> str:
    """Return the SQL that does the same as `migrate` when a person runs it."""
    parts = [] if names.schema is None else [f"{created(names.schema)};\n"]
    for migration in migrations:
        record = (
            migrated.replace(":version", str(migration.version))
            .replace(":name", f"'{migration.name}'")
            .replace(":now", "null")
        )
        parts.append(f"begin;\n\n{migration.sql.strip()}\n\n{record};\ncommit;\n")
    return "\n".join(parts)


def created(schema: str) -> str:
    """Return the statement that makes the schema where there is none."""
    return f"create schema if not exists {identifier(schema)}"
