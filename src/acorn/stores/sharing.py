"""A connection to a database that many threads share: opened when first needed, used by one of them at a time."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

from acorn.errors import StoreError
from acorn.stores.forks import closes_at_fork


class Closable(Protocol):
    def close(self) -> None: ...


C = TypeVar("C", bound=Closable)
T = TypeVar("T")


class SharedConnection(Generic[C]):
    """What must not be open in a forked child is closed while the process forks."""

    def __init__(self, opens: Callable[[], C]) -> None:
        self._opens = opens
        self._lock = threading.Lock()
        self._connection: C | None = None
        closes_at_fork(self)

    def use(self, act: Callable[[Callable[[], C]], T]) -> T:
        """Do something while nobody else uses it; it is handed what gives the connection.

        Where that ends with an error, the connection is opened anew. A `with` and a function, as nothing else is
        sure to let go of a lock when Ctrl-C comes.
        """
        with self._lock:
            return self._do(act)

    def _do(self, act: Callable[[Callable[[], C]], T]) -> T:
        try:
            return act(self.opened)
        except StoreError:
            raise
        except BaseException:
            self.drop()
            raise

    def opened(self) -> C:
        if self._connection is None:
            self._connection = self._opens()
        return self._connection

    def close(self) -> None:
        with self._lock:
            self.drop()

    def drop(self) -> None:
        """Close it, by whoever uses it."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def before_fork(self) -> None:
        self._lock.acquire()
        self.drop()

    def after_fork(self, in_child: bool) -> None:
        self._lock.release()
