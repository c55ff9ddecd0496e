"""The runs of a store or of files, as the page lists, searches and shows them.

The index caches the runs that were viewed last, so that it reads only the new entries of a run in progress. All
methods may be called from any thread. Files and stores may contain anything; unreadable data raises `StoreError`.
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
from typing import NamedTuple, Protocol

from pydantic import ValidationError

from acorn import Run, StoreError
from acorn._inside import (
    describe_blobs,
    describe_error,
    read_stored_entries,
    read_without_blobs,
    record_to_json,
    shorten,
    to_json_data,
)
from acorn.journal import Entry, RunStarted
from acorn.stores.port import RunFacts, SearchableStore, Status, Store, StoredRun
from acorn.thread import parse_events
from acorn.thread.to_journal import thread_entries
from acorn.types import JsonObject, Paused, is_json_object
from acorn.web.page.events import entry_event, strings_in
from acorn.web.page.rows import Rows, first_text
from acorn.web.redact import PageRedactor

PAGE_SIZE = 50
_MAX_VIEWS = 8
_MAX_SUMMARIES = 2000
_SEARCH_BATCH = 200
"""How many runs a search reads from the store at a time."""
_TIME_LIMIT = 0.4
"""Seconds that a list may take to read inputs that are not cached, or to search for a text."""
_MAX_FILE_SIZE = 256_000_000
ACTIVE = ("queued", "running")

Header = JsonObject
"""The facts of a run, with its input and output, as JSON data."""


@dataclass(eq=False)
class RunView:
    """A run tree as far as it was read."""

    header: Header
    status: str
    rows: Rows = field(default_factory=Rows)
    position: int = 0
    """The position in the store up to which entries were read."""
    lock: threading.Lock = field(default_factory=threading.Lock)
    _search_texts: dict[int, tuple[int, str]] = field(default_factory=dict[int, tuple[int, str]])
    """By row, its version and its text in lower case."""

    @property
    def is_active(self) -> bool:
        return self.status in ACTIVE

    def current_header(self) -> Header:
        """Return the header with the current status. Totals of an active run are computed from its entries."""
        rows = self.rows
        header = {**self.header, "status": self.status, "entries": len(rows.entries)}
        if (fork := rows.forked_from) is not None:
            header["forked_from"] = fork._asdict()
        if self.is_active or header.get("usage") is None:
            header |= {
                "usage": record_to_json(rows.usage),
                "cost": rows.cost,
                "steps": rows.steps,
                "seconds": rows.seconds,
            }
        return header

    def search(self, text: str, redactor: PageRedactor) -> list[int]:
        """Return the ids of the rows that contain a text."""
        wanted = text.lower()
        return [row.id for row in self.rows.all if wanted in self._search_text(row.id, redactor)]

    def _search_text(self, row_id: int, redactor: PageRedactor) -> str:
        row = self.rows.all[row_id]
        cached = self._search_texts.get(row_id)
        if cached is None or cached[0] != row.version:
            events = [entry_event(entry) for entry in self.rows.entries_of(row)]
            results = redactor.data(self.rows.results_of(row))
            text = " ".join([row.name, *strings_in(redactor.data(events)), *strings_in(results)])
            cached = self._search_texts[row_id] = (row.version, text.lower())
        return cached[1]


class Summary(NamedTuple):
    """The input and the output of a run, one line each."""

    input: str
    output: str


class RunList(NamedTuple):
    """A page of runs, newest first."""

    runs: list[Header]
    before: str | None
    """The time before which the next page starts, or None on the last page."""
    searched: int
    """How many runs were read for this page."""


class RunIndex(Protocol):
    """A collection of runs that the page can show."""

    @property
    def name(self) -> str: ...
    def list_runs(
        self, status: Sequence[str], agent: str | None, text: str, before: datetime | None, redactor: PageRedactor
    ) -> RunList:
        """Return the runs that contain a text. Redacted parts are not searched."""
        ...

    def view(self, run_id: str) -> RunView | None:
        """Return a run in its current state, or None if it does not exist."""
        ...


class StoreRunIndex:
    """The runs of a store."""

    def __init__(self, store: Store, time_limit: float = _TIME_LIMIT) -> None:
        self.store = store
        self._time_limit = time_limit
        self._views: OrderedDict[str, RunView] = OrderedDict()
        self._summaries: OrderedDict[tuple[str, datetime], Summary] = OrderedDict()
        """By run id and time of the last change."""
        self._lock = threading.Lock()

    @property
    def name(self) -> str:
        return self.store.name

    def list_runs(
        self, status: Sequence[str], agent: str | None, text: str, before: datetime | None, redactor: PageRedactor
    ) -> RunList:
        if text:
            deadline = time.monotonic() + self._time_limit
            return self._search(status, agent, text.lower(), before, redactor, deadline)
        page, is_last = self._page(status, agent, before, PAGE_SIZE)
        # The time starts after the first query. Otherwise a slow store would never show any inputs.
        deadline = time.monotonic() + self._time_limit
        runs = [
            _with_summary(facts, self._summary(facts) if time.monotonic() < deadline else self._cached_summary(facts))
            for facts in page
        ]
        return RunList(runs, None if is_last else page[-1].started.isoformat(), len(page))

    def _search(
        self,
        status: Sequence[str],
        agent: str | None,
        wanted: str,
        before: datetime | None,
        redactor: PageRedactor,
        deadline: float,
    ) -> RunList:
        """Return runs that contain a text, until the page is full or the time is up."""
        matches: list[Header] = []
        searched, is_last = 0, False
        while not is_last:
            batch, is_last = self._page(status, agent, before, _SEARCH_BATCH)
            candidates = self._candidates(batch, wanted)
            for number, facts in enumerate(batch, 1):
                searched += 1
                if facts.id in candidates and self._contains(facts, wanted, redactor):
                    matches.append(_with_summary(facts, self._summary(facts)))
                before, following = facts.started, batch[number : number + 1]
                if (following and following[0].started == before) or (is_last and not following):
                    continue
                if len(matches) >= PAGE_SIZE or time.monotonic() > deadline:
                    return RunList(matches, before.isoformat(), searched)
        return RunList(matches, None, searched)

    def _page(
        self, status: Sequence[str], agent: str | None, before: datetime | None, size: int
    ) -> tuple[Sequence[RunFacts], bool]:
        """Return the runs before a time, and whether they are the last. Runs with equal times stay on one page."""
        wanted: Sequence[Status] = status  # type: ignore[assignment]
        runs = self.store.list(status=wanted, agent=agent, before=before, limit=size + 1)
        if len(runs) <= size:
            return runs, True
        return [facts for facts in runs[:size] if facts.started != runs[size].started] or runs[:size], False

    def _candidates(self, batch: Sequence[RunFacts], wanted: str) -> set[str]:
        """Return the ids of the runs that may contain a text, as far as the store can tell."""
        if not isinstance(self.store, SearchableStore):
            return {facts.id for facts in batch}
        matching = {facts.id for facts in batch if any(wanted in text.lower() for text in _fact_texts(facts))}
        return matching | set(self.store.search([facts.id for facts in batch if facts.id not in matching], wanted))

    def _contains(self, facts: RunFacts, wanted: str, redactor: PageRedactor) -> bool:
        """Return whether a run contains a text outside of its redacted parts."""
        runs = self.store.read(facts.id)
        header = _header_of_stored(runs[0]) if runs else {}
        texts = chain(
            _fact_texts(facts),
            strings_in([header.get("input"), header.get("output")]),
            (text for run in runs for entry in run.entries for text in strings_in(_read_json(entry))),
        )
        return any(wanted in text.lower() and wanted in redactor.text(text, len(text)).lower() for text in texts)

    def _cached_summary(self, facts: RunFacts) -> Summary:
        with self._lock:
            return self._summaries.get((facts.id, facts.updated), Summary("", ""))

    def _summary(self, facts: RunFacts) -> Summary:
        """Return the summary of a run, and cache it until the run changes."""
        key = (facts.id, facts.updated)
        with self._lock:
            if key in self._summaries:
                self._summaries.move_to_end(key)
                return self._summaries[key]
        runs = self.store.read(facts.id)
        summary = summarize(_header_of_stored(runs[0]) if runs else {})
        with self._lock:
            self._summaries[key] = summary
            while len(self._summaries) > _MAX_SUMMARIES:
                self._summaries.popitem(last=False)
        return summary

    def view(self, run_id: str) -> RunView | None:
        with self._lock:
            view = self._views.get(run_id)
            if view is not None:
                self._views.move_to_end(run_id)
        if view is None:
            runs = self.store.read(run_id)
            if not runs or runs[0].facts.root not in ("", run_id):  # A branch is shown as part of its root run.
                return None
            view = RunView(_header_of_stored(runs[0]), "unknown")
            with self._lock:
                view = self._views.setdefault(run_id, view)
                while len(self._views) > _MAX_VIEWS:
                    self._views.popitem(last=False)
        return self._refresh(run_id, view)

    def forget(self, run_id: str) -> None:
        """Remove a deleted run from the cache."""
        with self._lock:
            self._views.pop(run_id, None)

    def _refresh(self, run_id: str, view: RunView) -> RunView | None:
        """Read the new entries of a run."""
        with view.lock:
            status, journal_rows = self.store.follow(run_id, view.position)
            if status is None:
                self.forget(run_id)
                return None
            for journal_row in journal_rows:
                try:
                    view.rows.add(read_stored_entries([journal_row.entry])[0])
                except Exception as error:  # The entry may be damaged, or a later version of acorn wrote it.
                    raise StoreError(
                        f"Cannot read run {run_id} in {self.name}: {shorten(describe_error(error))}. Another version "
                        f"of acorn may have written it. The run was not changed."
                    ) from error
                view.position = journal_row.position
            if status != view.status:
                runs = self.store.read(run_id)
                view.header = _header_of_stored(runs[0]) if runs else view.header
                view.status = status
        return view

    def runs_of(self, batch: str) -> list[RunFacts]:
        """Return the runs of one conversation, oldest first."""
        return sorted(self.store.list(batch=batch, limit=None), key=lambda facts: facts.item or 0)


def _fact_texts(facts: RunFacts) -> list[str]:
    texts = (facts.id, facts.agent, facts.model, facts.status, facts.error, facts.batch)
    return [text for text in texts if text]


def _with_summary(facts: RunFacts, summary: Summary) -> Header:
    return {**header_of(facts), **summary._asdict()}


def header_of(facts: RunFacts) -> Header:
    """Return the facts of a run as JSON data."""
    return {
        **record_to_json(facts),
        "usage": record_to_json(facts.usage),
        "started": facts.started.isoformat(),
        "updated": facts.updated.isoformat(),
    }


def _header_of_stored(stored: StoredRun) -> Header:
    record = _read_json(stored.record)
    run = record.get("run") if is_json_object(record) else None
    output = run.get("output") if is_json_object(run) and stored.facts.stop_reason else None
    overrides = _read_json(stored.header.overrides) if stored.header.overrides else None
    file = overrides.get("file") if is_json_object(overrides) else None
    return {
        **header_of(stored.facts),
        "input": _read_json(stored.header.input),
        "output": output,
        "file": Path(file).name if isinstance(file, str) else None,
    }


def summarize(header: Header) -> Summary:
    """Return the input and the output of a run, one line each."""
    return Summary(first_text(header.get("input")), first_text(header.get("output")))


def _read_json(text: str) -> object:
    try:
        return read_without_blobs(text)
    except Exception:  # Damaged data is omitted.
        return None


class FileRunIndex:
    """The runs that were saved to files. Their classes are not needed."""

    def __init__(self, files: Sequence[Path]) -> None:
        self._files = {_id_of(file, number): file for number, file in enumerate(files)}
        self._views: dict[str, tuple[float, RunView]] = {}
        """By run id, the modification time of the file and its view."""
        self._lock = threading.Lock()

    @property
    def name(self) -> str:
        return f"{len(self._files)} files" if len(self._files) != 1 else next(iter(self._files.values())).name

    def list_runs(
        self, status: Sequence[str], agent: str | None, text: str, before: datetime | None, redactor: PageRedactor
    ) -> RunList:
        headers = [header for run_id in self._files if (header := self._header(run_id)) is not None]
        matches = [
            {**header, **summarize(header)._asdict()}
            for header in headers
            if (not status or header["status"] in status)
            and (agent is None or str(header["agent"]).endswith(agent))
            and (not text or self._contains(header, text.lower(), redactor))
        ]
        return RunList(matches, None, len(headers))

    def _contains(self, header: Header, wanted: str, redactor: PageRedactor) -> bool:
        if any(wanted in text.lower() for text in strings_in(redactor.data(header))):
            return True
        view = None if header.get("error") and "run" not in header else self.view(header["id"])
        return view is not None and bool(view.search(wanted, redactor))

    def _header(self, run_id: str) -> Header | None:
        try:
            view = self.view(run_id)
        except StoreError as error:
            return {"id": run_id, "agent": "", "status": "failed", "error": str(error), "steps": 0, "seconds": 0.0}
        return None if view is None else view.current_header()

    def view(self, run_id: str) -> RunView | None:
        file = self._files.get(run_id)
        if file is None:
            return None
        with self._lock:
            try:
                modified = file.stat().st_mtime
                cached = self._views.get(run_id)
                if cached is None or cached[0] != modified:
                    cached = self._views[run_id] = (modified, read_file(file, run_id))
            except OSError as error:
                raise StoreError(f"Cannot read `{file.name}`: {error.strerror or error}.") from error
            return cached[1]


def _id_of(file: Path, number: int) -> str:
    """Return a URL-safe id for a file, with its number unless it is the first."""
    safe = "".join(char if char.isascii() and (char.isalnum() or char in "-_") else "-" for char in file.stem)
    return safe if number == 0 else f"{safe}-{number + 1}"


def read_file(file: Path, run_id: str = "") -> RunView:
    """Read a run that was saved by `run.to_json()` or `acorn run --save`."""
    if file.stat().st_size > _MAX_FILE_SIZE:
        raise StoreError(f"`{file.name}` is too large: a saved run may have at most {_MAX_FILE_SIZE:,} bytes.")
    try:
        text = file.read_bytes()
        if text.lstrip().startswith(b"{"):
            return _view_of_run(Run.from_json(text.decode()), run_id)
        return _view_of_entries(
            list(thread_entries(parse_events(text))), {"id": run_id, "agent": "", "file": file.name}
        )
    except OSError:
        raise
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        path = ".".join(str(part) for part in first["loc"])
        raise _not_a_run(file, f"{f'{path}: ' if path else ''}{first['msg']}") from error
    except StoreError as error:
        raise _not_a_run(file, str(error)) from error
    except Exception as error:
        raise _not_a_run(file, shorten(describe_error(error))) from error


def _not_a_run(file: Path, reason: str) -> StoreError:
    return StoreError(f"`{file.name}` is not a saved run: {reason}")


def _view_of_entries(entries: Sequence[Entry], header: Header) -> RunView:
    view = RunView({"status": "done", "model": None, "error": None, **header}, "done")
    for entry in entries:
        view.rows.add(entry)
    return view


def _view_of_run(run: Run, run_id: str) -> RunView:
    entries = list(tree_entries(run))
    started = (run.started or datetime.fromtimestamp(0, UTC)).isoformat()
    is_paused = isinstance(run.output, Paused)
    header = {
        "id": run_id or run.id,
        "run": run.id,
        "agent": next((entry.module for entry in entries if isinstance(entry, RunStarted)), ""),
        "model": run.model,
        "steps": run.steps,
        "usage": record_to_json(run.usage),
        "cost": run.cost,
        "started": started,
        "updated": started,
        "seconds": run.seconds,
        "stop_reason": run.stop_reason,
        "error": None if run.error is None else describe_error(run.error),
        "input": describe_blobs(to_json_data(run.input)),
        "output": None if is_paused else describe_blobs(to_json_data(run.output)),
    }
    view = _view_of_entries(entries, header)
    ended = "done" if run.stop_reason is not None else "stopped"
    view.status = "waiting" if is_paused else "failed" if run.error is not None else ended
    return view


def tree_entries(run: Run) -> Iterator[Entry]:
    """Yield the entries of a run, with the entries of each branch after the entry that started it."""
    branches = {branch.id: branch for branch in run.branches}
    for entry in run.journal.entries:
        yield entry
        branch = branches.pop(getattr(entry, "child_id", ""), None)
        if branch is not None:
            yield from tree_entries(branch)
    for branch in branches.values():
        yield from tree_entries(branch)
