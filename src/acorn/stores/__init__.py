"""Where runs are kept: the port, a store in memory, one in a SQLite file, and one in a PostgreSQL database.

    class Desk(module):
        store = "runs.db"

Any object of the port (`Store`) can take the place of the path or the URL.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from acorn.stores.port import RunFacts, Store

if TYPE_CHECKING:
    from acorn.stores.memory import MemoryStore as MemoryStore
    from acorn.stores.postgres.store import PostgresStore as PostgresStore
    from acorn.stores.sqlite.store import SQLiteStore as SQLiteStore

__all__ = ["MemoryStore", "PostgresStore", "RunFacts", "SQLiteStore", "Store"]

# What brings a database with it is loaded when it is first used, so that `import acorn` stays light.
_LATE = {"MemoryStore": "memory", "PostgresStore": "postgres.store", "SQLiteStore": "sqlite.store"}


def __getattr__(name: str) -> Any:
    if name not in _LATE:
        raise AttributeError(f"module 'acorn.stores' has no attribute {name!r}")
    found = globals()[name] = getattr(import_module(f"acorn.stores.{_LATE[name]}"), name)
    return found
