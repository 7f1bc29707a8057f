"""The store contract in plain Python: for tests without a database, and to be read as its rules.

`store.py` says what each operation does, `lanes.py` who owns what, `tables.py` what blocks what,
`transaction.py` how a caller joins, `turns.py` how callers wait for each other.
"""

from postroom.stores.memory.store import MemoryStore
from postroom.stores.memory.transaction import MemoryTransaction

__all__ = ["MemoryStore", "MemoryTransaction"]
