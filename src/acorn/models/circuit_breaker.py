"""Circuits: a model that keeps failing is left alone for a while, and then tried by one request at a time.

A circuit opens after some failures in a row, each of them a request that was given up; what a model refuses for good
is no failure of the model's. `fallback.py` asks here before it asks a model. The circuits of a process are shared,
one for each model and address.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any
from weakref import ref

from acorn._base.log import logger
from acorn.types import JsonObject

FAILURES = 3
"""How many in a row open a circuit."""
OPEN_FOR = 30.0
"""Seconds until a model is tried again."""


class Pass:
    """One request that was let through; what comes of it is told to the circuit, or nothing where it was left."""

    __slots__ = ("__weakref__", "_circuit")

    def __init__(self, circuit: Circuit) -> None:
        self._circuit = circuit

    def succeeded(self, name: str) -> None:
        """There was an answer; `name` is for the log."""
        self._circuit._close(name)

    def failed(self, name: str) -> None:
        """The request was given up, and might succeed later."""
        self._circuit._count(self, name)

    def refused(self) -> None:
        """The model would not take this request, now or later: it is there, but this was no answer."""
        self._circuit._end_row(self)

    def left(self) -> None:
        """Nobody waited for what would come of it."""
        self._circuit._free(self)


class Circuit:
    """Whether one model is asked, by what became of the requests before."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._failures = 0
        self._open_until: float | None = None
        self._trial: ref[Pass] | None = None
        """The request that tries an open one; weakly, so that one that was interrupted is in nobody's way."""

    @property
    def is_passable(self) -> bool:
        """Whether a request would be let through now."""
        until = self._open_until
        return until is None or (self._clock() >= until and self._tried_by() is None)

    def enter(self, *, anyhow: bool = False) -> Pass | None:
        """Let a request through, or not; `anyhow` where there is nobody else to ask."""
        made = Pass(self)
        if self._open_until is None:
            return made
        with self._lock:
            if self.is_passable:
                self._trial = ref(made)
                return made
        return made if anyhow else None

    def _tried_by(self) -> Pass | None:
        return None if self._trial is None else self._trial()

    def _close(self, name: str) -> None:
        if self._open_until is None and not self._failures:
            return
        with self._lock:
            was_open = self._open_until is not None
            self._failures, self._open_until, self._trial = 0, None, None
        if was_open:
            logger.info("The circuit of `%s` is closed again.", name)

    def _count(self, who: Pass, name: str) -> None:
        with self._lock:
            is_open = self._open_until is not None
            if is_open and self._tried_by() is not who:
                return  # it began before the circuit opened, or had nobody else to ask
            self._failures += 1
            if not is_open and self._failures < FAILURES:
                return
            failures, self._open_until, self._trial = self._failures, self._clock() + OPEN_FOR, None
        logger.info("The circuit of `%s` is open for %g s: it failed %d times in a row.", name, OPEN_FOR, failures)

    def _end_row(self, who: Pass) -> None:
        if self._open_until is None:
            self._failures = 0
        self._free(who)

    def _free(self, who: Pass) -> None:
        with self._lock:
            if self._tried_by() is who:
                self._trial = None


class Circuits:
    """The circuits of models, each known by its id and address, or by the object that it is."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._of_ids: dict[tuple[str, str], Circuit] = {}
        self._of_objects: dict[int, tuple[ref[Any], Circuit]] = {}
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._of_ids) + len(self._of_objects)

    def of(self, declared: Any) -> Circuit:
        """The circuit of a model as a user declares it: an id, a dict or an object."""
        if isinstance(declared, str | dict):
            return self._of_ids.setdefault(key_of(declared), Circuit(self._clock))
        at = id(declared)
        with self._lock:
            known = self._of_objects.get(at)
            if known is not None and known[0]() is declared:
                return known[1]
            made = Circuit(self._clock)
            with suppress(TypeError):  # it has slots, and none for this: a circuit for this run alone
                self._of_objects[at] = (ref(declared, lambda _: self._forget(at)), made)
            return made

    def _forget(self, at: int) -> None:
        known = self._of_objects.get(at)
        if known is not None and known[0]() is None:  # a newer object may have its place
            del self._of_objects[at]

    def forget(self) -> None:
        """Try every model anew: an address may have become another one's."""
        self._of_ids.clear()
        self._of_objects.clear()


def key_of(declared: str | JsonObject) -> tuple[str, str]:
    """A model's id and where it is asked."""
    config = {"model": declared} if isinstance(declared, str) else declared
    address = config.get("base_url") or config.get("api_base") or ""
    return str(config.get("model") or config.get("id")), str(address).rstrip("/")


CIRCUITS = Circuits()
"""Those of the process: a model that is down is down for all."""
