"""Whether tables are of the version that this Postroom needs; the same for every store with SQL."""

from collections.abc import Sequence

from postroom.errors import SchemaMismatch
from postroom.stores.queries import Migration


def check_version(found: int, migrations: Sequence[Migration], place: object) -> None:
    """Raise SchemaMismatch, with the cure, where the tables are not of this version."""
    wanted = migrations[-1].version
    if found == 0:
        raise SchemaMismatch(f"{place} has no Postroom tables yet: run `postroom init`")
    if found < wanted:
        raise SchemaMismatch(
            f"the tables in {place} have version {found}, this Postroom needs {wanted}: "
            "run `postroom init`"
        )
    check_not_newer(found, migrations, place)


def check_not_newer(found: int, migrations: Sequence[Migration], place: object) -> None:
    """Raise SchemaMismatch where a newer Postroom has made the tables."""
    wanted = migrations[-1].version
    if found > wanted:
        raise SchemaMismatch(
            f"the tables in {place} have version {found}, newer than this Postroom, which knows "
            f"{wanted}: upgrade Postroom"
        )
