"""The tree of a run for the terminal: turns, tool calls with their times and results, and branches where they started.

The tree is built from journal entries. Chunks only show a response that is still incomplete. All times are those of the
entries, counted from the start of the run; this module reads no clock. `drawing` draws the tree for the live view and
for `acorn show`. The plain view prints a line when a part of it is complete.
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
    """A tool call or a branch: it takes time and has a result."""

    started: float | None = None
    """Seconds after the start of the whole run; None if it has not started."""
    seconds: float | None = None
    result: str | None = None
    """The result as the model reads it."""
    error: str | None = None

    @property
    def is_over(self) -> bool:
        return self.result is not None or self.error is not None


@dataclass(eq=False)
class CallRow(TaskRow):
    """A call of the model: of a tool, of a branch, or with its answer."""

    id: str
    name: str
    arguments: str = ""
    branches: list[BranchRow] = field(default_factory=list["BranchRow"])
    """The branch that the call started, or those that its function started."""

    @property
    def is_answer(self) -> bool:
        return self.name == FINISH

    @property
    def was_rejected(self) -> bool:
        """Whether it is an answer that did not validate."""
        return self.is_answer and message_kind(self.error) == "validation_error"

    @property
    def was_skipped(self) -> bool:
        """Whether it was not executed, because the answer came with it or was due."""
        return message_kind(self.error) == "skipped"


@dataclass(eq=False)
class TurnRow:
    """One response of the model."""

    step: int
    """The number of the step that it may start, from 1. A correction has the same number, and so has the answer."""
    is_forced: bool = False
    """Whether it must be an answer."""
    is_step: bool = False
    """Whether it started a step. For a turn with text only, this is known when the next entry comes."""
    text: str = ""
    calls: list[CallRow] = field(default_factory=list[CallRow])
    is_complete: bool = False
    text_chunks: list[str] = field(default_factory=list[str])
    """The text so far. This and the next two lists are empty once the turn is complete."""
    reasoning_chunks: list[str] = field(default_factory=list[str])
    call_chunks: dict[int, StreamChunk] = field(default_factory=dict[int, StreamChunk])
    """The newest chunk of each call, with its arguments so far."""
    answer_chunk: StreamChunk | None = None
    """The newest chunk of the answer, until the answer is accepted."""

    @property
    def was_rejected(self) -> bool:
        return any(call.was_rejected for call in self.calls)

    def calls_so_far(self, redact: Callable[[str], str]) -> list[CallRow]:
        calls = [chunk.tool_call or {} for chunk in self.call_chunks.values()]
        return [CallRow(call["id"] or "", call["name"], redact(call["arguments"])) for call in calls]


@dataclass(eq=False)
class LineRow:
    """A message that is not a response of the model, or the end of the run."""

    step: int
    kind: str
    """The role of the message, or `completion`, `error`, `result`."""
    text: str


@dataclass(eq=False)
class BranchRow(TaskRow):
    """A run in the tree; the root is the run itself."""

    path: str = ""
    title: str = ""
    """The name of the branch, with a number if other branches of this name started in the same step."""
    label: str = ""
    """The titles from the root down to the branch."""
    step: int = 0
    """The step of the parent in which the branch started."""
    run_id: str | None = None
    is_call: bool = False
    """Whether a call of the model started it; the result of the branch is then the result of that call."""
    parts: list[TurnRow | LineRow | BranchRow] = field(default_factory=list["TurnRow | LineRow | BranchRow"])
    """The rows in order, without the branches below a call."""
    last_turn: TurnRow | None = None
    calls: dict[str, CallRow] = field(default_factory=dict[str, CallRow])
    """The newest call of each id."""
    children: list[BranchRow] = field(default_factory=list["BranchRow"])
    is_finished: bool = False
    output: object = None
    was_interrupted: bool = False

    def has_step(self, number: int) -> bool:
        """Return whether a number belongs to a step; the turn of the answer has the number after the last step."""
        if any(part.step > number for part in self.parts):
            return True
        parts = [part for part in self.parts if part.step == number]
        calls = [call for part in parts if isinstance(part, TurnRow) for call in part.calls]
        lines = [part for part in parts if isinstance(part, LineRow)]
        did_something = any(not call.is_answer and not call.was_skipped for call in calls) or any(
            isinstance(part, BranchRow) for part in parts
        )
        was_reminded = any(message_kind(line.text) == "reminder" for line in lines)
        has_end = any(call.is_answer for call in calls) or any(line.kind in ("completion", "error") for line in lines)
        return did_something or was_reminded or not has_end


CompletedRows = list[tuple[BranchRow, TurnRow | CallRow | BranchRow]]
"""The rows that an entry completed, each with the run that it belongs to."""


class RunTree:
    """The tree of the run whose entry comes first."""

    def __init__(self, redact: Callable[[str], str] = str) -> None:
        self.root = BranchRow(started=0.0)
        self.tokens = 0
        """The tokens of all runs in the tree."""
        self.cost: float | None = None
        self._redact = redact
        """Applied to every text, because any text may contain a key."""
        self._runs: dict[str, BranchRow] = {}

    def add_entry(self, entry: Entry) -> CompletedRows:
        """Add an entry and return the rows that it completed."""
        if self.root.run_id is None:
            self.root.run_id = entry.run_id
            self._runs[entry.run_id] = self.root
        branch = self._runs.get(entry.run_id)
        if branch is None:  # An agent that a tool calls as a function is not part of the run.
            return []
        if branch.was_interrupted:  # The run was resumed, so the interruption was not its end.
            branch.parts.pop()
            branch.was_interrupted = False
        match entry:
            case RunStarted() | HistoryEdited():
                return []
            case MessagesAdded():
                for message in entry.messages[entry.inherited :]:
                    text = self._text(message.get("content"))
                    branch.parts.append(LineRow(entry.step, str(message.get("role")), text))
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
                    branch.parts.append(LineRow(entry.step, "summary", self._redact(entry.summary)))
                return []
            case InputRequested():
                branch.parts.append(LineRow(entry.step, "human_input_requested", self._redact(entry.question)))
                return []
            case InputReceived():
                branch.parts.append(LineRow(entry.step, "human_input_received", self._redact(entry.answer)))
                return []
            case RunPaused():
                return _complete_text_turn(branch)
            case RunFailed() | RunInterrupted():
                completed = _complete_text_turn(branch) + self._add_results(branch, entry.step, entry.results)
                branch.parts.append(LineRow(entry.step, "error", self._redact(entry.error)))
                branch.was_interrupted = isinstance(entry, RunInterrupted)
                return completed
            case _:
                assert_never(entry)

    def add_chunk(self, chunk: StreamChunk) -> None:
        """Add a chunk of an incomplete response."""
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
            turn.answer_chunk = chunk  # Its partial output is parsed when it is drawn.

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
        """Set the results that the model reads; return the calls that reached no tool or were stopped."""
        completed: CompletedRows = []
        for message in results:
            text = self._text(message.content)
            error = text.removeprefix(TOOL_ERROR) if message.form in ("error", "skipped", "stopped") else None
            call = branch.calls.get(str(message.call_id or ""))  # A hook may have changed the id to anything.
            if call is None:
                branch.parts.append(LineRow(step, "result", text) if error is None else LineRow(step, "error", error))
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
            parent.parts.append(branch)
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
        branch.parts.append(LineRow(entry.step, "error" if entry.form == "error" else "completion", text))
        branch.is_finished, branch.output = True, _parse_output(text) if entry.form == "json" else text
        return completed


def _start_turn(branch: BranchRow, step: int, *, is_forced: bool = False) -> CompletedRows:
    """Start a turn. Only now it is known whether the turn before was a step or an answer to correct."""
    before = branch.last_turn
    completed = _complete_text_turn(branch, is_step=before is not None and step > before.step)
    if before is not None and not before.is_complete:
        branch.parts.remove(before)  # The request was interrupted and is repeated.
    branch.last_turn = TurnRow(step, is_forced=is_forced)
    branch.parts.append(branch.last_turn)
    return [*completed, (branch, before)] if before is not None and before.was_rejected else completed


def _complete_text_turn(branch: BranchRow, *, is_step: bool = False) -> CompletedRows:
    """Return the last turn if it has text only, now that it is known whether it was a step."""
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
    # The number of branches that will follow is not known, so the first one has no number.
    before = sum(child.path == entry.branch and child.step == entry.step for child in parent.children)
    return f"{name}#{before + 1}" if before else name


def _parse_output(text: str) -> object:
    """Parse the output; return the text if it is nested too deep for the parser."""
    try:
        output: object = from_json(text)
    except ValueError:
        return text
    return output
