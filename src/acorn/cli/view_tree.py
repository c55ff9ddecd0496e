"""The tree of one run: its turns, calls with their times and results, and branches where they were begun.

Fed by the entries of the journals; chunks tell only of a response that is still coming in. Pure: the times
are those of the entries, counted from the beginning of the run. `drawing` draws it for the live view and for
`acorn show`; the plain view writes a line when something in it is complete.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, assert_never

from pydantic_core import from_json

from acorn import StreamChunk
from acorn._inside import FINISH, is_reminder, is_skipped, is_validation_error, text_of
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

Chunk = StreamChunk


@dataclass(eq=False, kw_only=True)
class TaskRow:
    """What takes its time and comes to something."""

    began: float | None = None
    """Seconds into the whole run; None where it has not begun."""
    took: float | None = None
    said: str | None = None
    """What it came to, as a model reads it."""
    error: str | None = None

    @property
    def is_over(self) -> bool:
        return self.said is not None or self.error is not None


@dataclass(eq=False)
class CallRow(TaskRow):
    """A call that the model made: of a tool, of a branch, or with its answer."""

    id: str
    name: str
    arguments: str = ""
    branches: list[BranchRow] = field(default_factory=list["BranchRow"])
    """The branch that it began, or those that its function did."""

    @property
    def is_answer(self) -> bool:
        return self.name == FINISH

    @property
    def was_refused(self) -> bool:
        """Whether it is an answer that did not validate."""
        return self.is_answer and is_validation_error(self.error)

    @property
    def was_skipped(self) -> bool:
        """Whether it was not executed, because the answer came with it or was due."""
        return is_skipped(self.error)


@dataclass(eq=False)
class TurnRow:
    """One response of the model."""

    step: int
    """Which step of its run it may begin, counted from 1; a correction has the same number, and so has the answer."""
    is_forced: bool = False
    """Whether it must be an answer."""
    is_step: bool = False
    """Whether it began a step; of a turn of text alone, only what comes next tells."""
    text: str = ""
    calls: list[CallRow] = field(default_factory=list[CallRow])
    is_complete: bool = False
    pieces: list[str] = field(default_factory=list[str])
    """What has come in of its text; this and the following are empty once the turn is complete."""
    reasoning: list[str] = field(default_factory=list[str])
    coming: dict[int, Chunk] = field(default_factory=dict[int, Chunk])
    """The newest chunk of each call, which has its arguments so far."""
    answer: Chunk | None = None
    """The newest chunk of the answer; it is kept until the answer is accepted."""

    @property
    def was_refused(self) -> bool:
        return any(call.was_refused for call in self.calls)

    def calls_so_far(self, hide: Callable[[str], str]) -> list[CallRow]:
        made = [chunk.tool_call or {} for chunk in self.coming.values()]
        return [CallRow(call["id"] or "", call["name"], hide(call["arguments"])) for call in made]


@dataclass(eq=False)
class LineRow:
    """What is no turn of the model's: a message, or an end."""

    step: int
    kind: str
    """Who said it, or `completion`, `error`, `result`."""
    text: str


@dataclass(eq=False)
class BranchRow(TaskRow):
    """A run in the tree; the topmost is the run itself."""

    path: str = ""
    title: str = ""
    """Its name, with a number where others of this name were begun in the same step."""
    label: str = ""
    """The titles from the top down to it."""
    step: int = 0
    """The step of the run above in which it was begun."""
    run_id: str | None = None
    is_called: bool = False
    """Whether a call of the model's began it; what it comes to is the result of that call."""
    parts: list[TurnRow | LineRow | BranchRow] = field(default_factory=list["TurnRow | LineRow | BranchRow"])
    """In order; branches that hang below a call are found there."""
    turn: TurnRow | None = None
    """The last one."""
    calls: dict[str, CallRow] = field(default_factory=dict[str, CallRow])
    """The newest of each id."""
    children: list[BranchRow] = field(default_factory=list["BranchRow"])
    is_finished: bool = False
    output: Any = None
    was_interrupted: bool = False

    def took_step(self, number: int) -> bool:
        """Whether a number is that of a step; the turn of the answer has the one behind the last."""
        if any(part.step > number for part in self.parts):
            return True
        own = [part for part in self.parts if part.step == number]
        calls = [call for part in own if isinstance(part, TurnRow) for call in part.calls]
        lines = [part for part in own if isinstance(part, LineRow)]
        did_something = any(not call.is_answer and not call.was_skipped for call in calls) or any(
            isinstance(part, BranchRow) for part in own
        )
        was_reminded = any(is_reminder(line.text) for line in lines)
        has_end = any(call.is_answer for call in calls) or any(line.kind in ("completion", "error") for line in lines)
        return did_something or was_reminded or not has_end


News = list[tuple[BranchRow, TurnRow | CallRow | BranchRow]]
"""What is complete now, each with the run that it belongs to."""


class RunTree:
    """The tree of the first run that is heard of."""

    def __init__(self, hide: Callable[[str], str] = str) -> None:
        self.root = BranchRow(began=0.0)
        self.tokens = 0
        """What all runs in the tree have used."""
        self.cost: float | None = None
        self._hide = hide
        """Anything that is said may hold a key."""
        self._runs: dict[str, BranchRow] = {}

    def hear(self, entry: Entry) -> News:
        """Take in an entry; what is complete now."""
        if self.root.run_id is None:
            self.root.run_id = entry.run_id
            self._runs[entry.run_id] = self.root
        branch = self._runs.get(entry.run_id)
        if branch is None:  # an agent that a tool calls like any function is no part of the run
            return []
        if branch.was_interrupted:  # it goes on, so that was not its end
            branch.parts.pop()
            branch.was_interrupted = False
        match entry:
            case RunStarted() | HistoryEdited():
                return []
            case MessagesAdded():
                own = entry.messages[entry.inherited :]
                said = [LineRow(entry.step, str(each.get("role")), self._text(each.get("content"))) for each in own]
                branch.parts += said
                return []
            case ModelRequested():
                return _ask(branch, entry.step, is_forced=entry.forced is not None)
            case ModelResponded():
                return self._answer(branch, entry)
            case ToolStarted():
                _begin(branch.calls.get(entry.call_id), (branch.began or 0.0) + entry.at)
                return []
            case ToolFinished():
                took = None if entry.began is None else entry.at - entry.began
                return self._end_call(branch, entry, took)
            case BranchStarted():
                self._begin_branch(branch, entry)
                return []
            case BranchFinished():
                return self._end_branch(branch, entry)
            case ToolResultsAdded():
                return self._take_results(branch, entry.step, entry.results)
            case RunFinished():
                return self._finish(branch, entry)
            case Compacted():
                self._count(entry.usage, entry.cost)
                if entry.summary:
                    branch.parts.append(LineRow(entry.step, "summary", self._hide(entry.summary)))
                return []
            case InputRequested():
                branch.parts.append(LineRow(entry.step, "human_input_requested", self._hide(entry.question)))
                return []
            case InputReceived():
                branch.parts.append(LineRow(entry.step, "human_input_received", self._hide(entry.answer)))
                return []
            case RunPaused():
                return _last_words(branch)
            case RunFailed() | RunInterrupted():
                news = _last_words(branch) + self._take_results(branch, entry.step, entry.results)
                branch.parts.append(LineRow(entry.step, "error", self._hide(entry.error)))
                branch.was_interrupted = isinstance(entry, RunInterrupted)
                return news
            case _:
                assert_never(entry)

    def grow(self, chunk: Chunk) -> None:
        """Take in a chunk of a response that is still coming in."""
        branch = self.root if chunk.run_id is None else self._runs.get(chunk.run_id)
        turn = None if branch is None else branch.turn
        if turn is None or turn.is_complete or chunk.tool_result is not None:
            return
        if chunk.content:
            turn.pieces.append(chunk.content)
        if chunk.reasoning:
            turn.reasoning.append(chunk.reasoning)
        call = chunk.tool_call
        if call is not None:
            turn.coming[call["index"]] = chunk
        elif not chunk.content and not chunk.reasoning and (not chunk.done or chunk.partial is not None):
            turn.answer = chunk  # parsed when somebody draws it

    # Turns and calls

    def _count(self, usage: Usage, cost: float | None) -> None:
        self.tokens += usage.total_tokens
        if cost is not None:
            self.cost = (self.cost or 0.0) + cost

    def _answer(self, branch: BranchRow, entry: ModelResponded) -> News:
        self._count(entry.usage, entry.cost)
        if branch.turn is None or branch.turn.is_complete:
            _ask(branch, entry.step)
        turn = branch.turn
        assert turn is not None
        turn.is_complete, turn.text = True, self._hide(entry.content)
        turn.pieces, turn.reasoning, turn.coming = [], [], {}
        turn.calls = [CallRow(call.id, call.name, self._hide(call.arguments)) for call in entry.calls]
        branch.calls |= {call.id: call for call in turn.calls}
        turn.is_step = bool(turn.calls) and not turn.is_forced and not any(call.is_answer for call in turn.calls)
        return [(branch, turn)] if turn.calls else []

    def _end_call(self, branch: BranchRow, entry: ToolFinished | BranchFinished, took: float | None) -> News:
        call = branch.calls.get(entry.call_id or "")
        if call is None:
            return []
        self._end(call, entry, took)
        return [(branch, call)]

    def _end(self, task: TaskRow, entry: ToolFinished | BranchFinished, took: float | None) -> None:
        task.took = took
        if entry.error is not None:
            task.error = self._hide(entry.error)
        else:
            task.said = self._text(entry.content)

    def _take_results(self, branch: BranchRow, step: int, results: Iterable[ResultMessage]) -> News:
        """What the model reads of the calls; those are news that came to no tool, or were stopped."""
        news: News = []
        for result in results:
            text = self._text(result.content)
            error = text.removeprefix(TOOL_ERROR) if result.form in ("error", "skipped", "stopped") else None
            call = branch.calls.get(str(result.call_id or ""))  # a hook may have made anything of it
            if call is None:
                branch.parts.append(LineRow(step, "result", text) if error is None else LineRow(step, "error", error))
                continue
            if not call.is_over and not call.is_answer:
                news.append((branch, call))
            call.said, call.error = (text, None) if error is None else (None, error)
            call.took = result.seconds if isinstance(result.seconds, int | float) else call.took
        return news

    def _text(self, content: Any) -> str:
        return self._hide(text_of(content))

    # Branches

    def _begin_branch(self, above: BranchRow, entry: BranchStarted) -> None:
        if entry.child_id in self._runs:
            return
        began = (above.began or 0.0) + entry.at
        call = above.calls.get(entry.call_id or entry.inside or "")
        made = self._runs[entry.child_id] = BranchRow(
            began=began,
            path=entry.branch,
            title=_title(above, entry, call),
            step=entry.step,
            run_id=entry.child_id,
            is_called=entry.call_id is not None and call is not None,
        )
        made.label = f"{above.label}/{made.title}" if above.label else made.title
        above.children.append(made)
        if made.is_called:
            _begin(call, began)
        if call is None:
            above.parts.append(made)
        else:
            call.branches.append(made)

    def _end_branch(self, above: BranchRow, entry: BranchFinished) -> News:
        if entry.call_id is not None:
            return self._end_call(above, entry, entry.seconds)
        branch = self._runs.get(entry.child_id)
        if branch is None or entry.stop_reason == "cancelled":
            return []
        self._end(branch, entry, entry.seconds)
        return [(above, branch)]

    def _finish(self, branch: BranchRow, entry: RunFinished) -> News:
        text, news = self._hide(entry.content), _last_words(branch, is_step=entry.stop_reason == "step")
        branch.parts.append(LineRow(entry.step, "error" if entry.form == "error" else "completion", text))
        branch.is_finished, branch.output = True, _parsed(text) if entry.form == "json" else text
        return news


def _ask(branch: BranchRow, step: int, *, is_forced: bool = False) -> News:
    """A turn begins. By then is known what the one before was: a step, or an answer that is asked for again."""
    before = branch.turn
    news = _last_words(branch, is_step=before is not None and step > before.step)
    if before is not None and not before.is_complete:
        branch.parts.remove(before)  # it was interrupted, and is asked for anew
    branch.turn = TurnRow(step, is_forced=is_forced)
    branch.parts.append(branch.turn)
    return [*news, (branch, before)] if before is not None and before.was_refused else news


def _last_words(branch: BranchRow, *, is_step: bool = False) -> News:
    """The last turn if it was of text alone, once it is known what it was."""
    turn = branch.turn
    if turn is None or not turn.is_complete or turn.calls or not turn.text:
        return []
    turn.is_step = is_step and not turn.is_forced
    return [(branch, turn)]


def _begin(call: CallRow | None, now: float) -> None:
    if call is not None:
        call.began, call.took, call.said, call.error = now, None, None, None


def _title(above: BranchRow, entry: BranchStarted, call: CallRow | None) -> str:
    name = entry.branch.rpartition("/")[2]
    if entry.call_id is not None and call is not None and above.turn is not None:
        alike = [each for each in above.turn.calls if each.name == call.name]
        return f"{name}#{alike.index(call) + 1}" if len(alike) > 1 and call in alike else name
    # How many more there will be nobody knows, so the first has no number.
    before = sum(each.path == entry.branch and each.step == entry.step for each in above.children)
    return f"{name}#{before + 1}" if before else name


def _parsed(text: str) -> Any:
    """What the JSON says; the text itself where it is nested too deep for the reader."""
    try:
        return from_json(text)
    except ValueError:
        return text
