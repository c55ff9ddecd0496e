"""The tree of a run: rows for its model turns, tool calls and branches, built from the journal.

The live view, `acorn show` and the page display this tree. Each journal entry belongs to one row. A row keeps its
number, and its other fields change while the run continues. All times are seconds since the start of the root run (the
run that is not a branch), so the tree needs no clock.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Literal, assert_never

from acorn import StreamChunk, journal
from acorn._declare.tools.collect import FINISH
from acorn._formats.json import parse_json, text_of
from acorn._formats.xml.encode import VALIDATION_ERROR_START
from acorn._history.history import history_of
from acorn.journal import Entry, ResultMessage
from acorn.types import TOOL_ERROR, Content, ForkedFrom, Message, Usage

RowKind = Literal["input", "model", "answer", "tool", "branch", "person", "note", "summary", "edit", "error", "stopped"]


@dataclass(eq=False, slots=True)
class GrowingResponse:
    """The part of a model response that has arrived in stream chunks."""

    texts: list[str] = field(default_factory=list[str])
    reasoning: list[str] = field(default_factory=list[str])
    calls: dict[int, StreamChunk] = field(default_factory=dict[int, StreamChunk])
    """A dict that maps the index of each incomplete call to its newest chunk, which has the arguments so far."""
    answer: StreamChunk | None = None
    """The newest chunk of the answer, or None."""


@dataclass(eq=False, slots=True)
class Row:
    """One row of the tree, such as a model turn, a tool call or a branch."""

    id: int
    kind: RowKind
    """A turn that submits the answer of its run has the kind `answer`. A call that starts a branch is a `branch`."""
    name: str
    run: TreeRun
    """The run that contains the row."""
    parent: Row | None
    step: int
    start: float | None
    end: float | None
    text: str = ""
    """The text of a response, the question to a person, the result of a branch, or the message of another row."""
    arguments: str | None = None
    """The arguments of a call, or the answer that a model turn submits. None for other rows."""
    result: str | None = None
    """The text of the result that the model receives, or the answer of a person."""
    error: str | None = None
    traceback: str | None = None
    """The traceback of the exception that a tool raised."""
    has_failed: bool = False
    seconds: float | None = None
    """The duration of the function or branch that a call executed."""
    tokens: tuple[int, int] | None = None
    """The numbers of input tokens and output tokens."""
    cost: float | None = None
    entries: list[Entry] = field(default_factory=list[Entry])
    """The journal entries that the row displays."""
    version: int = 0
    """The number of journal entries at the last change of the row."""
    calls: list[Row] = field(default_factory=list["Row"])
    """The rows below this row: the calls of a turn, or the branches and human input of a call."""
    child: TreeRun | None = None
    """The run that the row displays as a branch."""
    is_complete: bool = False
    """Whether the model has responded, if the row is a turn."""
    is_forced: bool = False
    """Whether acorn forced the model to answer in this turn."""
    is_step: bool = False
    """Whether the response started a step. For a response without calls, a later entry decides."""
    growing: GrowingResponse | None = None

    @property
    def is_over(self) -> bool:
        """Whether a call or a branch has a result."""
        return self.result is not None or self.error is not None

    @property
    def was_rejected(self) -> bool:
        """Whether the turn submitted an answer that did not validate."""
        return self.kind == "answer" and (self.error or "").startswith(VALIDATION_ERROR_START)


@dataclass(eq=False, slots=True)
class TreeRun:
    """The root run or one of its branches."""

    row: Row | None = None
    """The row that displays the run as a branch, or None for the root run."""
    title: str = ""
    """The name of the branch, with a number if several branches with this name started in the same step."""
    label: str = ""
    """The titles of the parents and of the branch, joined with `/`."""
    started: float = 0.0
    """The start of this run, in seconds since the start of the root run."""
    rows: list[Row] = field(default_factory=list[Row])
    """The rows of the run in order. Rows below another row of the run are in `Row.calls` instead."""
    opening: Row | None = None
    """The row of the input. Journal entries that belong to no other row are also added to this row."""
    turn: Row | None = None
    """The row of the last model turn."""
    calls: dict[str, Row] = field(default_factory=dict[str, Row])
    """Maps the id of a call to its row. The row of an answer is the row of its turn."""
    linked: dict[str, Row] = field(default_factory=dict[str, Row])
    """Maps the id of an input request or of a branch run to its row."""
    interruption: Row | None = None
    """The row of the interruption, until the run is resumed."""
    end: journal.RunFinished | None = None
    output: object = None


class RunTree:
    """The tree of one run, with its totals.

    The first entry must belong to the root run.
    """

    def __init__(self, redact: Callable[[str], str] = str) -> None:
        self.root = TreeRun()
        self.runs: dict[str, TreeRun] = {}
        self.rows: list[Row] = []
        self.entries: list[Entry] = []
        self.usage = Usage()
        """The usage of the root run and its branches."""
        self.cost: float | None = None
        self.steps = 0
        self.seconds = 0.0
        self.forked_from: ForkedFrom | None = None
        self.redact = redact
        """Removes secrets from every text, because any text may contain an API key."""
        self._completed: list[Row] = []

    def add(self, entry: Entry) -> list[Row]:
        """Add the next journal entry, and return the turns, calls and branches that are complete now."""
        run = self.runs.get(entry.run_id) if self.runs else self.runs.setdefault(entry.run_id, self.root)
        if run is None:  # An agent that a tool calls like a function is a separate run.
            return []
        self.entries.append(entry)
        self._completed = []
        run.interruption = None
        now = run.started + entry.at
        row = self._row_of(entry, run, now)
        row.entries.append(entry)
        self._change(row)
        self.seconds = max(self.seconds, now)
        return self._completed

    def add_chunk(self, chunk: StreamChunk) -> None:
        """Add a stream chunk of an incomplete response to the tree."""
        run = self.root if chunk.run_id is None else self.runs.get(chunk.run_id)
        turn = None if run is None else run.turn
        if turn is None or turn.is_complete or chunk.tool_result is not None:
            return
        growing = turn.growing = turn.growing or GrowingResponse()
        if chunk.content:
            growing.texts.append(chunk.content)
        if chunk.reasoning:
            growing.reasoning.append(chunk.reasoning)
        call = chunk.tool_call
        if call is not None:
            growing.calls[call["index"]] = chunk
        elif not chunk.content and not chunk.reasoning and (not chunk.done or chunk.partial is not None):
            growing.answer = chunk  # The partial output is parsed only when it is drawn.

    def changed_since(self, version: int) -> list[Row]:
        """Return the rows that changed after a version.

        A version is the number of journal entries that the caller has already seen.
        """
        return [row for row in self.rows if row.version > version]

    def results_of(self, row: Row) -> list[ResultMessage]:
        """Return the tool results that the model received for the call in a row."""
        call_ids = {call_id for call_id, other in row.run.calls.items() if other is row}
        return [
            result
            for entry in self.entries
            if isinstance(entry, journal.ToolResultsAdded) and self.runs[entry.run_id] is row.run
            for result in entry.results
            if result.call_id in call_ids
        ]

    def request_of(self, row: Row) -> tuple[list[Message], journal.ModelRequested] | None:
        """Return the messages and the journal entry of the model request in a row.

        Return None if the row is not a model turn.
        """
        request = next((entry for entry in row.entries if isinstance(entry, journal.ModelRequested)), None)
        if request is None:
            return None
        earlier = takewhile(lambda entry: entry is not request, self.entries)
        return history_of(entry for entry in earlier if entry.run_id == request.run_id), request

    # The following methods return the row of an entry. Each method handles one group of entry classes.

    def _row_of(self, entry: Entry, run: TreeRun, now: float) -> Row:
        match entry:
            case journal.RunStarted():
                if run is self.root:
                    self.forked_from = entry.forked_from
                return self._opening(run, now)
            case journal.MessagesAdded():
                opening = self._opening(run, now)
                if not any(isinstance(other, journal.MessagesAdded) for other in opening.entries):
                    return opening
                text = " ".join(self._text(message.get("content")) for message in entry.messages)
                return self._new_row(run, entry.step, "note", "note", now, now, text)
            case journal.ModelRequested():
                return self._start_turn(entry, run, now)
            case journal.ModelResponded():
                return self._complete_turn(entry, run, now)
            case journal.ToolStarted() | journal.ToolFinished():
                return self._call(entry, run, now)
            case journal.BranchStarted():
                return self._start_branch(entry, run, now)
            case journal.BranchFinished():
                return self._finish_branch(entry, run, now)
            case journal.ToolResultsAdded():
                self._add_results(entry.results, run, now)
                return run.turn or self._opening(run, now)
            case journal.InputRequested() | journal.InputReceived():
                return self._input_request(entry, run, now)
            case journal.HistoryEdited():
                text = f"{entry.removed} → {len(entry.messages)}"
                return self._new_row(run, entry.step, "edit", "history", now, now, text)
            case journal.Compacted():
                start, text = run.started + entry.asked, self.redact(entry.summary)
                row = self._new_row(run, entry.step, "summary", "summary", start, now, text)
                self._count(row, entry)
                return row
            case journal.RunFinished():
                return self._finish_run(entry, run, now)
            case journal.RunPaused():
                self._settle(run)
                return run.turn or self._opening(run, now)
            case journal.RunFailed() | journal.RunInterrupted():
                return self._stop_run(entry, run, now)
            case _:
                assert_never(entry)

    def _start_turn(self, entry: journal.ModelRequested, run: TreeRun, now: float) -> Row:
        previous = run.turn
        if previous is not None:
            self._settle(run, is_step=entry.step > previous.step)
            if previous.end is None:  # The request was interrupted and is sent again.
                self._abort(previous, now)
            if previous.was_rejected:
                self._completed.append(previous)
        run.turn = self._new_row(run, entry.step, "model", "model", now, None)
        run.turn.is_forced = entry.forced is not None
        return run.turn

    def _complete_turn(self, entry: journal.ModelResponded, run: TreeRun, now: float) -> Row:
        row = run.turn
        if row is None or row.end is not None:
            row = run.turn = self._new_row(run, entry.step, "model", "model", now, None)
        row.start, row.end, row.step = min(run.started + entry.asked, now), now, entry.step
        row.is_complete, row.text = True, self.redact(entry.content)
        if row.growing is not None:
            row.growing = GrowingResponse(answer=row.growing.answer)
        if entry.refusal is not None:
            row.has_failed, row.error = True, self.redact(entry.refusal)
        self._count(row, entry)
        if run is self.root:
            self.steps = max(self.steps, entry.step)
        for call in entry.calls:
            arguments = self.redact(call.arguments)
            if call.name == FINISH and row.arguments is None:
                row.kind = row.name = "answer"
                row.arguments, run.calls[call.id] = arguments, row
            else:
                below = self._new_row(run, entry.step, "tool", call.name, None, None, parent=row)
                below.arguments, run.calls[call.id] = arguments, below
        if entry.calls:
            row.is_step = row.arguments is None and not row.is_forced
            self._completed.append(row)
        return row

    def _call(self, entry: journal.ToolStarted | journal.ToolFinished, run: TreeRun, now: float) -> Row:
        row = run.calls.get(entry.call_id)
        if row is None:
            row = run.calls[entry.call_id] = self._new_row(run, entry.step, "tool", entry.name, now, None)
        if isinstance(entry, journal.ToolStarted):
            _restart(row, now)
        else:
            row.start, row.end = now if entry.began is None else min(run.started + entry.began, now), now
            self._set_result(row, entry.content, entry.error)
            row.traceback = None if entry.traceback is None else self.redact(entry.traceback)
            row.seconds = None if entry.began is None else entry.at - entry.began
            self._completed.append(row)
        return row

    def _start_branch(self, entry: journal.BranchStarted, run: TreeRun, now: float) -> Row:
        call = run.linked.get(entry.child_id) or run.calls.get(entry.call_id or "")
        row = call or self._new_branch(entry, run, now, run.calls.get(entry.inside or ""))
        row.kind = "branch"
        _restart(row, now)
        if entry.child_id not in self.runs:
            title = self._branch_title(entry, run, row)
            label = f"{run.label}/{title}" if run.label else title
            row.child = self.runs[entry.child_id] = TreeRun(row, title, label, now)
            run.linked[entry.child_id] = row
        return row

    def _finish_branch(self, entry: journal.BranchFinished, run: TreeRun, now: float) -> Row:
        row = run.linked.get(entry.child_id) or run.calls.get(entry.call_id or "")
        if row is None:
            row = self._new_branch(entry, run, now - entry.seconds, None)
        row.end, row.has_failed = max(now, row.start or 0.0), entry.error is not None
        row.tokens, row.cost = (entry.usage.input_tokens, entry.usage.output_tokens), entry.cost
        row.text = self._text(entry.content) if entry.error is None else self.redact(entry.error)
        if entry.call_id is not None or entry.stop_reason != "cancelled":
            self._set_result(row, entry.content, entry.error)
            row.traceback = None if entry.traceback is None else self.redact(entry.traceback)
            row.seconds = entry.seconds
            self._completed.append(row)
        return row

    def _add_results(self, results: Iterable[ResultMessage], run: TreeRun, now: float) -> None:
        """Add the tool results that the model receives to their calls.

        A call may have no earlier result, because it did not reach a tool or was stopped.
        """
        for result in results:
            row = run.calls.get(str(result.call_id or ""))  # A hook may have changed the id to any value.
            if row is None:
                continue
            if not row.is_over and row is not run.turn:
                self._completed.append(row)
            has_stopped = result.form == "stopped"
            is_error = has_stopped or result.form in ("error", "skipped")
            has_failed = row.has_failed or (is_error and not (has_stopped and row.kind == "answer"))
            error = text_of(result.content).removeprefix(TOOL_ERROR) if is_error else None
            self._set_result(row, result.content, error)
            row.has_failed = has_failed
            row.seconds = result.seconds if isinstance(result.seconds, int | float) else row.seconds
            row.end = now if row.start is None or row.end is None else row.end
            self._change(row)

    def _input_request(self, entry: journal.InputRequested | journal.InputReceived, run: TreeRun, now: float) -> Row:
        row = run.linked.get(entry.request_id)
        if row is None:
            call = run.calls.get(entry.call_id)
            row = self._new_row(run, entry.step, "person", "person", now, None, parent=call)
            run.linked[entry.request_id] = row
        if isinstance(entry, journal.InputRequested):
            row.name, row.text = entry.kind, self.redact(entry.question)
        else:
            row.end, row.result = now, self.redact(entry.answer)
        return row

    def _finish_run(self, entry: journal.RunFinished, run: TreeRun, now: float) -> Row:
        self._settle(run, is_step=entry.stop_reason == "step")
        text = self.redact(entry.content)
        run.end, run.output = entry._replace(content=text), parse_json(text) if entry.form == "json" else text
        row = run.turn or self._opening(run, now)
        if row.kind == "model":
            row.kind = row.name = "answer"
        return row

    def _stop_run(self, entry: journal.RunFailed | journal.RunInterrupted, run: TreeRun, now: float) -> Row:
        self._settle(run)
        self._add_results(entry.results, run, now)
        for row in [*filter(None, [run.turn]), *run.calls.values()]:
            if row.end is None:
                self._abort(row, now)
        kind: RowKind = "error" if isinstance(entry, journal.RunFailed) else "stopped"
        row = self._new_row(run, entry.step, kind, kind, now, now, self.redact(entry.error))
        row.has_failed = kind == "error"
        run.interruption = row if kind == "stopped" else None
        return row

    # Creating and changing rows

    def _new_row(
        self,
        run: TreeRun,
        step: int,
        kind: RowKind,
        name: str,
        start: float | None,
        end: float | None,
        text: str = "",
        parent: Row | None = None,
    ) -> Row:
        row = Row(len(self.rows), kind, name, run, parent or run.row, step, start, end, text)
        (run.rows if parent is None else parent.calls).append(row)
        self.rows.append(row)
        self._change(row)
        return row

    def _opening(self, run: TreeRun, now: float) -> Row:
        if run.opening is None:
            run.opening = self._new_row(run, 0, "input", "input", now, now)
        return run.opening

    def _new_branch(
        self, entry: journal.BranchStarted | journal.BranchFinished, run: TreeRun, start: float, parent: Row | None
    ) -> Row:
        name = entry.branch.rpartition("/")[2]
        return self._new_row(run, entry.step, "branch", name, start, None, parent=parent)

    def _branch_title(self, entry: journal.BranchStarted, run: TreeRun, row: Row) -> str:
        if entry.call_id is not None and row.parent is not None:
            same_name = [other for other in row.parent.calls if other.name == row.name]
            return f"{row.name}#{same_name.index(row) + 1}" if len(same_name) > 1 and row in same_name else row.name
        # More branches with this name may follow, so the first branch has no number.
        earlier = [branch.row for branch in self.runs.values() if branch.row is not None]
        before = sum((other.run, other.step, other.name) == (run, row.step, row.name) for other in earlier)
        return f"{row.name}#{before + 1}" if before else row.name

    def _settle(self, run: TreeRun, *, is_step: bool = False) -> None:
        """If the last model response has text but no calls, set whether it was a step."""
        turn = run.turn
        if turn is not None and turn.is_complete and turn.text and turn.arguments is None and not turn.calls:
            turn.is_step = is_step and not turn.is_forced
            self._completed.append(turn)

    def _abort(self, row: Row, now: float) -> None:
        row.end, row.has_failed = max(now, row.start or now), True
        self._change(row)

    def _set_result(self, row: Row, content: Content, error: str | None) -> None:
        row.has_failed = error is not None
        row.error = None if error is None else self.redact(error)
        row.result = self._text(content) if error is None else None

    def _change(self, row: Row) -> None:
        if row.end is not None:  # A journal from a file may contain times in the wrong order.
            row.start = row.end if row.start is None else row.start
            row.end = max(row.start, row.end)
        row.version = len(self.entries)

    def _count(self, row: Row, entry: journal.ModelResponded | journal.Compacted) -> None:
        row.tokens, row.cost = (entry.usage.input_tokens, entry.usage.output_tokens), entry.cost
        self.usage.add(entry.usage)
        if entry.cost is not None:
            self.cost = (self.cost or 0.0) + entry.cost

    def _text(self, content: object) -> str:
        return self.redact(text_of(content))


def tree_of(entries: Iterable[Entry], redact: Callable[[str], str] = str) -> RunTree:
    """Build the tree of a run from its journal entries."""
    tree = RunTree(redact)
    for entry in entries:
        tree.add(entry)
    return tree


def _restart(row: Row, now: float) -> None:
    row.start, row.end, row.seconds, row.result, row.error, row.traceback = now, None, None, None, None, None
