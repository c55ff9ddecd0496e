"""Runs that were saved to files, as the page shows them. A file is somebody's, and may hold anything."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from acorn import Run, StoreError
from acorn._data import described
from acorn._json import shorten, to_plain, words_of
from acorn._record_json import fields_of
from acorn.journal import Entry, RunBegun
from acorn.thread import parse_events
from acorn.thread.retold import entries_of
from acorn.types import Paused
from acorn.web.shelf import Book, Head, Listed, gist_of, strings_in
from acorn.web.wire import Veil

_BIGGEST = 256_000_000
"""Bytes of a file of a run."""


class FileShelf:
    """Runs that were saved to files; no class of theirs is needed."""

    def __init__(self, files: Sequence[Path]) -> None:
        self._files = {_id_of(file, at): file for at, file in enumerate(files)}
        self._books: dict[str, tuple[float, Book]] = {}
        self._lock = threading.Lock()

    @property
    def name(self) -> str:
        return f"{len(self._files)} files" if len(self._files) != 1 else next(iter(self._files.values())).name

    def heads(self, status: Sequence[str], agent: str | None, text: str, before: datetime | None, veil: Veil) -> Listed:
        heads = [head for run_id in self._files if (head := self._head(run_id)) is not None]
        found = [
            {**head, **gist_of(head)._asdict()}
            for head in heads
            if (not status or head["status"] in status)
            and (agent is None or str(head["agent"]).endswith(agent))
            and (not text or self._says(head, text.lower(), veil))
        ]
        return Listed(found, None, len(heads))

    def _says(self, head: Head, wanted: str, veil: Veil) -> bool:
        book = None if head.get("error") and "run" not in head else self.book(head["id"])
        told = any(wanted in text.lower() for text in strings_in(veil.plain(head)))
        return told or (book is not None and bool(book.found(wanted, veil)))

    def _head(self, run_id: str) -> Head | None:
        try:
            book = self.book(run_id)
        except StoreError as error:
            return {"id": run_id, "agent": "", "status": "failed", "error": str(error), "steps": 0, "seconds": 0.0}
        return None if book is None else book.plain_head()

    def book(self, run_id: str) -> Book | None:
        file = self._files.get(run_id)
        if file is None:
            return None
        with self._lock:
            try:
                changed = file.stat().st_mtime
                known = self._books.get(run_id)
                if known is None or known[0] != changed:
                    known = self._books[run_id] = (changed, read_file(file, run_id))
            except OSError as error:
                raise StoreError(f"`{file.name}` cannot be read: {error.strerror or error}.") from error
            return known[1]


def _id_of(file: Path, at: int) -> str:
    """A name for an address: of the file what is plain in it, and its number where that could be another's."""
    plain = "".join(
        letter if letter.isascii() and (letter.isalnum() or letter in "-_") else "-" for letter in file.stem
    )
    return plain if at == 0 else f"{plain}-{at + 1}"


def read_file(file: Path, run_id: str = "") -> Book:
    """The run in a file of `run.to_json()` or `acorn run --save`."""
    if file.stat().st_size > _BIGGEST:
        raise StoreError(f"`{file.name}` is larger than {_BIGGEST:,} bytes; a run of that size is not shown.")
    try:
        text = file.read_bytes()
        if text.lstrip().startswith(b"{"):
            return _book_of_run(Run.from_json(text.decode()), run_id)
        return _book_of(list(entries_of(parse_events(text))), {"id": run_id, "agent": "", "file": file.name})
    except OSError:
        raise
    except StoreError as error:
        raise StoreError(f"`{file.name}` holds no saved run: {error}") from error
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        path = ".".join(str(part) for part in first["loc"])
        raise StoreError(f"`{file.name}` holds no saved run: {f'{path}: ' if path else ''}{first['msg']}") from error
    except Exception as error:
        raise StoreError(f"`{file.name}` holds no saved run: {shorten(words_of(error))}") from error


def _book_of(entries: Sequence[Entry], head: Head) -> Book:
    book = Book({"status": "done", "model": None, "error": None, **head}, "done")
    for entry in entries:
        book.rows.hear(entry)
    return book


def _book_of_run(run: Run[Any], run_id: str) -> Book:
    entries = list(tree_entries(run))
    begun = next((entry.module for entry in entries if isinstance(entry, RunBegun)), "")
    started = run.started or datetime.fromtimestamp(0, UTC)
    is_over = run.stop_reason is not None
    failed = run.error is not None
    head = {
        "id": run_id or run.id,
        "run": run.id,
        "agent": begun,
        "model": run.model,
        "steps": run.steps,
        "usage": fields_of(run.usage),
        "cost": run.cost,
        "started": started.isoformat(),
        "updated": started.isoformat(),
        "seconds": run.seconds,
        "stop_reason": run.stop_reason,
        "error": None if run.error is None else words_of(run.error),
        "input": described(to_plain(run.input)),
        "output": None if isinstance(run.output, Paused) else described(to_plain(run.output)),
    }
    book = _book_of(entries, head)
    book.status = (
        "waiting" if isinstance(run.output, Paused) else "failed" if failed else "done" if is_over else "stopped"
    )
    return book


def tree_entries(run: Run[Any]) -> Iterator[Entry]:
    """What happened in a run and its branches, each branch where it was begun."""
    below = {branch.id: branch for branch in run.branches}
    for entry in run.journal.entries:
        yield entry
        child = below.pop(getattr(entry, "child_id", ""), None)
        if child is not None:
            yield from tree_entries(child)
    for branch in below.values():
        yield from tree_entries(branch)
