"""Keeping a run while it goes on: the events of its thread as a JSON array.

A thread of its own looks after it, so that a run which waits for long is kept all the same. It takes a
small part of the time at most, however long the run becomes; the last version is written by whoever ends.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from typing import Any

from acorn import Run
from acorn._json import whole_text
from acorn.cli.ends import FAILED, CommandError
from acorn.cli.place import Place
from acorn.thread import dump_events

_PAUSE = 0.5
"""Seconds between two versions."""
_PATIENCE = 10
"""How many times as long as it took to write one must pass before the next."""


class Saver:
    """Writes the thread of a run to a place."""

    def __init__(self, place: Place, file: str, run: Callable[[], Run[Any] | None]) -> None:
        self._place = place
        self._file = file
        self._run = run
        self._seen = -1
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="acorn-save", daemon=True)

    def begin(self) -> None:
        if self._place.can_change:
            self._thread.start()

    def end(self) -> CommandError | None:
        """Write the last version; why it could not be."""
        self._is_over.set()
        if self._thread.is_alive():
            self._thread.join()
        try:
            self._put(is_last=True)
        except OSError as error:
            return CommandError(f"`{self._file}` cannot be written: {error.strerror or error}", FAILED)
        return None

    def _watch(self) -> None:
        pause = _PAUSE
        while not self._is_over.wait(pause):
            run = self._run()
            so_far = 0 if run is None else _count(run)
            if so_far == self._seen or run is None:
                continue
            began = time.monotonic()
            try:
                self._put(is_last=False)
            except OSError:
                continue  # told at the end, if it is still so
            self._seen = so_far
            pause = max(_PAUSE, _PATIENCE * (time.monotonic() - began))

    def _put(self, *, is_last: bool) -> None:
        run = self._run()
        events = [] if run is None else dump_events(run.thread)
        text = json.dumps(whole_text(events), ensure_ascii=False, indent=1)
        self._place.put(f"{text}\n".encode(), is_last=is_last)


def _count(run: Run[Any]) -> int:
    """How much has happened."""
    return len(run.ledger.notes) + sum(map(_count, list(run.branches)))
