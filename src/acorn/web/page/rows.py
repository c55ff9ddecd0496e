"""The rows of the waterfall view, built from the journal entries of a run and its branches.

Each journal entry belongs to one row. The page links to a row by its number, which never changes. Other fields of a row
change while the run continues. Times are seconds since the start of the root run (the run that is not a branch).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import assert_never

from acorn._inside import FINISH, Redactor, describe_blobs, history_of, record_to_json, to_compact_json, to_json_data
from acorn.journal import (
    BranchFinished,
    BranchStarted,
    CalledTool,
    Compacted,
    Entry,
    HistoryEdited,
    InputReceived,
    InputRequested,
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
from acorn.types import TOOL_ERROR, ForkedFrom, JsonObject, Message, Usage, is_json_object
from acorn.web.page import PREVIEW_LIMIT, STREAM_LIMIT

_FAILED_FORMS = ("error", "skipped", "stopped")
_INVALID_FIELD = re.compile(r'<field name="([^"]*)">')

Event = JsonObject
"""A journal entry as JSON data, or a part of a response in progress."""


def entry_event(entry: Entry) -> Event:
    """Return a journal entry as JSON data. Short descriptions replace the data of images and files."""
    event: Event = describe_blobs(to_json_data(record_to_json(entry)))
    return event


@dataclass(eq=False, slots=True)
class Row:
    """One row of the waterfall view, such as a model turn, a tool call or a branch."""

    id: int
    kind: str
    """`input`, `model`, `answer`, `tool`, `branch`, `person`, `note`, `summary`, `edit`, `error` or `stopped`."""
    name: str
    parent: int | None
    """The id of the row that contains this row."""
    run_id: str
    step: int
    start: float | None = None
    end: float | None = None
    preview: str = ""
    tokens: tuple[int, int] | None = None
    """The numbers of input tokens and output tokens."""
    cost: float | None = None
    has_failed: bool = False
    entries: list[int] = field(default_factory=list[int])
    """The indexes of the journal entries that the row displays."""
    version: int = 0
    """The number of journal entries at the last change of the row."""
    call: CalledTool | None = None
    """The tool call of the model, if the row displays a tool call."""

    def to_json(self, redactor: Redactor) -> JsonObject:
        """Return the row as JSON data with short JSON keys. Secrets are redacted."""
        fields: JsonObject = {"i": self.id, "k": self.kind, "n": redactor.text(self.name, PREVIEW_LIMIT)}
        if self.parent is not None:
            fields["u"] = self.parent
        if self.step:
            fields["s"] = self.step
        if self.start is not None:
            fields["a"] = round(self.start, 4)
        if self.end is not None:
            fields["b"] = round(self.end, 4)
        if self.preview:
            fields["p"] = redactor.text(self.preview, PREVIEW_LIMIT)
        if self.tokens is not None:
            fields["t"] = self.tokens
        if self.cost is not None:
            fields["c"] = self.cost
        if self.has_failed:
            fields["x"] = 1
        return fields


@dataclass(eq=False, slots=True)
class _TreeRun:
    """The state of the root run or of one branch while its rows are built."""

    started: float = 0.0
    """The start of this run, in seconds since the start of the root run."""
    parent: int | None = None
    """The id of the row that displays this run as a branch, or None for the root run."""
    opening: Row | None = None
    turn: Row | None = None
    """The row of the last model turn."""
    calls: dict[str, Row] = field(default_factory=dict[str, Row])
    """Maps a tool call id to its row."""
    linked: dict[str, Row] = field(default_factory=dict[str, Row])
    """Maps the id of an input request or of a branch run to its row."""


class Rows:
    """All rows of a run and its branches, with the total usage, cost, steps and seconds."""

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        self.all: list[Row] = []
        self.usage = Usage()
        self.cost: float | None = None
        self.steps = 0
        self.seconds = 0.0
        self.forked_from: ForkedFrom | None = None
        self._runs: dict[str, _TreeRun] = {}
        self._root = ""
        self._changed: dict[int, Row] = {}

    def add(self, entry: Entry) -> None:
        """Add the next journal entry of the run or of one of its branches to the rows."""
        if not self._runs:
            self._root = entry.run_id
        run = self._runs.get(entry.run_id)
        if run is None:
            run = self._runs[entry.run_id] = _TreeRun()
        self.entries.append(entry)
        row = self._row_of(entry, run, run.started + entry.at)
        row.entries.append(len(self.entries) - 1)
        self._mark_changed(row)
        self.seconds = max(self.seconds, run.started + entry.at)

    def changed_since(self, version: int) -> list[Row]:
        """Return the rows that changed after a version.

        A version is the number of journal entries that the caller has already seen.
        """
        return [row for row in self._changed.values() if row.version > version]

    def entries_of(self, row: Row) -> list[Entry]:
        return [self.entries[index] for index in row.entries]

    def results_of(self, row: Row) -> list[object]:
        """Return the tool results that the model received for the tool call in a row, as JSON data."""
        call_ids = {call_id for call_id, other in self._runs[row.run_id].calls.items() if other is row}
        return [
            to_json_data(list(result))
            for entry in self.entries
            if isinstance(entry, ToolResultsAdded) and entry.run_id == row.run_id
            for result in entry.results
            if result.call_id in call_ids
        ]

    def request_of(self, row: Row) -> tuple[list[Message], ModelRequested] | None:
        """Return the messages and the journal entry of the model request in a row.

        Return None if the row is not a model turn.
        """
        for index in row.entries:
            request = self.entries[index]
            if isinstance(request, ModelRequested):
                return history_of(entry for entry in self.entries[:index] if entry.run_id == row.run_id), request
        return None

    # The following methods return the row of an entry. Each method handles one group of entry classes.

    def _row_of(self, entry: Entry, run: _TreeRun, now: float) -> Row:
        match entry:
            case RunStarted() | MessagesAdded():
                return self._opening(entry, run, now)
            case ModelRequested() | ModelResponded():
                return self._turn(entry, run, now)
            case ToolStarted() | ToolFinished():
                return self._call(entry, run, now)
            case BranchStarted():
                return self._branch(entry, run, now)
            case BranchFinished():
                return self._branch_end(entry, run, now)
            case ToolResultsAdded():
                return self._results(entry, run, now)
            case InputRequested() | InputReceived():
                return self._input_request(entry, run, now)
            case HistoryEdited():
                return self._new_row(
                    entry, run, "edit", "history", now, now, f"{entry.removed} → {len(entry.messages)}"
                )
            case Compacted():
                self._add_usage(entry.usage, entry.cost)
                row = self._new_row(entry, run, "summary", "summary", run.started + entry.asked, now, entry.summary)
                row.tokens, row.cost = (entry.usage.input_tokens, entry.usage.output_tokens), entry.cost
                return row
            case RunFinished():
                row = run.turn or self._first_row(entry, run, now)
                if row.kind == "model":
                    row.kind, row.name = "answer", "answer"
                    row.preview = row.preview or entry.content
                return row
            case RunFailed() | RunInterrupted():
                return self._run_end(entry, run, now)
            case RunPaused():
                return run.turn or self._first_row(entry, run, now)
            case _:
                assert_never(entry)

    def _opening(self, entry: RunStarted | MessagesAdded, run: _TreeRun, now: float) -> Row:
        if run.opening is None:
            run.opening = self._new_row(entry, run, "input", "input", now, now)
        elif isinstance(entry, MessagesAdded) and any(
            isinstance(self.entries[index], MessagesAdded) for index in run.opening.entries
        ):
            text = " ".join(_text(message.get("content")) for message in entry.messages)
            return self._new_row(entry, run, "note", "note", now, now, text)
        row = run.opening
        if isinstance(entry, RunStarted):
            row.preview = summary_line(entry.input)
            self.forked_from = entry.forked_from if entry.run_id == self._root else self.forked_from
        elif not row.preview and entry.messages:
            row.preview = _text(entry.messages[-1].get("content"))
        return row

    def _turn(self, entry: ModelRequested | ModelResponded, run: _TreeRun, now: float) -> Row:
        row = run.turn
        if isinstance(entry, ModelRequested) or row is None or row.end is not None:
            if row is not None and row.end is None:  # The run was interrupted, and the request is sent again.
                row.end, row.has_failed = max(now, row.start or now), True
                self._mark_changed(row)
            row = run.turn = self._new_row(entry, run, "model", "model", now, None)
        if isinstance(entry, ModelRequested):
            return row
        row.start, row.end, row.step = min(run.started + entry.asked, now), now, entry.step
        row.tokens, row.cost = (entry.usage.input_tokens, entry.usage.output_tokens), entry.cost
        row.has_failed = entry.refusal is not None
        row.preview = entry.refusal or entry.content
        self._add_usage(entry.usage, entry.cost)
        self.steps = max(self.steps, entry.step) if run.parent is None else self.steps
        for call in entry.calls:
            if call.name == FINISH:
                row.kind = row.name = "answer"
                row.preview = _answer_text(call.arguments)
                run.calls[call.id] = row
            else:
                call_row = self._new_row(entry, run, "tool", call.name, None, None, call.arguments, row.id)
                call_row.call = call
                run.calls[call.id] = call_row
        if not row.preview and entry.calls:
            row.preview = ", ".join(call.name for call in entry.calls)
        return row

    def _call(self, entry: ToolStarted | ToolFinished, run: _TreeRun, now: float) -> Row:
        row = run.calls.get(entry.call_id)
        if row is None:
            row = run.calls[entry.call_id] = self._new_row(entry, run, "tool", entry.name, now, None)
        if isinstance(entry, ToolStarted):
            row.start, row.end = now, None
            return row
        row.start = now if entry.began is None else min(run.started + entry.began, now)
        row.end, row.has_failed = now, entry.error is not None
        row.preview = entry.error if entry.error is not None else row.preview
        return row

    def _branch(self, entry: BranchStarted, run: _TreeRun, now: float) -> Row:
        row = run.calls.get(entry.call_id or "")
        if row is None:
            inside = run.calls.get(entry.inside or "")
            parent = run.parent if inside is None else inside.id
            row = self._new_row(entry, run, "branch", entry.branch.rpartition("/")[2], now, None, parent=parent)
        row.kind, row.start, row.end = "branch", now, None
        if entry.child_id not in self._runs:
            self._runs[entry.child_id] = _TreeRun(now, row.id)
        run.linked.setdefault(entry.child_id, row)
        return row

    def _branch_end(self, entry: BranchFinished, run: _TreeRun, now: float) -> Row:
        row = run.linked.get(entry.child_id) or run.calls.get(entry.call_id or "")
        if row is None:
            row = self._new_row(entry, run, "branch", entry.branch.rpartition("/")[2], now - entry.seconds, None)
        row.end, row.has_failed = max(now, row.start or 0.0), entry.error is not None
        row.tokens, row.cost = (entry.usage.input_tokens, entry.usage.output_tokens), entry.cost
        row.preview = entry.error or _text(entry.content)
        return row

    def _results(self, entry: ToolResultsAdded, run: _TreeRun, now: float) -> Row:
        for result in entry.results:
            row = run.calls.get(str(result.call_id or ""))
            if row is None:
                continue
            if result.form in _FAILED_FORMS:
                text = _text(result.content).removeprefix(TOOL_ERROR)
                row.has_failed, row.preview = True, _invalid_fields_text(text) if row.kind == "answer" else text
            if row.start is None or row.end is None:
                row.start = now if row.start is None else row.start
                row.end = max(now, row.start)
            self._mark_changed(row)
        return run.turn or self._first_row(entry, run, now)

    def _input_request(self, entry: InputRequested | InputReceived, run: _TreeRun, now: float) -> Row:
        row = run.linked.get(entry.request_id)
        if row is None:
            call = run.calls.get(entry.call_id)
            row = self._new_row(
                entry, run, "person", "person", now, None, parent=run.parent if call is None else call.id
            )
            run.linked[entry.request_id] = row
        if isinstance(entry, InputRequested):
            row.name, row.preview = entry.kind, entry.question
        else:
            row.end, row.preview = now, f"{row.preview} — {entry.answer}" if row.preview else entry.answer
        return row

    def _run_end(self, entry: RunFailed | RunInterrupted, run: _TreeRun, now: float) -> Row:
        is_failed = isinstance(entry, RunFailed)
        for row in ([run.turn] if run.turn is not None else []) + list(run.calls.values()):
            if row.end is None:
                row.start = now if row.start is None else row.start
                row.end, row.has_failed = max(now, row.start), True
                self._mark_changed(row)
        kind = "error" if is_failed else "stopped"
        row = self._new_row(entry, run, kind, kind, now, now, entry.error)
        row.has_failed = is_failed
        return row

    # Creating and changing rows

    def _new_row(
        self,
        entry: Entry,
        run: _TreeRun,
        kind: str,
        name: str,
        start: float | None,
        end: float | None,
        preview: str = "",
        parent: int | None = None,
    ) -> Row:
        parent = run.parent if parent is None else parent
        row = Row(len(self.all), kind, name, parent, entry.run_id, entry.step, start, end, preview)
        self.all.append(row)
        self._mark_changed(row)
        return row

    def _first_row(self, entry: Entry, run: _TreeRun, now: float) -> Row:
        """Return the row for the input of a run.

        Journal entries that belong to no other row are also added to this row.
        """
        if run.opening is None:
            run.opening = self._new_row(entry, run, "input", "input", now, now)
        return run.opening

    def _mark_changed(self, row: Row) -> None:
        if row.end is not None:  # A journal from a file may contain times in the wrong order.
            row.start = row.end if row.start is None else row.start
            row.end = max(row.start, row.end)
        row.version = len(self.entries)
        self._changed[row.id] = row

    def _add_usage(self, usage: Usage, cost: float | None) -> None:
        self.usage.add(usage)
        if cost is not None:
            self.cost = (self.cost or 0.0) + cost


def rows_of(entries: Iterable[Entry]) -> Rows:
    """Build the rows of the waterfall view from a sequence of journal entries."""
    rows = Rows()
    for entry in entries:
        rows.add(entry)
    return rows


def _text(content: object) -> str:
    return content if isinstance(content, str) else "" if content is None else to_compact_json(content)


def summary_line(value: object) -> str:
    """Return a summary of a value as a single line.

    The summary is the value if it is a text, otherwise the first text in its fields. If no field is a text, the summary
    is the value as JSON.
    """
    data = to_json_data(value)
    if is_json_object(data):
        text = next((item for item in data.values() if isinstance(item, str) and item.strip()), None)
        data = next(iter(data.values())) if text is None and len(data) == 1 else data if text is None else text
    return " ".join(_text(data).split())[: 4 * PREVIEW_LIMIT]


def _answer_text(arguments: str) -> str:
    try:
        return summary_line(json.loads(arguments))
    except (ValueError, RecursionError):
        return arguments


def _invalid_fields_text(content: str) -> str:
    """Return a preview of a validation document, with the names of the invalid fields.

    A validation document is the message that tells the model which fields of its answer are invalid.
    """
    fields = _INVALID_FIELD.findall(content[:STREAM_LIMIT])
    return f"invalid: {', '.join(name or 'the whole answer' for name in fields)}" if fields else content
