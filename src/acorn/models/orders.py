"""Carries what shared windows want of their stores, and brings back what came of it.

A thread for each store, while there is something to carry: a store that has lost its connection holds up nobody else.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import NamedTuple

from acorn._json import words_of
from acorn.errors import StoreError
from acorn.models.shared_window import SharedWindow
from acorn.stores.port import Order, Shares, Slice

_IDLE = 5.0
"""Seconds without work after which a thread ends."""


class Outcome(NamedTuple):
    """What came of an order: a slice, or why there is none."""

    gate: SharedWindow
    came: Slice | None
    error: Exception | None = None


_Orders = queue.SimpleQueue[tuple[SharedWindow, Order]]


class Carriers:
    def __init__(self, tell: Callable[[Outcome], None]) -> None:
        self._tell = tell
        self._guard = threading.Lock()
        self._orders: dict[int, _Orders] = {}

    def send(self, store: Shares, gate: SharedWindow, order: Order) -> None:
        with self._guard:
            orders = self._orders.get(id(store))
            if orders is None:
                orders = self._orders[id(store)] = queue.SimpleQueue()
                thread = threading.Thread(target=self._carry, args=(store, orders), name="acorn-limits", daemon=True)
                with suppress(RuntimeError):  # the interpreter is ending, and nothing will be sent
                    thread.start()
            orders.put((gate, order))

    def _carry(self, store: Shares, orders: _Orders) -> None:
        while True:
            try:
                gate, order = orders.get(timeout=_IDLE)
            except queue.Empty:
                with self._guard:
                    if orders.empty():
                        del self._orders[id(store)]
                        return
            else:
                self._tell(_outcome(store, gate, order))


def _outcome(store: Shares, gate: SharedWindow, order: Order) -> Outcome:
    try:
        return Outcome(gate, store.take(order))
    except StoreError as error:
        return Outcome(gate, None, error)
    except Exception as error:  # the store may be the user's
        return Outcome(gate, None, StoreError(f"{store.name} failed: {words_of(error)}"))
