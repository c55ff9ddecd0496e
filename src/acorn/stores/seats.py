"""Who in this process drives a run.

A store knows processes only. Two calls of one process may both believe that they drive a run: what is left of a call
that somebody stopped, its thread in a tool that takes its time, and whoever goes on with the run meanwhile. The one
that took the run last has the seat; the other writes nothing more.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from weakref import WeakValueDictionary

from acorn.stores import words
from acorn.stores.holder import this_process
from acorn.stores.port import Kept, Store

_guard = threading.Lock()
_seats: WeakValueDictionary[tuple[int, str], Seat] = WeakValueDictionary()


class Seat:
    """The seat of one run in one store, as long as somebody remembers that he had it."""

    __slots__ = ("__weakref__", "lock", "store", "turn")

    def __init__(self, store: Store) -> None:
        self.store = store
        self.lock = threading.Lock()
        """Held while the run is claimed, and by whoever looks whether the seat is still his until he has written."""
        self.turn = 0
        """How often the run was taken."""


def seat_of(store: Store, run_id: str) -> Seat:
    with _guard:
        seat = _seats.get((id(store), run_id))
        if seat is None:
            seat = _seats[id(store), run_id] = Seat(store)
        return seat


def take(store: Store, run_id: str) -> Sequence[Kept] | None:
    """Claim a run for this process; whatever else in it has driven the run until now does so no more."""
    seat = seat_of(store, run_id)
    with seat.lock:
        found = store.claim(run_id, this_process())
        if found is not None and found[0].facts.status not in words.OVER:
            seat.turn += 1
        return found


def _begin_anew() -> None:
    """Whoever had the lock when this child was made is not here."""
    global _guard
    _guard = threading.Lock()
    _seats.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_begin_anew)
