"""From what a user writes to a store of the port. The one table of stores."""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable
from importlib import import_module
from typing import Any
from weakref import WeakValueDictionary

from acorn.errors import DeclarationError
from acorn.stores.port import Store

_guard = threading.RLock()
_open: WeakValueDictionary[str, Any] = WeakValueDictionary()
"""One store for each file or database: its threads write together."""
_recent: deque[Store] = deque(maxlen=8)
"""Those that were named last stay open between two calls; others close when nobody has them."""
_memory: list[Store] = []


def open_store(declared: Any, owner: str) -> Store:
    """The store that `owner`, as messages call it, names: a path, `memory`, a URL, or a store itself."""
    if isinstance(declared, Store) and not isinstance(declared, type):
        return declared
    if not isinstance(declared, str | os.PathLike) or not isinstance(os.fspath(declared), str):
        raise _unknown(declared, owner)
    text: str = os.fspath(declared)
    scheme, mark, _ = text.partition("://")
    if isinstance(declared, str) and mark:
        if scheme in ("postgresql", "postgres"):
            return _remembered(text, lambda: import_module("acorn.stores.postgres.store").PostgresStore(text))
        raise _unknown(f"{scheme}://...", owner)
    if not text or text == ":memory:" or "\0" in text:
        raise _unknown(declared, owner)
    return _in_memory() if declared == "memory" else _in_file(text)


def _unknown(declared: Any, owner: str) -> DeclarationError:
    return DeclarationError(
        f"{owner} must be the path of a file, 'memory', a URL like 'postgresql://host/name', or a store, "
        f"got {declared!r}."
    )


def _in_memory() -> Store:
    with _guard:
        if not _memory:
            _memory.append(import_module("acorn.stores.memory").MemoryStore())
        return _memory[0]


def _in_file(text: str) -> Store:
    whole = os.path.realpath(os.path.expanduser(text))
    return _remembered(whole, lambda: import_module("acorn.stores.sqlite.store").SQLiteStore(text))


def _remembered(key: str, opens: Callable[[], Store]) -> Store:
    with _guard:
        store: Store = _open.get(key) or opens()
        _open[key] = store
        if store not in _recent:
            _recent.append(store)
        return store
