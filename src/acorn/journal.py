"""The entries of a run's journal. Each has the run, the step and the time.

Only the machine appends entries, and an entry never changes: it contains copies of everything that can be edited. The
thread, the stores, telemetry and the views are created from the journal.

    with acorn.listen(print):
        agent(question="...")
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, NamedTuple

from acorn.types import Content, Fallback, ForkedFrom, JsonObject, Message, Usage

Form = Literal["text", "json", "error", "skipped", "stopped"]
"""The form of the text of a result. A skipped call was never started, and a stopped call never returned."""


class CalledTool(NamedTuple):
    """A tool call as the model wrote it."""

    id: str
    name: str
    arguments: str
    """The arguments as JSON text."""


class ResultMessage(NamedTuple):
    """The result of one call, as the model reads it."""

    call_id: str
    content: Content
    form: Form
    seconds: float | None
    """The duration of the function or branch, or None if it was not called."""


class RunStarted(NamedTuple):
    """The run has started. No request was sent yet."""

    run_id: str
    step: int
    at: float
    """Seconds since the start of the run."""
    module: str
    """The class of the module, `package.file:Class`."""
    input: Any
    """The input, an instance of the input class."""
    parent_id: str | None = None
    """The id of the parent run, if this run is a branch."""
    branch: str | None = None
    """The path of the branch, `outer/inner`."""
    call_id: str | None = None
    """The tool call that started the branch, or None if the user's code started it."""
    forked_from: ForkedFrom | None = None
    """The run that this run was forked from. Its first steps are copied into this journal, but not repeated."""


class MessagesAdded(NamedTuple):
    """acorn has added messages to the history: the first messages, a reminder or a correction."""

    run_id: str
    step: int
    at: float
    messages: tuple[Message, ...]
    where: int | None = None
    """The index of the message that they are inserted before, or None for the end."""
    inherited: int = 0
    """The number of messages at the start that a branch inherits from its parent."""


class ModelRequested(NamedTuple):
    """A request is sent to the model."""

    run_id: str
    step: int
    at: float
    ask_id: str
    model: str
    messages: int
    """The number of messages in the request."""
    forced: str | None
    """Why the model must finish now: `forced` (max_steps), `limit` or `loop`. None if it need not."""


class ModelResponded(NamedTuple):
    """The model has responded."""

    run_id: str
    step: int
    at: float
    asked: float
    """The time when the request started."""
    model: str
    content: str
    reasoning: str | None
    calls: tuple[CalledTool, ...]
    extra: JsonObject
    """Further keys of the assistant message, such as signed reasoning blocks."""
    stop_reason: str
    refusal: str | None
    """Why the model refused to answer. Such a response is not in the history."""
    usage: Usage
    cost: float | None
    attempts: int
    """The number of requests that were needed. 0 for a response that a fork copied, which has no usage either."""
    waits: tuple[float, ...]
    """The seconds of waiting before each retry."""
    fallbacks: tuple[Fallback, ...] = ()
    """The models of a list that failed before this one answered. `attempts` and `waits` count only this model."""


class ToolStarted(NamedTuple):
    """The function of a tool is called."""

    run_id: str
    step: int
    at: float
    call_id: str
    name: str
    arguments: str


class ToolFinished(NamedTuple):
    """A tool call has its result, before `on_step` may change it."""

    run_id: str
    step: int
    at: float
    call_id: str
    name: str
    began: float | None
    """The time when the function was called, or None if it was not called: an unknown tool or wrong arguments."""
    content: Content
    """The result as the model reads it."""
    error: str | None


class InputRequested(NamedTuple):
    """A call needs human input: an answer to a question, or an approval."""

    run_id: str
    step: int
    at: float
    request_id: str
    call_id: str
    kind: Literal["question", "approval"]
    question: str
    name: str
    """The tool that the model called."""
    arguments: str
    choices: tuple[str, ...] | None = None


class InputReceived(NamedTuple):
    """A person has answered a request."""

    run_id: str
    step: int
    at: float
    request_id: str
    call_id: str
    answer: str
    """The answer: text as it is, any other value as JSON."""


class BranchStarted(NamedTuple):
    """The run has started a branch, or an agent that is a tool."""

    run_id: str
    step: int
    at: float
    child_id: str
    branch: str
    """The path of the branch, `outer/inner`."""
    call_id: str | None
    """The tool call that started the branch, or None if the user's code started it."""
    inside: str | None = None
    """The tool call whose function started the branch. None if the model or a hook started it."""


class BranchFinished(NamedTuple):
    """A branch, or an agent that is a tool, has finished or failed."""

    run_id: str
    step: int
    at: float
    child_id: str
    branch: str
    call_id: str | None
    stop_reason: str | None
    seconds: float
    content: Content
    """The result as the model reads it."""
    error: str | None
    usage: Usage
    cost: float | None


class ToolResultsAdded(NamedTuple):
    """The tool results of a step were added to the history."""

    run_id: str
    step: int
    at: float
    results: tuple[ResultMessage, ...]
    context: Content | None
    """The data of `add_to_context`."""
    where: int | None
    """The index of the results in the history, or None if their response was removed."""


class HistoryEdited(NamedTuple):
    """The user has edited the history: `history[where : where + removed]` is now `messages`."""

    run_id: str
    step: int
    at: float
    where: int
    removed: int
    messages: tuple[Message, ...]
    added: tuple[int, ...]
    """The indexes of the new messages. The others were moved, copied or edited."""


class Compacted(NamedTuple):
    """The model has summarized older steps: `history[where : where + removed]` is now `messages`."""

    run_id: str
    step: int
    at: float
    asked: float
    """The time when the request started."""
    model: str
    summary: str
    """The summary in the history. If the model wrote none, it is empty and the history has not changed."""
    where: int
    removed: int
    messages: tuple[Message, ...]
    """The summary, and the inputs, which are kept."""
    steps: tuple[int, ...]
    """The steps that the summary replaces. 0 stands for the messages before the first step."""
    usage: Usage
    cost: float | None


class RunFinished(NamedTuple):
    """The run has finished with an output."""

    run_id: str
    step: int
    at: float
    stop_reason: str
    content: str
    """The output as text or JSON. For an unfinished single turn, the reason."""
    form: Form


class RunFailed(NamedTuple):
    """The run has failed."""

    run_id: str
    step: int
    at: float
    error: str
    """The class and the message of the error, with secrets redacted."""
    results: tuple[ResultMessage, ...]
    """The results that the history has for the tool calls that were in progress."""


class RunInterrupted(NamedTuple):
    """The run was stopped by Ctrl-C, a cancellation, a limit or a failed provider. It can be resumed."""

    run_id: str
    step: int
    at: float
    error: str
    results: tuple[ResultMessage, ...]


class RunPaused(NamedTuple):
    """The run waits only for human input. It can be resumed with the answers."""

    run_id: str
    step: int
    at: float
    results: tuple[ResultMessage, ...]
    """The results that the history has for the tool calls that were in progress."""


Entry = (
    RunStarted
    | MessagesAdded
    | ModelRequested
    | ModelResponded
    | ToolStarted
    | ToolFinished
    | InputRequested
    | InputReceived
    | BranchStarted
    | BranchFinished
    | ToolResultsAdded
    | HistoryEdited
    | Compacted
    | RunFinished
    | RunFailed
    | RunInterrupted
    | RunPaused
)
Listener = Callable[[Entry], object]


__all__ = [
    "BranchStarted",
    "BranchFinished",
    "CalledTool",
    "Compacted",
    "Entry",
    "RunFailed",
    "Fallback",
    "RunFinished",
    "HistoryEdited",
    "InputReceived",
    "InputRequested",
    "RunInterrupted",
    "Listener",
    "MessagesAdded",
    "ModelResponded",
    "ModelRequested",
    "ResultMessage",
    "ToolResultsAdded",
    "RunPaused",
    "RunStarted",
    "ToolStarted",
    "ToolFinished",
]
