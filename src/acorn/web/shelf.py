"""The runs of a store, as the page shows them; those of files are in `saved.py`.

A thin reader: it lists, searches, and keeps the books of the runs that were looked at last, so that a run that goes on
is read on from where it was. All of it may be called from any thread, and what goes wrong is a `StoreError`.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from acorn import StoreError
from acorn._data import without_data
from acorn._json import shorten, words_of
from acorn._record_json import fields_of, read_entries
from acorn.stores.port import Kept, RunFacts, Searches, Status, Store
from acorn.web.rows import Rows, first_text
from acorn.web.wire import Veil, entry_event

PAGE = 50
_BOOKS = 8
_WINDOW = 200
"""How many runs are looked through for a text at a time."""
_GISTS = 2000
_PATIENCE = 0.4
"""Seconds that a list may take to read inputs that are not known yet, or to look for a text."""
GOES_ON = ("queued", "running")

Head = dict[str, Any]


@dataclass(eq=False)
class Book:
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

    def found(self, text: str, veil: Veil) -> list[int]:
        """The rows that say this somewhere."""
        wanted = text.lower()
        return [row.id for row in self.rows.all if wanted in self._text_of(row.id, veil)]

    def _text_of(self, row_id: int, veil: Veil) -> str:
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


class Gist(NamedTuple):
    """A run in two lines."""

    input: str
    output: str


class Listed(NamedTuple):
    """A page of runs, the newest first."""

    runs: list[Head]
    before: str | None
    """Before when the next page begins; None where there is none."""
    looked: int
    """How many runs were looked through for it."""


class Shelf(Protocol):
    """Where the runs are."""

    @property
    def name(self) -> str: ...
    def heads(self, status: Sequence[str], agent: str | None, text: str, before: datetime | None, veil: Veil) -> Listed:
        """Those that say a text somewhere; of what is veiled nothing is found."""
        ...

    def book(self, run_id: str) -> Book | None:
        """A run as it is now; None where there is none."""
        ...


class StoreShelf:
    """The runs of a store."""

    def __init__(self, store: Store, patience: float = _PATIENCE) -> None:
        self.store = store
        self._patience = patience
        self._books: OrderedDict[str, Book] = OrderedDict()
        self._gists: OrderedDict[tuple[str, datetime], Gist] = OrderedDict()
        """By run and when it last changed."""
        self._lock = threading.Lock()

    @property
    def name(self) -> str:
        return self.store.name

    def heads(self, status: Sequence[str], agent: str | None, text: str, before: datetime | None, veil: Veil) -> Listed:
        if text:
            limit = time.monotonic() + self._patience
            return self._search(status, agent, text.lower(), before, veil, limit)
        window, is_last = self._window(status, agent, before, PAGE)
        limit = time.monotonic() + self._patience  # from here on, else a slow store would never tell its inputs
        gists = [self._gist(facts) if time.monotonic() < limit else self._known(facts) for facts in window]
        found = [_listed(facts, gist) for facts, gist in zip(window, gists, strict=True)]
        return Listed(found, None if is_last else window[-1].started.isoformat(), len(window))

    def _search(
        self, status: Sequence[str], agent: str | None, wanted: str, before: datetime | None, veil: Veil, limit: float
    ) -> Listed:
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
                    return Listed(found, before.isoformat(), looked)
        return Listed(found, None, looked)

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
        if not isinstance(self.store, Searches):
            return {facts.id for facts in window}
        told = {facts.id for facts in window if any(wanted in each.lower() for each in _facts_said(facts))}
        return told | set(self.store.holding([facts.id for facts in window if facts.id not in told], wanted))

    def _says(self, facts: RunFacts, wanted: str, veil: Veil) -> bool:
        """Whether a text stands somewhere in a run, in what may be shown of it."""
        kept = self.store.read(facts.id)
        head = _head_of_kept(kept[0]) if kept else {}
        said = chain(
            _facts_said(facts),
            strings_in([head.get("input"), head.get("output")]),
            (text for each in kept for entry in each.entries for text in strings_in(_json(entry))),
        )
        return any(wanted in text.lower() and wanted in veil.text(text, len(text)).lower() for text in said)

    def _known(self, facts: RunFacts) -> Gist:
        with self._lock:
            return self._gists.get((facts.id, facts.updated), Gist("", ""))

    def _gist(self, facts: RunFacts) -> Gist:
        """A run in two lines. What never changes again is read once."""
        key = (facts.id, facts.updated)
        with self._lock:
            if key in self._gists:
                self._gists.move_to_end(key)
                return self._gists[key]
        kept = self.store.read(facts.id)
        made = gist_of(_head_of_kept(kept[0]) if kept else {})
        with self._lock:
            self._gists[key] = made
            while len(self._gists) > _GISTS:
                self._gists.popitem(last=False)
        return made

    def book(self, run_id: str) -> Book | None:
        with self._lock:
            book = self._books.get(run_id)
            if book is not None:
                self._books.move_to_end(run_id)
        if book is None:
            kept = self.store.read(run_id)
            if not kept or kept[0].facts.root not in ("", run_id):  # the run of a branch is shown with the whole
                return None
            book = Book(_head_of_kept(kept[0]), "unknown")
            with self._lock:
                book = self._books.setdefault(run_id, book)
                while len(self._books) > _BOOKS:
                    self._books.popitem(last=False)
        return self._read_on(run_id, book)

    def forget(self, run_id: str) -> None:
        """A run that was deleted."""
        with self._lock:
            self._books.pop(run_id, None)

    def _read_on(self, run_id: str, book: Book) -> Book | None:
        with book.lock:
            status, heard = self.store.follow(run_id, book.position)
            if status is None:
                self.forget(run_id)
                return None
            for each in heard:
                try:
                    entry = read_entries([without_data(each.entry)])[0]
                    book.rows.hear(entry)
                except Exception as error:  # what is kept may be damaged, or of an acorn to come
                    raise StoreError(
                        f"The run {run_id} in {self.name} cannot be read ({shorten(words_of(error))}); another version "
                        f"of acorn may have written it. It was left as it is."
                    ) from error
                book.position = each.position
            if status != book.status:
                kept = self.store.read(run_id)
                book.head = _head_of_kept(kept[0]) if kept else book.head
                book.status = status
        return book

    def runs_of(self, batch: str) -> list[RunFacts]:
        """The runs of one conversation, the first one first."""
        return sorted(self.store.list(batch=batch, limit=None), key=lambda facts: facts.item or 0)


def _facts_said(facts: RunFacts) -> list[str]:
    said = (facts.id, facts.agent, facts.model, facts.status, facts.error, facts.batch)
    return [each for each in said if each]


def _listed(facts: RunFacts, gist: Gist) -> Head:
    return {**head_of(facts), **gist._asdict()}


def head_of(facts: RunFacts) -> Head:
    """A run at a glance, as plain data."""
    return {
        **fields_of(facts),
        "usage": fields_of(facts.usage),
        "started": facts.started.isoformat(),
        "updated": facts.updated.isoformat(),
    }


def _head_of_kept(kept: Kept) -> Head:
    given = _json(kept.birth.input)
    record = _json(kept.record)
    run = record.get("run") if isinstance(record, dict) else None
    output = run.get("output") if isinstance(run, dict) and kept.facts.stop_reason else None
    return {**head_of(kept.facts), "input": given, "output": output, "file": _file_of(kept)}


def _file_of(kept: Kept) -> str | None:
    notes = _json(kept.birth.overrides) if kept.birth.overrides else {}
    file = notes.get("file") if isinstance(notes, dict) else None
    return Path(file).name if isinstance(file, str) else None


def gist_of(head: Head) -> Gist:
    return Gist(first_text(head.get("input")), first_text(head.get("output")))


def _json(text: str) -> Any:
    try:
        return without_data(text)
    except Exception:  # it may be damaged, and is left out then
        return None
