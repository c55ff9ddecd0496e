"""The runs of a store, as the page shows them; those of files are in `saved.py`.

A thin reader: it lists, searches, and keeps the books of the runs that were looked at last, so that a run that goes on
is read on from where it was. All of it may be called from any thread, and what goes wrong is a `StoreError`.

Runs that were saved to files, as the page shows them. A file is somebody's, and may hold anything.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from pydantic import ValidationError

from acorn import Run, StoreError
from acorn._inside import (
    describe_blobs,
    describe_error,
    fields_of,
    read_stored_entries,
    read_without_blobs,
    shorten,
    to_json_data,
)
from acorn.journal import Entry, RunStarted
from acorn.stores.port import RunFacts, SearchableStore, Status, Store, StoredRun
from acorn.thread import parse_events
from acorn.thread.to_journal import entries_of
from acorn.types import JsonObject, Paused
from acorn.web.page.rows import Rows, first_text
from acorn.web.page.wire import PageRedactor, entry_event

PAGE = 50
_BOOKS = 8
_WINDOW = 200
"""How many runs are looked through for a text at a time."""
_GISTS = 2000
_PATIENCE = 0.4
"""Seconds that a list may take to read inputs that are not known yet, or to look for a text."""
GOES_ON = ("queued", "running")

Head = JsonObject


@dataclass(eq=False)
class RunView:
    """A run and all below it, as far as it was read."""

    head: Head
    status: str
    rows: Rows = field(default_factory=Rows)
    position: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)
    texts: dict[int, tuple[int, str]] = field(default_factory=dict[int, tuple[int, str]])
    """By row, what it says in small letters, and of which version."""

    @property
    def goes_on(self) -> bool:
        return self.status in GOES_ON

    def plain_head(self) -> Head:
        """What the run is at now; while it goes on, the sums are those of its entries."""
        rows = self.rows
        head = {**self.head, "status": self.status, "entries": len(rows.entries)}
        if (fork := rows.forked_from) is not None:
            head["forked_from"] = fork._asdict()
        if self.goes_on or head.get("usage") is None:
            head |= {"usage": fields_of(rows.usage), "cost": rows.cost, "steps": rows.steps, "seconds": rows.seconds}
        return head

    def found(self, text: str, veil: PageRedactor) -> list[int]:
        """The rows that say this somewhere."""
        wanted = text.lower()
        return [row.id for row in self.rows.all if wanted in self._text_of(row.id, veil)]

    def _text_of(self, row_id: int, veil: PageRedactor) -> str:
        row = self.rows.all[row_id]
        known = self.texts.get(row_id)
        if known is None or known[0] != row.version:
            said = [entry_event(entry) for entry in self.rows.of(row)]
            text = " ".join([row.name, *strings_in(veil.plain(said)), *strings_in(veil.plain(self.rows.results(row)))])
            known = self.texts[row_id] = (row.version, text.lower())
        return known[1]


def strings_in(value: Any) -> Iterator[str]:
    """Every text in plain data."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for key, item in value.items():
            yield key
            yield from strings_in(item)
    elif isinstance(value, list):
        for item in value:
            yield from strings_in(item)
    elif value is not None:
        yield str(value)


class Summary(NamedTuple):
    """A run in two lines."""

    input: str
    output: str


class RunList(NamedTuple):
    """A page of runs, the newest first."""

    runs: list[Head]
    before: str | None
    """Before when the next page begins; None where there is none."""
    looked: int
    """How many runs were looked through for it."""


class RunIndex(Protocol):
    """Where the runs are."""

    @property
    def name(self) -> str: ...
    def heads(
        self, status: Sequence[str], agent: str | None, text: str, before: datetime | None, veil: PageRedactor
    ) -> RunList:
        """Those that say a text somewhere; of what is veiled nothing is found."""
        ...

    def book(self, run_id: str) -> RunView | None:
        """A run as it is now; None where there is none."""
        ...


class StoreRunIndex:
    """The runs of a store."""

    def __init__(self, store: Store, patience: float = _PATIENCE) -> None:
        self.store = store
        self._patience = patience
        self._books: OrderedDict[str, RunView] = OrderedDict()
        self._gists: OrderedDict[tuple[str, datetime], Summary] = OrderedDict()
        """By run and when it last changed."""
        self._lock = threading.Lock()

    @property
    def name(self) -> str:
        return self.store.name

    def heads(
        self, status: Sequence[str], agent: str | None, text: str, before: datetime | None, veil: PageRedactor
    ) -> RunList:
        if text:
            limit = time.monotonic() + self._patience
            return self._search(status, agent, text.lower(), before, veil, limit)
        window, is_last = self._window(status, agent, before, PAGE)
        limit = time.monotonic() + self._patience  # from here on, else a slow store would never tell its inputs
        gists = [self._gist(facts) if time.monotonic() < limit else self._known(facts) for facts in window]
        found = [_listed(facts, gist) for facts, gist in zip(window, gists, strict=True)]
        return RunList(found, None if is_last else window[-1].started.isoformat(), len(window))

    def _search(
        self,
        status: Sequence[str],
        agent: str | None,
        wanted: str,
        before: datetime | None,
        veil: PageRedactor,
        limit: float,
    ) -> RunList:
        """Runs that say a text, until a page is full or the time is up."""
        found: list[Head] = []
        looked, is_last = 0, False
        while not is_last:
            window, is_last = self._window(status, agent, before, _WINDOW)
            may = self._may_say(window, wanted)
            for at, facts in enumerate(window, 1):
                looked += 1
                if facts.id in may and self._says(facts, wanted, veil):
                    found.append(_listed(facts, self._gist(facts)))
                before, rest = facts.started, window[at : at + 1]
                if (rest and rest[0].started == before) or (is_last and not rest):
                    continue
                if len(found) >= PAGE or time.monotonic() > limit:
                    return RunList(found, before.isoformat(), looked)
        return RunList(found, None, looked)

    def _window(
        self, status: Sequence[str], agent: str | None, before: datetime | None, size: int
    ) -> tuple[Sequence[RunFacts], bool]:
        """The runs before a time, and whether these are all. Those of one moment stay together, if they can."""
        wanted: Sequence[Status] = status  # type: ignore[assignment]
        listed = self.store.list(status=wanted, agent=agent, before=before, limit=size + 1)
        if len(listed) <= size:
            return listed, True
        return [facts for facts in listed[:size] if facts.started != listed[size].started] or listed[:size], False

    def _may_say(self, window: Sequence[RunFacts], wanted: str) -> set[str]:
        if not isinstance(self.store, SearchableStore):
            return {facts.id for facts in window}
        told = {facts.id for facts in window if any(wanted in each.lower() for each in _status_facts(facts))}
        return told | set(self.store.search([facts.id for facts in window if facts.id not in told], wanted))

    def _says(self, facts: RunFacts, wanted: str, veil: PageRedactor) -> bool:
        """Whether a text stands somewhere in a run, in what may be shown of it."""
        kept = self.store.read(facts.id)
        head = _header_of_stored(kept[0]) if kept else {}
        said = chain(
            _status_facts(facts),
            strings_in([head.get("input"), head.get("output")]),
            (text for each in kept for entry in each.entries for text in strings_in(_json(entry))),
        )
        return any(wanted in text.lower() and wanted in veil.text(text, len(text)).lower() for text in said)

    def _known(self, facts: RunFacts) -> Summary:
        with self._lock:
            return self._gists.get((facts.id, facts.updated), Summary("", ""))

    def _gist(self, facts: RunFacts) -> Summary:
        """A run in two lines. What never changes again is read once."""
        key = (facts.id, facts.updated)
        with self._lock:
            if key in self._gists:
                self._gists.move_to_end(key)
                return self._gists[key]
        kept = self.store.read(facts.id)
        made = summarize(_header_of_stored(kept[0]) if kept else {})
        with self._lock:
            self._gists[key] = made
            while len(self._gists) > _GISTS:
                self._gists.popitem(last=False)
        return made

    def book(self, run_id: str) -> RunView | None:
        with self._lock:
            book = self._books.get(run_id)
            if book is not None:
                self._books.move_to_end(run_id)
        if book is None:
            kept = self.store.read(run_id)
            if not kept or kept[0].facts.root not in ("", run_id):  # the run of a branch is shown with the whole
                return None
            book = RunView(_header_of_stored(kept[0]), "unknown")
            with self._lock:
                book = self._books.setdefault(run_id, book)
                while len(self._books) > _BOOKS:
                    self._books.popitem(last=False)
        return self._read_on(run_id, book)

    def forget(self, run_id: str) -> None:
        """A run that was deleted."""
        with self._lock:
            self._books.pop(run_id, None)

    def _read_on(self, run_id: str, book: RunView) -> RunView | None:
        with book.lock:
            status, heard = self.store.follow(run_id, book.position)
            if status is None:
                self.forget(run_id)
                return None
            for each in heard:
                try:
                    entry = read_stored_entries([each.entry])[0]
                    book.rows.hear(entry)
                except Exception as error:  # what is kept may be damaged, or of an acorn to come
                    raise StoreError(
                        f"The run {run_id} in {self.name} cannot be read ({shorten(describe_error(error))}); another "
                        f"version "
                        f"of acorn may have written it. It was left as it is."
                    ) from error
                book.position = each.position
            if status != book.status:
                kept = self.store.read(run_id)
                book.head = _header_of_stored(kept[0]) if kept else book.head
                book.status = status
        return book

    def runs_of(self, batch: str) -> list[RunFacts]:
        """The runs of one conversation, the first one first."""
        return sorted(self.store.list(batch=batch, limit=None), key=lambda facts: facts.item or 0)


def _status_facts(facts: RunFacts) -> list[str]:
    said = (facts.id, facts.agent, facts.model, facts.status, facts.error, facts.batch)
    return [each for each in said if each]


def _listed(facts: RunFacts, gist: Summary) -> Head:
    return {**header_of(facts), **gist._asdict()}


def header_of(facts: RunFacts) -> Head:
    """A run at a glance, as plain data."""
    return {
        **fields_of(facts),
        "usage": fields_of(facts.usage),
        "started": facts.started.isoformat(),
        "updated": facts.updated.isoformat(),
    }


def _header_of_stored(kept: StoredRun) -> Head:
    given = _json(kept.header.input)
    record = _json(kept.record)
    run = record.get("run") if isinstance(record, dict) else None
    output = run.get("output") if isinstance(run, dict) and kept.facts.stop_reason else None
    return {**header_of(kept.facts), "input": given, "output": output, "file": _file_of(kept)}


def _file_of(kept: StoredRun) -> str | None:
    notes = _json(kept.header.overrides) if kept.header.overrides else {}
    file = notes.get("file") if isinstance(notes, dict) else None
    return Path(file).name if isinstance(file, str) else None


def summarize(head: Head) -> Summary:
    return Summary(first_text(head.get("input")), first_text(head.get("output")))


def _json(text: str) -> Any:
    try:
        return read_without_blobs(text)
    except Exception:  # it may be damaged, and is left out then
        return None


_BIGGEST = 256_000_000
"""Bytes of a file of a run."""


class FileRunIndex:
    """Runs that were saved to files; no class of theirs is needed."""

    def __init__(self, files: Sequence[Path]) -> None:
        self._files = {_id_of(file, at): file for at, file in enumerate(files)}
        self._books: dict[str, tuple[float, RunView]] = {}
        self._lock = threading.Lock()

    @property
    def name(self) -> str:
        return f"{len(self._files)} files" if len(self._files) != 1 else next(iter(self._files.values())).name

    def heads(
        self, status: Sequence[str], agent: str | None, text: str, before: datetime | None, veil: PageRedactor
    ) -> RunList:
        heads = [head for run_id in self._files if (head := self._head(run_id)) is not None]
        found = [
            {**head, **summarize(head)._asdict()}
            for head in heads
            if (not status or head["status"] in status)
            and (agent is None or str(head["agent"]).endswith(agent))
            and (not text or self._says(head, text.lower(), veil))
        ]
        return RunList(found, None, len(heads))

    def _says(self, head: Head, wanted: str, veil: PageRedactor) -> bool:
        book = None if head.get("error") and "run" not in head else self.book(head["id"])
        told = any(wanted in text.lower() for text in strings_in(veil.plain(head)))
        return told or (book is not None and bool(book.found(wanted, veil)))

    def _head(self, run_id: str) -> Head | None:
        try:
            book = self.book(run_id)
        except StoreError as error:
            return {"id": run_id, "agent": "", "status": "failed", "error": str(error), "steps": 0, "seconds": 0.0}
        return None if book is None else book.plain_head()

    def book(self, run_id: str) -> RunView | None:
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


def read_file(file: Path, run_id: str = "") -> RunView:
    """The run in a file of `run.to_json()` or `acorn run --save`."""
    if file.stat().st_size > _BIGGEST:
        raise StoreError(f"`{file.name}` is larger than {_BIGGEST:,} bytes; a run of that size is not shown.")
    try:
        text = file.read_bytes()
        if text.lstrip().startswith(b"{"):
            return _view_of_run(Run.from_json(text.decode()), run_id)
        return _view_of_entries(list(entries_of(parse_events(text))), {"id": run_id, "agent": "", "file": file.name})
    except OSError:
        raise
    except StoreError as error:
        raise StoreError(f"`{file.name}` holds no saved run: {error}") from error
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        path = ".".join(str(part) for part in first["loc"])
        raise StoreError(f"`{file.name}` holds no saved run: {f'{path}: ' if path else ''}{first['msg']}") from error
    except Exception as error:
        raise StoreError(f"`{file.name}` holds no saved run: {shorten(describe_error(error))}") from error


def _view_of_entries(entries: Sequence[Entry], head: Head) -> RunView:
    book = RunView({"status": "done", "model": None, "error": None, **head}, "done")
    for entry in entries:
        book.rows.hear(entry)
    return book


def _view_of_run(run: Run, run_id: str) -> RunView:
    entries = list(tree_entries(run))
    begun = next((entry.module for entry in entries if isinstance(entry, RunStarted)), "")
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
        "error": None if run.error is None else describe_error(run.error),
        "input": describe_blobs(to_json_data(run.input)),
        "output": None if isinstance(run.output, Paused) else describe_blobs(to_json_data(run.output)),
    }
    book = _view_of_entries(entries, head)
    book.status = (
        "waiting" if isinstance(run.output, Paused) else "failed" if failed else "done" if is_over else "stopped"
    )
    return book


def tree_entries(run: Run) -> Iterator[Entry]:
    """What happened in a run and its branches, each branch where it was begun."""
    below = {branch.id: branch for branch in run.branches}
    for entry in run.journal.entries:
        yield entry
        child = below.pop(getattr(entry, "child_id", ""), None)
        if child is not None:
            yield from tree_entries(child)
    for branch in below.values():
        yield from tree_entries(branch)
