"""The store on PostgreSQL 15 and newer, beside the application's own tables."""

from postroom.stores.postgresql.database import Patience
from postroom.stores.postgresql.store import PostgresqlStore

__all__ = ["Patience", "PostgresqlStore"]
