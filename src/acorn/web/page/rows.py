"""The rows of the waterfall, made from the entries of a run and of all below it, one after the other.

Each entry belongs to one row. A row has the number by which it is linked to, stays where it is, and grows while the
run does. Times are seconds from the beginning of the run. Pure.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, assert_never

from acorn._inside import FINISH, history_of, to_compact_json, to_json_data
from acorn.journal import (
    BranchFinished,
    BranchStarted,
    CalledTool,
    Compacted,
    Entry,
    HistoryEdited,
    InputReceived,
    InputRequested,
    Message,
    MessagesAdded,
    ModelRequested,
    ModelResponded,
    RunFailed,
    RunFinished,
    RunInterrupted,
    RunPaused,
    RunStarted,
    ToolFinished,
    ToolResultsAdded,
    ToolStarted,
)
from acorn.types import TOOL_ERROR, ForkedFrom, JsonObject, Usage
from acorn.web.page.wire import CUT, PREVIEW, PageRedactor

_BAD = ("error", "skipped", "stopped")
_FIELD = re.compile(r'<field name="([^"]*)">')


@dataclass(eq=False, slots=True)
class Row:
    """One line of the waterfall."""

    id: int
    kind: str
    """`input`, `model`, `answer`, `tool`, `branch`, `person`, `note`, `summary`, `edit`, `error` or `stopped`."""
    name: str
    up: int | None
    """The row that it is part of."""
    run_id: str
    step: int
    start: float | None = None
    end: float | None = None
    preview: str = ""
    tokens: tuple[int, int] | None = None
    """In and out."""
    cost: float | None = None
    is_bad: bool = False
    entries: list[int] = field(default_factory=list[int])
    """Which entries it is made of."""
    version: int = 0
    """How many entries were known when it last changed."""
    call: CalledTool | None = None
    """What the model called, if that is what the row is."""

    def plain(self, veil: PageRedactor) -> JsonObject:
        """As the page gets it, without what it can do without."""
        found: JsonObject = {"i": self.id, "k": self.kind, "n": veil.text(self.name, PREVIEW)}
        if self.up is not None:
            found["u"] = self.up
        if self.step:
            found["s"] = self.step
        if self.start is not None:
            found["a"] = round(self.start, 4)
        if self.end is not None:
            found["b"] = round(self.end, 4)
        if self.preview:
            found["p"] = veil.text(self.preview, PREVIEW)
        if self.tokens is not None:
            found["t"] = self.tokens
        if self.cost is not None:
            found["c"] = self.cost
        if self.is_bad:
            found["x"] = 1
        return found


@dataclass(eq=False, slots=True)
class _RunFacts:
    """A run of the tree, as far as it has come."""

    began: float = 0.0
    """Seconds into the whole run."""
    up: int | None = None
    opening: Row | None = None
    turn: Row | None = None
    """The last turn of its model."""
    calls: dict[str, Row] = field(default_factory=dict[str, Row])
    people: dict[str, Row] = field(default_factory=dict[str, Row])


class Rows:
    """All rows of a run, and its sums."""

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        self.all: list[Row] = []
        self.usage = Usage()
        self.cost: float | None = None
        self.steps = 0
        self.seconds = 0.0
        self.forked_from: ForkedFrom | None = None
        self._runs: dict[str, _RunFacts] = {}
        self._root = ""
        self._changed: dict[int, Row] = {}

    def hear(self, entry: Entry) -> None:
        """Take in the next entry."""
        if not self._runs:
            self._root = entry.run_id
        run = self._runs.get(entry.run_id)
        if run is None:
            run = self._runs[entry.run_id] = _RunFacts()
        self.entries.append(entry)
        row = self._row(entry, run, run.began + entry.at)
        row.entries.append(len(self.entries) - 1)
        self._touch(row)
        self.seconds = max(self.seconds, run.began + entry.at)

    def since(self, version: int) -> list[Row]:
        """Those that have changed since so many entries were known."""
        return [row for row in self._changed.values() if row.version > version]

    def of(self, row: Row) -> list[Entry]:
        return [self.entries[at] for at in row.entries]

    def results(self, row: Row) -> list[list[Any]]:
        """What the model read of a call, where it was said."""
        ids = {call_id for call_id, other in self._runs[row.run_id].calls.items() if other is row}
        said = [entry for entry in self.entries if isinstance(entry, ToolResultsAdded) and entry.run_id == row.run_id]
        return [to_json_data(list(each)) for entry in said for each in entry.results if each.call_id in ids]

    def asked_with(self, row: Row) -> tuple[list[Message], ModelRequested] | None:
        """The messages that a turn's request had, and the request; None where the row is no turn."""
        for at in row.entries:
            asked = self.entries[at]
            if isinstance(asked, ModelRequested):
                own = (entry for entry in self.entries[:at] if entry.run_id == row.run_id)
                return history_of(own), asked
        return None

    # One method a group of entries, in the order of a run

    def _row(self, entry: Entry, run: _RunFacts, now: float) -> Row:
        match entry:
            case RunStarted() | MessagesAdded():
                return self._say(entry, run, now)
            case ModelRequested() | ModelResponded():
                return self._turn(entry, run, now)
            case ToolStarted() | ToolFinished():
                return self._call(entry, run, now)
            case BranchStarted():
                return self._branch(entry, run, now)
            case BranchFinished():
                return self._branch_ended(entry, run, now)
            case ToolResultsAdded():
                return self._results(entry, run, now)
            case InputRequested() | InputReceived():
                return self._person(entry, run, now)
            case HistoryEdited():
                return self._new(entry, run, "edit", "history", now, now, f"{entry.removed} → {len(entry.messages)}")
            case Compacted():
                self._count(entry.usage, entry.cost)
                row = self._new(entry, run, "summary", "summary", run.began + entry.asked, now, entry.summary)
                row.tokens, row.cost = (entry.usage.input_tokens, entry.usage.output_tokens), entry.cost
                return row
            case RunFinished():
                row = run.turn or self._last(entry, run, now)
                if row.kind == "model":
                    row.kind, row.name = "answer", "answer"
                    row.preview = row.preview or entry.content
                return row
            case RunFailed() | RunInterrupted():
                return self._stop(entry, run, now)
            case RunPaused():
                return run.turn or self._last(entry, run, now)
            case _:
                assert_never(entry)

    def _say(self, entry: RunStarted | MessagesAdded, run: _RunFacts, now: float) -> Row:
        if run.opening is None:
            run.opening = self._new(entry, run, "input", "input", now, now)
        elif isinstance(entry, MessagesAdded) and any(
            isinstance(self.entries[at], MessagesAdded) for at in run.opening.entries
        ):
            said = " ".join(_text(each.get("content")) for each in entry.messages)
            return self._new(entry, run, "note", "note", now, now, said)
        row = run.opening
        if isinstance(entry, RunStarted):
            row.preview = first_text(entry.input)
            self.forked_from = entry.forked_from if entry.run_id == self._root else self.forked_from
        elif not row.preview and entry.messages:
            row.preview = _text(entry.messages[-1].get("content"))
        return row

    def _turn(self, entry: ModelRequested | ModelResponded, run: _RunFacts, now: float) -> Row:
        row = run.turn
        if isinstance(entry, ModelRequested) or row is None or row.end is not None:
            if row is not None and row.end is None:  # it was interrupted, and is asked for anew
                row.end, row.is_bad = max(now, row.start or now), True
                self._touch(row)
            row = run.turn = self._new(entry, run, "model", "model", now, None)
        if isinstance(entry, ModelRequested):
            return row
        row.start, row.end, row.step = min(run.began + entry.asked, now), now, entry.step
        row.tokens, row.cost = (entry.usage.input_tokens, entry.usage.output_tokens), entry.cost
        row.is_bad = entry.refusal is not None
        row.preview = entry.refusal or entry.content
        self._count(entry.usage, entry.cost)
        self.steps = max(self.steps, entry.step) if run.up is None else self.steps
        for call in entry.calls:
            if call.name == FINISH:
                row.kind = row.name = "answer"
                row.preview = _answer_text(call.arguments)
                run.calls[call.id] = row
            else:
                made = self._new(entry, run, "tool", call.name, None, None, call.arguments, row.id)
                made.call = call
                run.calls[call.id] = made
        if not row.preview and entry.calls:
            row.preview = ", ".join(call.name for call in entry.calls)
        return row

    def _call(self, entry: ToolStarted | ToolFinished, run: _RunFacts, now: float) -> Row:
        row = run.calls.get(entry.call_id)
        if row is None:
            row = run.calls[entry.call_id] = self._new(entry, run, "tool", entry.name, now, None)
        if isinstance(entry, ToolStarted):
            row.start, row.end = now, None
            return row
        row.start = now if entry.began is None else min(run.began + entry.began, now)
        row.end, row.is_bad = now, entry.error is not None
        row.preview = entry.error if entry.error is not None else row.preview
        return row

    def _branch(self, entry: BranchStarted, run: _RunFacts, now: float) -> Row:
        row = run.calls.get(entry.call_id or "")
        if row is None:
            inside = run.calls.get(entry.inside or "")
            up = run.up if inside is None else inside.id
            row = self._new(entry, run, "branch", entry.branch.rpartition("/")[2], now, None, up=up)
        row.kind, row.start, row.end = "branch", now, None
        if entry.child_id not in self._runs:
            self._runs[entry.child_id] = _RunFacts(now, row.id)
        run.people.setdefault(entry.child_id, row)
        return row

    def _branch_ended(self, entry: BranchFinished, run: _RunFacts, now: float) -> Row:
        row = run.people.get(entry.child_id) or run.calls.get(entry.call_id or "")
        if row is None:
            row = self._new(entry, run, "branch", entry.branch.rpartition("/")[2], now - entry.seconds, None)
        row.end, row.is_bad = max(now, row.start or 0.0), entry.error is not None
        row.tokens, row.cost = (entry.usage.input_tokens, entry.usage.output_tokens), entry.cost
        row.preview = entry.error or _text(entry.content)
        return row

    def _results(self, entry: ToolResultsAdded, run: _RunFacts, now: float) -> Row:
        for each in entry.results:
            row = run.calls.get(str(each.call_id or ""))
            if row is None:
                continue
            if each.form in _BAD:
                text = _text(each.content).removeprefix(TOOL_ERROR)
                row.is_bad, row.preview = True, _refusal_text(text) if row.kind == "answer" else text
            if row.start is None or row.end is None:
                row.start = now if row.start is None else row.start
                row.end = max(now, row.start)
            self._touch(row)
        return run.turn or self._last(entry, run, now)

    def _person(self, entry: InputRequested | InputReceived, run: _RunFacts, now: float) -> Row:
        row = run.people.get(entry.request_id)
        if row is None:
            call = run.calls.get(entry.call_id)
            row = self._new(entry, run, "person", "person", now, None, up=run.up if call is None else call.id)
            run.people[entry.request_id] = row
        if isinstance(entry, InputRequested):
            row.name, row.preview = entry.kind, entry.question
        else:
            row.end, row.preview = now, f"{row.preview} — {entry.answer}" if row.preview else entry.answer
        return row

    def _stop(self, entry: RunFailed | RunInterrupted, run: _RunFacts, now: float) -> Row:
        is_failed = isinstance(entry, RunFailed)
        for row in ([run.turn] if run.turn is not None else []) + list(run.calls.values()):
            if row.end is None:
                row.start = now if row.start is None else row.start
                row.end, row.is_bad = max(now, row.start), True
                self._touch(row)
        kind = "error" if is_failed else "stopped"
        made = self._new(entry, run, kind, kind, now, now, entry.error)
        made.is_bad = is_failed
        return made

    # Making rows

    def _new(
        self,
        entry: Entry,
        run: _RunFacts,
        kind: str,
        name: str,
        start: float | None,
        end: float | None,
        preview: str = "",
        up: int | None = None,
    ) -> Row:
        parent = run.up if up is None else up
        row = Row(len(self.all), kind, name, parent, entry.run_id, entry.step, start, end, preview)
        self.all.append(row)
        self._touch(row)
        return row

    def _last(self, entry: Entry, run: _RunFacts, now: float) -> Row:
        """The row of a run of which nothing else is known."""
        if run.opening is None:
            run.opening = self._new(entry, run, "input", "input", now, now)
        return run.opening

    def _touch(self, row: Row) -> None:
        if row.end is not None:  # a journal from elsewhere may say anything
            row.start = row.end if row.start is None else row.start
            row.end = max(row.start, row.end)
        row.version = len(self.entries)
        self._changed[row.id] = row

    def _count(self, usage: Usage, cost: float | None) -> None:
        self.usage.add(usage)
        if cost is not None:
            self.cost = (self.cost or 0.0) + cost


def rows_of(entries: Iterable[Entry]) -> Rows:
    """All rows of a run that is over."""
    rows = Rows()
    for entry in entries:
        rows.hear(entry)
    return rows


def _text(content: Any) -> str:
    return content if isinstance(content, str) else "" if content is None else to_compact_json(content)


def first_text(value: Any) -> str:
    """A value in a line: the text that it is, or the first one in it; else JSON."""
    plain = to_json_data(value)
    if isinstance(plain, dict):
        found = next((item for item in plain.values() if isinstance(item, str) and item.strip()), None)
        plain = next(iter(plain.values())) if found is None and len(plain) == 1 else plain if found is None else found
    return " ".join(_text(plain).split())[: 4 * PREVIEW]


def _answer_text(arguments: str) -> str:
    try:
        return first_text(json.loads(arguments))
    except (ValueError, RecursionError):
        return arguments


def _refusal_text(content: str) -> str:
    """Of the document that a model reads about its answer, the fields that did not fit."""
    fields = _FIELD.findall(content[:CUT])
    return f"did not fit: {', '.join(field or 'the whole' for field in fields)}" if fields else content
