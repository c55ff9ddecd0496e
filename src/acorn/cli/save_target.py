"""`--save`: the events of a run as a JSON array, written while it goes on, and the file, pipe or device they go to.

Written anew when something has happened, by a thread of its own, so that a run which waits for long is kept
all the same. It takes a small part of the time at most, however long the run becomes; the last version is
written by whoever ends. The target is found and tried before the run begins, so that one which cannot be written
costs no run.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import stat
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Protocol

from acorn import Run
from acorn._inside import replace_surrogates
from acorn.cli.output import FAILED, CommandError
from acorn.journal import Entry
from acorn.thread import dump_events

_PAUSE = 0.5
"""Seconds between two versions."""
_PATIENCE = 10
"""How many times as long as it took to write one must pass before the next."""
_DESCRIPTOR = re.compile(r"/dev/(?:fd/(?P<dev>\d+)|(?P<name>stdout|stderr))|/proc/self/fd/(?P<proc>\d+)")


class Saver:
    """Writes the thread of a run to its target."""

    def __init__(self, target: SaveTarget, file: str, run: Callable[[], Run | None]) -> None:
        self._target = target
        self._file = file
        self._run = run
        self._is_behind = False
        """Whether something has happened that is not in the file."""
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="acorn-save", daemon=True)

    def begin(self) -> None:
        if self._target.can_change:
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
                self._is_behind = True  # said at the end, if it is still so
                continue
            pause = max(_PAUSE, _PATIENCE * (time.monotonic() - began))

    def _put(self, *, is_last: bool) -> None:
        run = self._run()
        events = [] if run is None else dump_events(run.thread)
        text = json.dumps(replace_surrogates(events), ensure_ascii=False, indent=1)
        self._target.put(f"{text}\n".encode(), is_last=is_last)


class SaveTarget(Protocol):
    """Somewhere to keep a run."""

    can_change: bool
    """Whether what is there can be replaced by a later version."""

    def put(self, text: bytes, *, is_last: bool) -> None: ...


def save_target(file: str, stdout: int | None = None) -> SaveTarget:
    """Where a run is to be kept; `CommandError` says why it cannot be. `stdout` is where standard output leads."""
    try:
        return _find(file, stdout)
    except OSError as error:
        raise CommandError(f"`--save {file}` cannot be written: {error.strerror or error}") from error


def _find(file: str, stdout: int | None) -> SaveTarget:
    if named := _DESCRIPTOR.fullmatch(file):
        number = named["dev"] or named["proc"] or {"stdout": "1", "stderr": "2"}[named["name"]]
        return _Descriptor(stdout if number == "1" and stdout is not None else int(number))
    try:
        found = os.stat(file)
    except FileNotFoundError:
        if not os.path.basename(file):
            raise
        return _File(Path(os.path.realpath(file)))
    if stat.S_ISDIR(found.st_mode):
        raise CommandError(f"`--save {file}` names a directory")
    if not stat.S_ISREG(found.st_mode):
        if not os.access(file, os.W_OK):
            raise PermissionError(13, "Permission denied")
        return _Stream(file)
    os.close(os.open(file, os.O_WRONLY))  # a file that may not be written is not replaced either
    if found.st_nlink > 1:
        return _Stream(file)  # it has other names, which a new file would not have
    try:
        return _File(Path(os.path.realpath(file)))
    except PermissionError:  # the file may be written, but nothing beside it
        return _Stream(file)


class _File:
    """An ordinary file, always whole: each version is written beside it and then takes its place."""

    can_change = True

    def __init__(self, path: Path) -> None:
        self._path = path
        descriptor, beside = self._begin()
        os.close(descriptor)
        beside.unlink()

    def put(self, text: bytes, *, is_last: bool) -> None:
        descriptor, beside = self._begin()
        try:
            with open(descriptor, "wb") as file:
                self._keep_mode(file.fileno())
                file.write(text)
                file.flush()
                if is_last:
                    os.fsync(file.fileno())
            os.replace(beside, self._path)
        except BaseException:  # Ctrl-C too: nothing half-written stays behind
            beside.unlink(missing_ok=True)
            raise

    def _begin(self) -> tuple[int, Path]:
        """A new file beside it; its name is short, since the one it stands for may be as long as names can be."""
        while True:
            beside = self._path.parent / f".acorn-{secrets.token_hex(4)}"
            with suppress(FileExistsError):
                return os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666), beside

    def _keep_mode(self, descriptor: int) -> None:
        """Whose file it was and who may read it; a new one is as the user's mask has it."""
        try:
            before = os.stat(self._path)
        except FileNotFoundError:
            return
        with suppress(OSError):  # only the owner himself may do without
            os.fchown(descriptor, before.st_uid, before.st_gid)
        os.fchmod(descriptor, stat.S_IMODE(before.st_mode))


class _Stream:
    """What is written as it stands, and once: a pipe, a device, a file that has other names."""

    can_change = False

    def __init__(self, file: str) -> None:
        self._file = file

    def put(self, text: bytes, *, is_last: bool) -> None:
        with open(os.open(self._file, os.O_WRONLY | os.O_TRUNC), "wb") as file:
            file.write(text)


class _Descriptor:
    """What the caller has opened for us, `/dev/fd/63`."""

    can_change = False

    def __init__(self, number: int) -> None:
        self._descriptor = os.dup(number)

    def put(self, text: bytes, *, is_last: bool) -> None:
        with open(self._descriptor, "wb", closefd=False) as file:
            file.write(text)
