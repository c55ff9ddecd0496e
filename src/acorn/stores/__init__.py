"""Where runs are kept: the port, a store in memory, and one in a SQLite file.

    class Desk(module):
        store = "runs.db"

Any object of the port (`Store`) can take the place of the path.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from acorn.stores.port import RunFacts, Store

if TYPE_CHECKING:
    from acorn.stores.memory import MemoryStore as MemoryStore
    from acorn.stores.sqlite import SQLiteStore as SQLiteStore

__all__ = ["MemoryStore", "RunFacts", "SQLiteStore", "Store"]

# What brings a database with it is loaded when it is first used, so that `import acorn` stays light.
_LATE = {"MemoryStore": "memory", "SQLiteStore": "sqlite"}


def __getattr__(name: str) -> Any:
    if name not in _LATE:
        raise AttributeError(f"module 'acorn.stores' has no attribute {name!r}")
    found = globals()[name] = getattr(import_module(f"acorn.stores.{_LATE[name]}"), name)
    return found
