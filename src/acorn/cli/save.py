"""Keeping a run while it goes on: the events of its thread as a JSON array.

Written anew when something has happened, by a thread of its own, so that a run which waits for long is kept
all the same. It takes a small part of the time at most, however long the run becomes; the last version is
written by whoever ends.
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
from acorn.journal import Entry
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
        self._is_behind = False
        """Whether something has happened that is not in the file."""
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="acorn-save", daemon=True)

    def begin(self) -> None:
        if self._place.can_change:
            self._thread.start()

    def hear(self, entry: Entry) -> None:
        self._is_behind = True

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
            if not self._is_behind:
                continue
            self._is_behind = False  # what happens from here on may or may not be in it
            began = time.monotonic()
            try:
                self._put(is_last=False)
            except OSError:
                self._is_behind = True  # told at the end, if it is still so
                continue
            pause = max(_PAUSE, _PATIENCE * (time.monotonic() - began))

    def _put(self, *, is_last: bool) -> None:
        run = self._run()
        events = [] if run is None else dump_events(run.thread)
        text = json.dumps(whole_text(events), ensure_ascii=False, indent=1)
        self._place.put(f"{text}\n".encode(), is_last=is_last)
