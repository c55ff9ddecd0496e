"""Storage for runs: the interface `Store`, and stores in memory, in a SQLite file and in a PostgreSQL database.

    class Desk(module):
        store = "runs.db"

Instead of a path or a URL, `store` may be any object that implements the interface `Store`.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from acorn.stores.port import RunFacts, Store

if TYPE_CHECKING:
    from acorn.stores.postgres import PostgresStore as PostgresStore
    from acorn.stores.sqlite import MemoryStore as MemoryStore
    from acorn.stores.sqlite import SQLiteStore as SQLiteStore

__all__ = ["MemoryStore", "PostgresStore", "RunFacts", "SQLiteStore", "Store"]

# These classes are loaded at their first use, because they import database packages and `import acorn` must be fast.
_LAZY = {"MemoryStore": "sqlite", "PostgresStore": "postgres", "SQLiteStore": "sqlite"}


def __getattr__(name: str) -> object:
    if name not in _LAZY:
        raise AttributeError(f"module 'acorn.stores' has no attribute {name!r}")
    store_class: object = getattr(import_module(f"acorn.stores.{_LAZY[name]}"), name)
    globals()[name] = store_class
    return store_class
