"""Keeping a run in a file while it goes on: the events of its thread as a JSON array.

The file is always whole: each version is written beside it and then takes its place.
"""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path
from typing import Any

from acorn import Run
from acorn._json import whole_text
from acorn.cli.ends import FAILED, CommandError
from acorn.thread import dump_events


class Saver:
    """Writes the thread of a run to a file."""

    def __init__(self, file: str) -> None:
        self._file = Path(os.path.realpath(file))
        if self._file.is_dir():
            raise CommandError(f"`--save {file}` names a directory")
        try:
            self._begin()[1].unlink()  # said now, before the run is paid for
        except OSError as error:
            raise CommandError(f"`--save {file}` cannot be written: {error.strerror or error}") from error

    def save(self, run: Run[Any] | None) -> None:
        """Write what has happened so far."""
        events = [] if run is None else dump_events(run.thread)
        text = json.dumps(whole_text(events), ensure_ascii=False, indent=1)
        try:
            self._replace(text)
        except OSError as error:
            raise CommandError(f"`{self._file}` cannot be written: {error.strerror or error}", FAILED) from error

    def _replace(self, text: str) -> None:
        descriptor, beside = self._begin()
        try:
            with open(descriptor, "w", encoding="utf-8") as file:
                file.write(f"{text}\n")
                file.flush()
                os.fsync(file.fileno())
            os.replace(beside, self._file)
        except BaseException:  # Ctrl-C too: nothing half-written stays behind
            beside.unlink(missing_ok=True)
            raise

    def _begin(self) -> tuple[int, Path]:
        descriptor, name = tempfile.mkstemp(prefix=f".{self._file.name}.", dir=self._file.parent)
        return descriptor, Path(name)
