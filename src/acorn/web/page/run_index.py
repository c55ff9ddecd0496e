"""Indexes of stored and saved runs. The page uses an index to list, search and display runs.

An index caches the views of recent runs, so that it reads only the new journal entries of a run in progress. Any thread
may call any method. Files and stores may contain damaged data. In this case, the methods raise `StoreError`.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import chain
from pathlib import Path
from typing import NamedTuple

from acorn import Run, StoreError
from acorn._inside import (
    Redactor,
    describe_blobs,
    describe_error,
    read_stored_entries,
    read_without_blobs,
    record_to_json,
    to_json_data,
    tree_entries,
)
from acorn._inside.run_tree import Row, RunTree, tree_of
from acorn._inside.runs import translate_read_errors
from acorn.journal import RunStarted
from acorn.stores.port import RunFacts, SearchableStore, Status, Store, StoredRun
from acorn.types import JsonObject, Paused, is_json_list, is_json_object
from acorn.web.page.rows import entry_event, row_json, summary_line

PAGE_SIZE = 50
ACTIVE = ("queued", "running")
"""The statuses of runs that are in progress or will start."""
_MAX_VIEWS = 8
_MAX_SUMMARIES = 2000
_SEARCH_BATCH = 200
"""The number of runs that a search requests from the store at a time."""
_TIME_LIMIT = 0.4
"""The maximum number of seconds in which a list reads summaries that are not cached, or searches for a text."""
_MAX_FILE_SIZE = 256_000_000

Header = JsonObject
"""JSON data about a run, such as its id, status, totals, input and output."""


@dataclass(eq=False)
class RunView:
    """A run and its branches as rows of the waterfall view.

    The view is updated while the run continues.
    """

    header: Header
    tree: RunTree = field(default_factory=RunTree)
    position: int = 0
    """The position of the last loaded entry in the store."""
    lock: threading.RLock = field(default_factory=threading.RLock)
    _search_texts: dict[int, tuple[int, str]] = field(default_factory=dict[int, tuple[int, str]])
    """Maps a row id to the version of the row and its text in lower case."""

    @property
    def is_active(self) -> bool:
        return self.header["status"] in ACTIVE

    def current_header(self) -> Header:
        """Return the header of the run. While the run is in progress, the totals are computed from its entries."""
        tree = self.tree
        header = {**self.header, "entries": len(tree.entries)}
        if (fork := tree.forked_from) is not None:
            header["forked_from"] = fork._asdict()
        if self.is_active:
            usage = record_to_json(tree.usage)
            header |= {"usage": usage, "cost": tree.cost, "steps": tree.steps, "seconds": tree.seconds}
        return header

    def page_data(self, redactor: Redactor, *, is_own: bool = False, since: int = 0) -> JsonObject:
        """Return the header of the run, the rows that changed after a version, and the current version, as JSON data.

        The page requests the details of a row separately. Another thread may hold the lock while it waits for the
        store.
        """
        with self.lock:
            return {
                "head": redactor.data({**self.current_header(), "own": is_own}),
                "rows": [row_json(row, redactor) for row in self.tree.changed_since(since)],
                "version": len(self.tree.entries),
            }

    def search(self, text: str, redactor: Redactor) -> list[int]:
        """Return the ids of the rows that contain a text. Uppercase and lowercase letters are equal."""
        query = text.lower()
        return [row.id for row in self.tree.rows if query in self._search_text(row, redactor)]

    def _search_text(self, row: Row, redactor: Redactor) -> str:
        cached = self._search_texts.get(row.id)
        if cached is None or cached[0] != row.version:
            events = [entry_event(entry) for entry in row.entries]
            results = redactor.data(to_json_data(self.tree.results_of(row)))
            text = " ".join([row.name, *_strings_in(redactor.data(events)), *_strings_in(results)])
            cached = self._search_texts[row.id] = (row.version, text.lower())
        return cached[1]


class RunFilter(NamedTuple):
    """The conditions that a run must meet to be in the list of runs."""

    status: Sequence[str]
    """The accepted statuses. An empty list accepts every status."""
    agent: str | None
    text: str
    """A text that the run must contain outside of its redacted parts, or an empty string."""
    before: datetime | None
    """The time before which the run must have started."""


class RunList(NamedTuple):
    """One page of the list of runs, newest run first."""

    runs: list[Header]
    before: str | None
    """The time before which the runs of the next page started, or None on the last page."""
    searched: int
    """The number of runs that were checked for this page."""


class StoreRunIndex:
    """An index of the runs in a store. It caches recent views and summaries."""

    def __init__(self, store: Store, time_limit: float = _TIME_LIMIT) -> None:
        self.store = store
        self._time_limit = time_limit
        self._views: dict[str, RunView] = {}
        """The views of recent runs. The last one was used last."""
        self._summaries: dict[tuple[str, datetime], Header] = {}
        """Maps the id and the modification time of a run to its summary."""
        self._lock = threading.Lock()

    @property
    def name(self) -> str:
        return self.store.name

    def list_runs(self, conditions: RunFilter, redactor: Redactor) -> RunList:
        """Return one page of the runs that meet the conditions.

        The condition `before` selects the page.
        """
        if conditions.text:
            return self._search(conditions, redactor, time.monotonic() + self._time_limit)
        page, is_last = self._page(conditions, PAGE_SIZE)
        # The time starts after the first query. Otherwise a list from a slow store would never contain inputs.
        deadline = time.monotonic() + self._time_limit
        runs = [{**record_to_json(facts), **self._summary(facts, deadline)} for facts in page]
        return RunList(runs, None if is_last else page[-1].started.isoformat(), len(page))

    def _search(self, conditions: RunFilter, redactor: Redactor, deadline: float) -> RunList:
        """Return the runs that contain a text.

        The search stops when one page of the list is full or the deadline has passed.
        """
        matches: list[Header] = []
        query, searched, is_last = conditions.text.lower(), 0, False
        while not is_last:
            batch, is_last = self._page(conditions, _SEARCH_BATCH)
            candidates = self._candidates(batch, query)
            for number, facts in enumerate(batch, 1):
                searched += 1
                if facts.id in candidates and self._contains(facts, query, redactor):
                    matches.append({**record_to_json(facts), **self._summary(facts)})
                conditions, following = conditions._replace(before=facts.started), batch[number : number + 1]
                if (following and following[0].started == facts.started) or (is_last and not following):
                    continue
                if len(matches) >= PAGE_SIZE or time.monotonic() > deadline:
                    return RunList(matches, facts.started.isoformat(), searched)
        return RunList(matches, None, searched)

    def _page(self, conditions: RunFilter, size: int) -> tuple[Sequence[RunFacts], bool]:
        """Return one page of runs, and True if no more runs follow."""
        status: Sequence[Status] = conditions.status  # type: ignore[assignment]
        runs = self.store.list(status=status, agent=conditions.agent, before=conditions.before, limit=size + 1)
        if len(runs) <= size:
            return runs, True
        # The next page starts before a time, so runs with equal start times must be on one page.
        return [facts for facts in runs[:size] if facts.started != runs[size].started] or runs[:size], False

    def _candidates(self, batch: Sequence[RunFacts], query: str) -> set[str]:
        """Return the ids of those runs that may contain a text.

        If the store can search, only these runs must be read. Otherwise, all runs of the batch must be read.
        """
        if not isinstance(self.store, SearchableStore):
            return {facts.id for facts in batch}
        matching = {facts.id for facts in batch if any(query in text.lower() for text in _fact_texts(facts))}
        return matching | set(self.store.search([facts.id for facts in batch if facts.id not in matching], query))

    def _contains(self, facts: RunFacts, query: str, redactor: Redactor) -> bool:
        """Return True if a run contains a text that the page would display. Redacted secrets are not searched."""
        runs = self.store.read(facts.id)
        header = _stored_header(runs[0]) if runs else {}
        texts = chain(
            _fact_texts(facts),
            _strings_in([header.get("input"), header.get("output")]),
            (text for run in runs for entry in run.entries for text in _strings_in(_read_json(entry))),
        )
        return any(query in text.lower() and query in redactor.text(text, len(text)).lower() for text in texts)

    def _summary(self, facts: RunFacts, deadline: float | None = None) -> Header:
        """Return single-line texts of the input and the output of a run for the list of runs.

        If the texts are not in the cache and the deadline has passed, return empty texts.
        """
        key = (facts.id, facts.updated)
        summary = self._summaries.get(key)
        if summary is None:
            if deadline is not None and time.monotonic() >= deadline:
                return {"input": "", "output": ""}
            runs = self.store.read(facts.id)
            summary = _summarize(_stored_header(runs[0]) if runs else {})
            if len(self._summaries) >= _MAX_SUMMARIES:
                self._summaries.clear()
            self._summaries[key] = summary
        return summary

    def view(self, run_id: str) -> RunView | None:
        """Return the view of a run with its newest journal entries, or None if the run does not exist."""
        view = self._views.get(run_id)
        if view is None:
            runs = self.store.read(run_id)
            if not runs or runs[0].facts.root not in ("", run_id):  # The view of the root run contains its branches.
                return None
            view = RunView(_stored_header(runs[0]))
        with self._lock:
            view = self._views[run_id] = self._views.pop(run_id, view)
            if len(self._views) > _MAX_VIEWS:
                del self._views[next(iter(self._views))]
        return self._refresh(run_id, view)

    def forget(self, run_id: str) -> None:
        """Remove a deleted run from the cache."""
        with self._lock:
            self._views.pop(run_id, None)

    def _refresh(self, run_id: str, view: RunView) -> RunView | None:
        """Read the new journal entries of a run into its view, and return the view.

        Return None if the run was deleted.
        """
        with view.lock:
            status, journal_rows = self.store.follow(run_id, view.position)
            if status is None:
                self.forget(run_id)
                return None
            with translate_read_errors(run_id, self.store):
                for journal_row in journal_rows:
                    view.tree.add(read_stored_entries([journal_row.entry])[0])
                    view.position = journal_row.position
            if status != view.header["status"]:
                runs = self.store.read(run_id)
                # A status that is newer than the entries of the view would end its streams too early.
                view.header = {**(_stored_header(runs[0]) if runs else view.header), "status": status}
        return view


def _fact_texts(facts: RunFacts) -> list[str]:
    return [*filter(None, (facts.id, facts.agent, facts.model, facts.status, facts.error, facts.batch))]


def _stored_header(stored: StoredRun) -> Header:
    record = _read_json(stored.record)
    run = record.get("run") if is_json_object(record) else None
    output = run.get("output") if is_json_object(run) and stored.facts.stop_reason else None
    overrides = _read_json(stored.header.overrides) if stored.header.overrides else None
    file = overrides.get("file") if is_json_object(overrides) else None
    return {
        **record_to_json(stored.facts),
        "input": _read_json(stored.header.input),
        "output": output,
        "file": Path(file).name if isinstance(file, str) else None,
    }


def _summarize(header: Header) -> Header:
    """Return a summary for the list of runs: the input and the output of a run as single lines of text."""
    return {name: summary_line(header.get(name)) for name in ("input", "output")}


def _strings_in(value: object) -> Iterator[str]:
    """Yield every JSON key and every value in JSON data as text."""
    if is_json_object(value):
        value = list(chain.from_iterable(value.items()))
    if is_json_list(value):
        for item in value:
            yield from _strings_in(item)
    elif value is not None:
        yield str(value)


def _read_json(text: str) -> object:
    try:
        return read_without_blobs(text)
    except Exception:  # Damaged data is omitted.
        return None


class FileRunIndex:
    """An index of runs in saved files.

    It does not import the classes of the agents.
    """

    def __init__(self, files: Sequence[Path]) -> None:
        self._files = {_file_id(file, number): file for number, file in enumerate(files)}
        self._views: dict[str, tuple[float, RunView]] = {}
        """Maps a run id to the modification time of its file and the view of the run."""
        self._lock = threading.Lock()

    @property
    def name(self) -> str:
        return f"{len(self._files)} files" if len(self._files) != 1 else next(iter(self._files.values())).name

    def list_runs(self, conditions: RunFilter, redactor: Redactor) -> RunList:
        status, agent, text, _ = conditions
        headers = [header for run_id in self._files if (header := self._header(run_id)) is not None]
        matches = [
            {**header, **_summarize(header)}
            for header in headers
            if (not status or header["status"] in status)
            and (agent is None or str(header["agent"]).endswith(agent))
            and (not text or self._contains(header, text.lower(), redactor))
        ]
        return RunList(matches, None, len(headers))

    def _contains(self, header: Header, query: str, redactor: Redactor) -> bool:
        if any(query in text.lower() for text in _strings_in(redactor.data(header))):
            return True
        view = None if header.get("error") and "run" not in header else self.view(header["id"])
        return view is not None and bool(view.search(query, redactor))

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
                    cached = self._views[run_id] = (modified, load_saved_run(file, run_id))
            except OSError as error:
                raise StoreError(f"Cannot read `{file.name}`: {error.strerror or error}.") from error
            return cached[1]


RunIndex = StoreRunIndex | FileRunIndex
"""A collection of runs that the page can list and display."""


def _file_id(file: Path, number: int) -> str:
    """Return an id for a file that can be used in a URL.

    The id is the file name without special characters. `number` is the index of the file in the list of files. If it is
    not 0, a number at the end makes the id unique.
    """
    safe = "".join(char if char.isascii() and (char.isalnum() or char in "-_") else "-" for char in file.stem)
    return safe if number == 0 else f"{safe}-{number + 1}"


def load_saved_run(file: Path, run_id: str = "") -> RunView:
    """Load a run from a file that `acorn run --save` or `run.to_json()` wrote."""
    if file.stat().st_size > _MAX_FILE_SIZE:
        raise StoreError(f"`{file.name}` is too large: a saved run may have at most {_MAX_FILE_SIZE:,} bytes.")
    try:
        return _view_of_run(Run.from_json(file.read_text(encoding="utf-8")), run_id)
    except (StoreError, UnicodeDecodeError) as error:
        reason = str(error).removeprefix("Cannot read the saved run: ")
        raise StoreError(f"`{file.name}` is not a saved run: {reason}") from error


def _view_of_run(run: Run, run_id: str) -> RunView:
    entries = list(tree_entries(run))
    started = (run.started or datetime.fromtimestamp(0, UTC)).isoformat()
    is_paused = isinstance(run.output, Paused)
    ended = "done" if run.stop_reason is not None else "stopped"
    status = "waiting" if is_paused else "failed" if run.error is not None else ended
    header = {
        "id": run_id or run.id,
        "run": run.id,
        "status": status,
        "agent": next((entry.module for entry in entries if isinstance(entry, RunStarted)), ""),
        **{name: getattr(run, name) for name in ("model", "steps", "cost", "seconds", "stop_reason")},
        "usage": record_to_json(run.usage),
        "started": started,
        "updated": started,
        "error": None if run.error is None else describe_error(run.error),
        "input": describe_blobs(to_json_data(run.input)),
        "output": None if is_paused else describe_blobs(to_json_data(run.output)),
    }
    return RunView(header, tree_of(entries))
