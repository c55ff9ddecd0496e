"""The tree of a run for the terminal: the turns of the model, the tool calls with durations and results, the branches.

The tree is built from journal entries. Stream chunks only add the text of an incomplete response. All times come from
the entries and are seconds since the start of the run, so this module needs no clock. `drawing` draws the tree for the
live view and for `acorn show`. The plain view prints a line for each row when the row is complete.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import assert_never

from pydantic_core import from_json

from acorn import StreamChunk
from acorn._inside import FINISH, message_kind, text_of
from acorn.journal import (
    BranchFinished,
    BranchStarted,
    Compacted,
    Entry,
    HistoryEdited,
    InputReceived,
    InputRequested,
    MessagesAdded,
    ModelRequested,
    ModelResponded,
    ResultMessage,
    RunFailed,
    RunFinished,
    RunInterrupted,
    RunPaused,
    RunStarted,
    ToolFinished,
    ToolResultsAdded,
    ToolStarted,
)
from acorn.types import TOOL_ERROR, Usage


@dataclass(eq=False, kw_only=True)
class TaskRow:
    """The base class of rows with a duration and a result: tool calls and branches."""

    started: float | None = None
    """Seconds between the start of the root run and the start of this task. None if the task has not started."""
    seconds: float | None = None
    result: str | None = None
    """The text of the result that the model receives."""
    error: str | None = None

    @property
    def is_over(self) -> bool:
        return self.result is not None or self.error is not None


@dataclass(eq=False)
class CallRow(TaskRow):
    """A call in a response of the model, which calls a tool, starts a branch or submits the answer."""

    id: str
    name: str
    arguments: str = ""
    branches: list[BranchRow] = field(default_factory=list["BranchRow"])
    """The branch that the call started, or the branches that the function of the tool started."""

    @property
    def is_answer(self) -> bool:
        return self.name == FINISH

    @property
    def was_rejected(self) -> bool:
        """Whether the call submitted an answer that did not validate."""
        return self.is_answer and message_kind(self.error) == "validation_error"

    @property
    def was_skipped(self) -> bool:
        """Whether acorn did not execute the call, because the run already had its answer or had to answer now."""
        return message_kind(self.error) == "skipped"


@dataclass(eq=False)
class TurnRow:
    """A response of the model, either complete or as far as it has arrived."""

    step: int
    """The number of the step that the response may start, counted from 1.

    A corrected response has the number of the rejected response. The answer has the number after the last step.
    """
    is_forced: bool = False
    """Whether acorn forced the model to answer in this turn."""
    is_step: bool = False
    """Whether the response started a step. For a response without calls, the next entry decides."""
    text: str = ""
    calls: list[CallRow] = field(default_factory=list[CallRow])
    is_complete: bool = False
    text_chunks: list[str] = field(default_factory=list[str])
    """The text of an incomplete response. This list and the next two collections are empty in a complete turn."""
    reasoning_chunks: list[str] = field(default_factory=list[str])
    call_chunks: dict[int, StreamChunk] = field(default_factory=dict[int, StreamChunk])
    """A dict that maps the index of each incomplete call to its newest chunk, which has the arguments so far."""
    answer_chunk: StreamChunk | None = None
    """The newest chunk of the answer, or None."""

    @property
    def was_rejected(self) -> bool:
        return any(call.was_rejected for call in self.calls)

    def calls_so_far(self, redact: Callable[[str], str]) -> list[CallRow]:
        calls = [chunk.tool_call or {} for chunk in self.call_chunks.values()]
        return [CallRow(call["id"] or "", call["name"], redact(call["arguments"])) for call in calls]


@dataclass(eq=False)
class LineRow:
    """A row for a message that is not a response of the model, or for the end of the run."""

    step: int
    kind: str
    """The role of the message, or `completion`, `error`, `result`."""
    text: str


@dataclass(eq=False)
class BranchRow(TaskRow):
    """A run in the tree: the root run or one of its branches."""

    path: str = ""
    title: str = ""
    """The name of the branch, with a number if several branches with this name started in the same step."""
    label: str = ""
    """The titles of the parents and of the branch, joined with `/`."""
    step: int = 0
    """The number of the parent's step in which the branch started."""
    run_id: str | None = None
    is_call: bool = False
    """Whether a call of the model started the branch. The result of the branch is then the result of the call."""
    rows: list[TurnRow | LineRow | BranchRow] = field(default_factory=list["TurnRow | LineRow | BranchRow"])
    """The rows of the run in order. Branches that belong to a call are in `CallRow.branches` instead."""
    last_turn: TurnRow | None = None
    calls: dict[str, CallRow] = field(default_factory=dict[str, CallRow])
    """A dict that maps call ids to the newest call with that id."""
    children: list[BranchRow] = field(default_factory=list["BranchRow"])
    is_finished: bool = False
    output: object = None
    was_interrupted: bool = False

    def has_step(self, number: int) -> bool:
        """Return True if a number belongs to a step of the run.

        Return False if it belongs to the model response that contains the answer.
        """
        if any(row.step > number for row in self.rows):
            return True
        rows = [row for row in self.rows if row.step == number]
        calls = [call for row in rows if isinstance(row, TurnRow) for call in row.calls]
        lines = [row for row in rows if isinstance(row, LineRow)]
        did_something = any(not call.is_answer and not call.was_skipped for call in calls) or any(
            isinstance(row, BranchRow) for row in rows
        )
        was_reminded = any(message_kind(line.text) == "reminder" for line in lines)
        has_end = any(call.is_answer for call in calls) or any(line.kind in ("completion", "error") for line in lines)
        return did_something or was_reminded or not has_end


CompletedRows = list[tuple[BranchRow, TurnRow | CallRow | BranchRow]]
"""A list of completed rows, each with the run that contains the row."""


class RunTree:
    """The tree of one run, built entry by entry.

    The first entry must belong to the root run.
    """

    def __init__(self, redact: Callable[[str], str] = str) -> None:
        self.root = BranchRow(started=0.0)
        self.tokens = 0
        """The total number of tokens of the root run and its branches."""
        self.cost: float | None = None
        self._redact = redact
        """Removes secrets from every text, because any text may contain an API key."""
        self._runs: dict[str, BranchRow] = {}

    def add_entry(self, entry: Entry) -> CompletedRows:
        """Add a journal entry to the tree and return the rows that are complete now."""
        if self.root.run_id is None:
            self.root.run_id = entry.run_id
            self._runs[entry.run_id] = self.root
        branch = self._runs.get(entry.run_id)
        if branch is None:  # An agent that a tool calls like a function is a separate run.
            return []
        if branch.was_interrupted:  # The run was resumed, so remove the row of the interruption.
            branch.rows.pop()
            branch.was_interrupted = False
        match entry:
            case RunStarted() | HistoryEdited():
                return []
            case MessagesAdded():
                for message in entry.messages[entry.inherited :]:
                    text = self._text(message.get("content"))
                    branch.rows.append(LineRow(entry.step, str(message.get("role")), text))
                return []
            case ModelRequested():
                return _start_turn(branch, entry.step, is_forced=entry.forced is not None)
            case ModelResponded():
                return self._complete_turn(branch, entry)
            case ToolStarted():
                _start_call(branch.calls.get(entry.call_id), (branch.started or 0.0) + entry.at)
                return []
            case ToolFinished():
                return self._finish_call(branch, entry, None if entry.began is None else entry.at - entry.began)
            case BranchStarted():
                self._start_branch(branch, entry)
                return []
            case BranchFinished():
                return self._finish_branch(branch, entry)
            case ToolResultsAdded():
                return self._add_results(branch, entry.step, entry.results)
            case RunFinished():
                return self._finish_run(branch, entry)
            case Compacted():
                self._count(entry.usage, entry.cost)
                if entry.summary:
                    branch.rows.append(LineRow(entry.step, "summary", self._redact(entry.summary)))
                return []
            case InputRequested():
                branch.rows.append(LineRow(entry.step, "human_input_requested", self._redact(entry.question)))
                return []
            case InputReceived():
                branch.rows.append(LineRow(entry.step, "human_input_received", self._redact(entry.answer)))
                return []
            case RunPaused():
                return _complete_text_turn(branch)
            case RunFailed() | RunInterrupted():
                completed = _complete_text_turn(branch) + self._add_results(branch, entry.step, entry.results)
                branch.rows.append(LineRow(entry.step, "error", self._redact(entry.error)))
                branch.was_interrupted = isinstance(entry, RunInterrupted)
                return completed
            case _:
                assert_never(entry)

    def add_chunk(self, chunk: StreamChunk) -> None:
        """Add a stream chunk of an incomplete response to the tree."""
        branch = self.root if chunk.run_id is None else self._runs.get(chunk.run_id)
        turn = None if branch is None else branch.last_turn
        if turn is None or turn.is_complete or chunk.tool_result is not None:
            return
        if chunk.content:
            turn.text_chunks.append(chunk.content)
        if chunk.reasoning:
            turn.reasoning_chunks.append(chunk.reasoning)
        call = chunk.tool_call
        if call is not None:
            turn.call_chunks[call["index"]] = chunk
        elif not chunk.content and not chunk.reasoning and (not chunk.done or chunk.partial is not None):
            turn.answer_chunk = chunk  # The partial output is parsed only when it is drawn.

    # Turns and calls

    def _count(self, usage: Usage, cost: float | None) -> None:
        self.tokens += usage.total_tokens
        if cost is not None:
            self.cost = (self.cost or 0.0) + cost

    def _complete_turn(self, branch: BranchRow, entry: ModelResponded) -> CompletedRows:
        self._count(entry.usage, entry.cost)
        if branch.last_turn is None or branch.last_turn.is_complete:
            _start_turn(branch, entry.step)
        turn = branch.last_turn
        assert turn is not None
        turn.is_complete, turn.text = True, self._redact(entry.content)
        turn.text_chunks, turn.reasoning_chunks, turn.call_chunks = [], [], {}
        turn.calls = [CallRow(call.id, call.name, self._redact(call.arguments)) for call in entry.calls]
        branch.calls |= {call.id: call for call in turn.calls}
        turn.is_step = bool(turn.calls) and not turn.is_forced and not any(call.is_answer for call in turn.calls)
        return [(branch, turn)] if turn.calls else []

    def _finish_call(
        self, branch: BranchRow, entry: ToolFinished | BranchFinished, seconds: float | None
    ) -> CompletedRows:
        call = branch.calls.get(entry.call_id or "")
        if call is None:
            return []
        self._set_result(call, entry, seconds)
        return [(branch, call)]

    def _set_result(self, task: TaskRow, entry: ToolFinished | BranchFinished, seconds: float | None) -> None:
        task.seconds = seconds
        if entry.error is not None:
            task.error = self._redact(entry.error)
        else:
            task.result = self._text(entry.content)

    def _add_results(self, branch: BranchRow, step: int, results: Iterable[ResultMessage]) -> CompletedRows:
        """Add the tool results that the model receives to their calls.

        Return the calls that had no result before, because they did not reach a tool or were stopped.
        """
        completed: CompletedRows = []
        for message in results:
            text = self._text(message.content)
            error = text.removeprefix(TOOL_ERROR) if message.form in ("error", "skipped", "stopped") else None
            call = branch.calls.get(str(message.call_id or ""))  # A hook may have changed the id to any value.
            if call is None:
                branch.rows.append(LineRow(step, "result", text) if error is None else LineRow(step, "error", error))
                continue
            if not call.is_over and not call.is_answer:
                completed.append((branch, call))
            call.result, call.error = (text, None) if error is None else (None, error)
            call.seconds = message.seconds if isinstance(message.seconds, int | float) else call.seconds
        return completed

    def _text(self, content: object) -> str:
        return self._redact(text_of(content))

    # Branches and the end of a run

    def _start_branch(self, parent: BranchRow, entry: BranchStarted) -> None:
        if entry.child_id in self._runs:
            return
        started = (parent.started or 0.0) + entry.at
        call = parent.calls.get(entry.call_id or entry.inside or "")
        branch = self._runs[entry.child_id] = BranchRow(
            started=started,
            path=entry.branch,
            title=_branch_title(parent, entry, call),
            step=entry.step,
            run_id=entry.child_id,
            is_call=entry.call_id is not None and call is not None,
        )
        branch.label = f"{parent.label}/{branch.title}" if parent.label else branch.title
        parent.children.append(branch)
        if branch.is_call:
            _start_call(call, started)
        if call is None:
            parent.rows.append(branch)
        else:
            call.branches.append(branch)

    def _finish_branch(self, parent: BranchRow, entry: BranchFinished) -> CompletedRows:
        if entry.call_id is not None:
            return self._finish_call(parent, entry, entry.seconds)
        branch = self._runs.get(entry.child_id)
        if branch is None or entry.stop_reason == "cancelled":
            return []
        self._set_result(branch, entry, entry.seconds)
        return [(parent, branch)]

    def _finish_run(self, branch: BranchRow, entry: RunFinished) -> CompletedRows:
        text = self._redact(entry.content)
        completed = _complete_text_turn(branch, is_step=entry.stop_reason == "step")
        branch.rows.append(LineRow(entry.step, "error" if entry.form == "error" else "completion", text))
        branch.is_finished, branch.output = True, _parse_output(text) if entry.form == "json" else text
        return completed


def _start_turn(branch: BranchRow, step: int, *, is_forced: bool = False) -> CompletedRows:
    """Add a row for a new model response to a run, and return the previous response if it is complete only now.

    The new request shows whether the previous response was a step or an answer that must be corrected.
    """
    before = branch.last_turn
    completed = _complete_text_turn(branch, is_step=before is not None and step > before.step)
    if before is not None and not before.is_complete:
        branch.rows.remove(before)  # The request was interrupted and is sent again.
    branch.last_turn = TurnRow(step, is_forced=is_forced)
    branch.rows.append(branch.last_turn)
    return [*completed, (branch, before)] if before is not None and before.was_rejected else completed


def _complete_text_turn(branch: BranchRow, *, is_step: bool = False) -> CompletedRows:
    """If the last model response has text but no tool calls, set whether it was a step.

    Return this response in a list. Otherwise return an empty list.
    """
    turn = branch.last_turn
    if turn is None or not turn.is_complete or turn.calls or not turn.text:
        return []
    turn.is_step = is_step and not turn.is_forced
    return [(branch, turn)]


def _start_call(call: CallRow | None, now: float) -> None:
    if call is not None:
        call.started, call.seconds, call.result, call.error = now, None, None, None


def _branch_title(parent: BranchRow, entry: BranchStarted, call: CallRow | None) -> str:
    name = entry.branch.rpartition("/")[2]
    if entry.call_id is not None and call is not None and parent.last_turn is not None:
        same_name = [other for other in parent.last_turn.calls if other.name == call.name]
        return f"{name}#{same_name.index(call) + 1}" if len(same_name) > 1 and call in same_name else name
    # More branches with this name may follow, so the first branch has no number.
    before = sum(child.path == entry.branch and child.step == entry.step for child in parent.children)
    return f"{name}#{before + 1}" if before else name


def _parse_output(text: str) -> object:
    """Return the output of a run as a JSON value, or as text if it is not valid JSON or nested too deep."""
    try:
        output: object = from_json(text)
    except ValueError:
        return text
    return output
