"""The option `--save`, which writes the events of a run as a JSON array to a file, a pipe or a device.

During the run, a thread rewrites the file when the journal has new entries, so that a long run is saved before its end.
The pauses of the thread grow with the size of the file, so that writing uses only a small part of the time. The main
thread writes the final version. The target is checked before the run starts, so that a wrong path is reported early.
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

_MIN_PAUSE = 0.5
"""The minimum seconds between two versions of the file."""
_PAUSE_FACTOR = 10
"""The pause before the next version, as a multiple of the time for writing the last version."""
_DESCRIPTOR = re.compile(r"/dev/(?:fd/(?P<dev>\d+)|(?P<name>stdout|stderr))|/proc/self/fd/(?P<proc>\d+)")


class Saver:
    """The writer for `--save`, which stores the events of a run during the run and at its end."""

    def __init__(self, target: SaveTarget, file: str, run: Callable[[], Run | None]) -> None:
        self._target = target
        self._file = file
        self._run = run
        self._has_new_entries = False
        """Whether the journal has entries that the file may lack."""
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._save_repeatedly, name="acorn-save", daemon=True)

    def start(self) -> None:
        if self._target.can_change:
            self._thread.start()

    def on_entry(self, entry: Entry) -> None:
        self._has_new_entries = True

    def finish(self) -> CommandError | None:
        """Write the final version of the file. Return the error if this fails, and None otherwise."""
        self._is_over.set()
        if self._thread.is_alive():
            self._thread.join()
        try:
            self._write(is_last=True)
        except OSError as error:
            return CommandError(f"Cannot write `{self._file}`: {error.strerror or error}", FAILED)
        return None

    def _save_repeatedly(self) -> None:
        pause = _MIN_PAUSE
        while not self._is_over.wait(pause):
            if not self._has_new_entries:
                continue
            self._has_new_entries = False  # An entry that arrives from now on may be missing in the file.
            started = time.monotonic()
            try:
                self._write(is_last=False)
            except OSError:
                self._has_new_entries = True  # `finish` reports the error if writing still fails at the end.
                continue
            pause = max(_MIN_PAUSE, _PAUSE_FACTOR * (time.monotonic() - started))

    def _write(self, *, is_last: bool) -> None:
        run = self._run()
        events = [] if run is None else dump_events(run.thread)
        text = json.dumps(replace_surrogates(events), ensure_ascii=False, indent=1)
        self._target.write(f"{text}\n".encode(), is_last=is_last)


class SaveTarget(Protocol):
    """A file, pipe or device to which `--save` writes a run."""

    can_change: bool
    """Whether a new version can replace the previous version. A pipe receives only the final version."""

    def write(self, text: bytes, *, is_last: bool) -> None: ...


def find_save_target(file: str, stdout: int | None = None) -> SaveTarget:
    """Return the target for the path of `--save`, and check that it can be written.

    `stdout` is the file descriptor of the real standard output.
    """
    try:
        return _choose_target(file, stdout)
    except OSError as error:
        raise CommandError(f"Cannot write `--save {file}`: {error.strerror or error}") from error


def _choose_target(file: str, stdout: int | None) -> SaveTarget:
    if match := _DESCRIPTOR.fullmatch(file):
        number = match["dev"] or match["proc"] or {"stdout": "1", "stderr": "2"}[match["name"]]
        return _DescriptorTarget(stdout if number == "1" and stdout is not None else int(number))
    try:
        status = os.stat(file)
    except FileNotFoundError:
        if not os.path.basename(file):
            raise
        return _FileTarget(Path(os.path.realpath(file)))
    if stat.S_ISDIR(status.st_mode):
        raise CommandError(f"`--save {file}` is a directory. Use the path of a file.")
    if not stat.S_ISREG(status.st_mode):
        if not os.access(file, os.W_OK):
            raise PermissionError(13, "Permission denied")
        return _DirectTarget(file)
    os.close(os.open(file, os.O_WRONLY))  # Raise an error for a read-only file instead of replacing the file.
    if status.st_nlink > 1:
        return _DirectTarget(file)  # A new file would lose the other hard links of the old file.
    try:
        return _FileTarget(Path(os.path.realpath(file)))
    except PermissionError:  # The file is writable, but its directory is not.
        return _DirectTarget(file)


class _FileTarget:
    """An ordinary file that always has complete content.

    Each version is written to a temporary file, which then replaces the file.
    """

    can_change = True

    def __init__(self, path: Path) -> None:
        self._path = path
        descriptor, temporary = self._create_temporary()
        os.close(descriptor)
        temporary.unlink()

    def write(self, text: bytes, *, is_last: bool) -> None:
        descriptor, temporary = self._create_temporary()
        try:
            with open(descriptor, "wb") as file:
                self._copy_mode(file.fileno())
                file.write(text)
                file.flush()
                if is_last:
                    os.fsync(file.fileno())
            os.replace(temporary, self._path)
        except BaseException:  # Remove the incomplete temporary file, also after Ctrl-C.
            temporary.unlink(missing_ok=True)
            raise

    def _create_temporary(self) -> tuple[int, Path]:
        """Create a temporary file in the directory of the target.

        Its name is short, because the name of the target may already have the maximum length.
        """
        while True:
            temporary = self._path.parent / f".acorn-{secrets.token_hex(4)}"
            with suppress(FileExistsError):
                return os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666), temporary

    def _copy_mode(self, descriptor: int) -> None:
        """Copy the owner and the permissions of the existing file, if it exists, to the temporary file."""
        try:
            old = os.stat(self._path)
        except FileNotFoundError:
            return
        with suppress(OSError):  # Only root may change the owner.
            os.fchown(descriptor, old.st_uid, old.st_gid)
        os.fchmod(descriptor, stat.S_IMODE(old.st_mode))


class _DirectTarget:
    """A pipe, a device or a file with several hard links, which is written in place and only once."""

    can_change = False

    def __init__(self, file: str) -> None:
        self._file = file

    def write(self, text: bytes, *, is_last: bool) -> None:
        with open(os.open(self._file, os.O_WRONLY | os.O_TRUNC), "wb") as file:
            file.write(text)


class _DescriptorTarget:
    """A file descriptor that the shell has opened, such as `/dev/fd/63`."""

    can_change = False

    def __init__(self, number: int) -> None:
        self._descriptor = os.dup(number)

    def write(self, text: bytes, *, is_last: bool) -> None:
        with open(self._descriptor, "wb", closefd=False) as file:
            file.write(text)
