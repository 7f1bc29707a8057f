"""The store on SQLite: nothing but a file, several processes on one machine."""

from postroom.stores.sqlite.store import SqliteStore

__all__ = ["SqliteStore"]
