"""Open the store that a `store` setting names: a path, a URL, `memory` or a store object."""

from __future__ import annotations

import os
import re
import threading
from collections import deque
from collections.abc import Callable
from functools import cache
from weakref import WeakValueDictionary

from typing_extensions import TypeIs

from acorn import stores
from acorn.errors import DeclarationError
from acorn.stores.port import Store

_guard = threading.RLock()
_open: WeakValueDictionary[str, Store] = WeakValueDictionary()
"""A dict that maps paths and URLs to open stores. All threads use the same store object and share its transactions."""
_recent: deque[Store] = deque(maxlen=8)
"""The last used stores, which stay open between two calls. Other stores close when no reference to them is left."""


def open_store(declared: object, owner: str) -> Store:
    """Return the store for a `store` setting: a path, `memory`, a URL or a store object.

    `owner` is the subject of the error message if the setting is invalid, such as "`store` of `perform`".
    """
    if isinstance(declared, Store) and not isinstance(declared, type):
        return declared
    text = os.fspath(declared) if _is_path(declared) else None
    check_no_parameters(text, owner)
    if isinstance(text, str) and text and text != ":memory:" and "\0" not in text:
        scheme, separator, _ = text.partition("://")
        if not separator or not isinstance(declared, str):
            if declared == "memory":
                with _guard:
                    return _memory_store()
            absolute = os.path.realpath(os.path.expanduser(text))
            return _open_once(absolute, lambda: stores.SQLiteStore(text))
        if scheme in ("postgresql", "postgres"):
            return _open_once(text, lambda: stores.PostgresStore(text))
        declared = f"{scheme}://..."  # The rest of the URL may contain a password.
    raise DeclarationError(
        f"{owner} must be a file path, 'memory', a URL such as 'postgresql://host/name', or a store object, "
        f"got {declared!r}."
    )


_PARAMETERS = re.compile(r"(?:^|\s)(?:host|hostaddr|port|dbname|user|password|passfile|service|sslmode)\s*=")


def check_no_parameters(text: object, owner: str) -> None:
    """Raise `DeclarationError` if a text is a list of PostgreSQL parameters, which may contain a password.

    Other errors would show it as a path.
    """
    if isinstance(text, str) and _PARAMETERS.search(text):
        raise DeclarationError(
            f"{owner} must be a file path or a URL, but it is a list of connection parameters. Write them as a URL: "
            f"'postgresql://user:password@host:port/dbname'."
        )


def _is_path(value: object) -> TypeIs[str | os.PathLike[str] | os.PathLike[bytes]]:
    return isinstance(value, str | os.PathLike)


@cache
def _memory_store() -> Store:
    return stores.MemoryStore()


def _open_once(key: str, new_store: Callable[[], Store]) -> Store:
    with _guard:
        store = _open.get(key) or new_store()
        _open[key] = store
        if store not in _recent:
            _recent.append(store)
        return store
