"""The entries of a run's journal, which is the log of everything that happened in the run.

Every entry has the id of the run (`run_id`), the step (`step`) and the time in seconds since the start of the run
(`at`). Only the machine (the internal class that executes a run) appends entries. An entry never changes, because it
contains copies of all data that can be edited. Threads, stores, telemetry and views read the journal.

    with acorn.listen(print):
        agent(question="...")
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, NamedTuple

from acorn.types import Content, Fallback, ForkedFrom, JsonObject, Message, Usage

Form = Literal["text", "json", "error", "skipped", "stopped"]
"""The kind of a result: text, JSON, an error, a call that never started (`skipped`) or never returned (`stopped`)."""


class CalledTool(NamedTuple):
    """A tool call in a model response, with the arguments as the model wrote them."""

    id: str
    name: str
    arguments: str
    """The arguments as JSON text."""


class ResultMessage(NamedTuple):
    """The result of one tool call, as the model receives it."""

    call_id: str
    content: Content
    form: Form
    seconds: float | None
    """The duration of the function or branch in seconds, or None if it was not called."""


class RunStarted(NamedTuple):
    """The run has started, but acorn has not sent a request to the model."""

    run_id: str
    step: int
    at: float
    """The seconds since the start of the run."""
    module: str
    """The path of the module class, such as `package.file:Class`."""
    input: Any
    """The input of the run, an instance of the input class."""
    parent_id: str | None = None
    """The id of the parent run, or None if this run is not a branch."""
    branch: str | None = None
    """The path of the branch, such as `outer/inner`."""
    call_id: str | None = None
    """The id of the tool call that started the branch, or None if the user's code started it."""
    forked_from: ForkedFrom | None = None
    """The run that this run is a fork of, or None. The journal contains copies of its first steps."""


class MessagesAdded(NamedTuple):
    """acorn has added messages to the history: the first messages, a reminder or a correction."""

    run_id: str
    step: int
    at: float
    messages: tuple[Message, ...]
    where: int | None = None
    """The index at which the messages are inserted, or None for the end of the history."""
    inherited: int = 0
    """The number of messages at the start of `messages` that a branch inherits from its parent."""


class ModelRequested(NamedTuple):
    """acorn sends a request to the model."""

    run_id: str
    step: int
    at: float
    ask_id: str
    model: str
    messages: int
    """The number of messages in the request."""
    forced: str | None
    """The reason why the model must finish now: `forced` (max_steps), `limit` or `loop`. None if it may continue."""


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
    """The additional keys of the assistant message, such as signed reasoning blocks."""
    stop_reason: str
    refusal: str | None
    """The model's explanation if it refused to answer, or None. The history does not contain a refusal."""
    usage: Usage
    cost: float | None
    attempts: int
    """The number of requests that were necessary. It is 0 for a response that a fork has copied."""
    waits: tuple[float, ...]
    """The waiting time before each retry, in seconds."""
    fallbacks: tuple[Fallback, ...] = ()
    """The fallbacks from models that failed before this model responded.

    `attempts` and `waits` contain only the requests to this model."""


class ToolStarted(NamedTuple):
    """acorn calls the function of a tool."""

    run_id: str
    step: int
    at: float
    call_id: str
    name: str
    arguments: str


class ToolFinished(NamedTuple):
    """A tool call has returned a result or an error, which `on_step` may still change."""

    run_id: str
    step: int
    at: float
    call_id: str
    name: str
    began: float | None
    """The time when the function started, or None if the tool is unknown or the arguments are invalid."""
    content: Content
    """The result as the model receives it."""
    error: str | None
    form: Form = "text"
    seconds: float | None = None
    """The duration of the function in seconds, or None if it was not called."""
    traceback: str | None = None
    """The traceback of the exception that the tool raised, with secrets redacted. The model does not receive it."""


class InputRequested(NamedTuple):
    """A tool call needs human input: an answer to a question, or an approval."""

    run_id: str
    step: int
    at: float
    request_id: str
    call_id: str
    kind: Literal["question", "approval"]
    question: str
    name: str
    """The name of the tool that the model called."""
    arguments: str
    choices: tuple[str, ...] | None = None


class InputReceived(NamedTuple):
    """A person has answered a request for human input."""

    run_id: str
    step: int
    at: float
    request_id: str
    call_id: str
    answer: str
    """The answer as text. An answer that is not text is written as JSON."""


class BranchStarted(NamedTuple):
    """The run has started a branch, or an agent that is used as a tool."""

    run_id: str
    step: int
    at: float
    child_id: str
    branch: str
    """The path of the branch, such as `outer/inner`."""
    call_id: str | None
    """The id of the tool call that started the branch, or None if the user's code started it."""
    inside: str | None = None
    """The id of the tool call whose function started the branch. None if the model or a hook started it."""


class BranchFinished(NamedTuple):
    """A branch, or an agent that is used as a tool, has finished or failed."""

    run_id: str
    step: int
    at: float
    child_id: str
    branch: str
    call_id: str | None
    stop_reason: str | None
    seconds: float
    content: Content
    """The result as the model receives it."""
    error: str | None
    usage: Usage
    cost: float | None
    form: Form = "text"
    traceback: str | None = None
    """The traceback of the exception of user code that ended the branch, with secrets redacted."""

    @property
    def name(self) -> str:
        """The name of the branch or of the tool, without the names of the branches above it."""
        return self.branch.rpartition("/")[2]


class ToolResultsAdded(NamedTuple):
    """acorn has added the tool results of a step to the history."""

    run_id: str
    step: int
    at: float
    results: tuple[ResultMessage, ...]
    context: Content | None
    """The content that `step.add_to_context` added, or None."""
    where: int | None
    """The index of the results in the history, or None if the history no longer contains the tool calls."""


class HistoryEdited(NamedTuple):
    """The user has edited the history, and `messages` replace `history[where : where + removed]`."""

    run_id: str
    step: int
    at: float
    where: int
    removed: int
    messages: tuple[Message, ...]
    added: tuple[int, ...]
    """The indexes of the new messages in `messages`. The user moved, copied or edited the other messages."""


class Compacted(NamedTuple):
    """The model has summarized older steps, and `messages` replace `history[where : where + removed]`."""

    run_id: str
    step: int
    at: float
    asked: float
    """The time when the request started."""
    model: str
    summary: str
    """The summary. If the model wrote no summary, it is empty and the history is unchanged."""
    where: int
    removed: int
    messages: tuple[Message, ...]
    """The message with the summary, and the inputs, which are not summarized."""
    steps: tuple[int, ...]
    """The numbers of the steps that the summary replaces. The messages before the first step have the number 0."""
    usage: Usage
    cost: float | None


class RunFinished(NamedTuple):
    """The run has finished with an output."""

    run_id: str
    step: int
    at: float
    stop_reason: str
    content: str
    """The output as text or JSON, or the reason why a single-turn run is unfinished."""
    form: Form


class RunFailed(NamedTuple):
    """The run has failed with an error."""

    run_id: str
    step: int
    at: float
    error: str
    """The class and the message of the error, with secrets redacted."""
    results: tuple[ResultMessage, ...]
    """The results that acorn added to the history for the tool calls in progress."""


class RunInterrupted(NamedTuple):
    """Ctrl-C, a cancellation, a limit or a failed provider has stopped the run, which can be resumed."""

    run_id: str
    step: int
    at: float
    error: str
    results: tuple[ResultMessage, ...]


class RunPaused(NamedTuple):
    """The run waits for human input and can be resumed with the answers."""

    run_id: str
    step: int
    at: float
    results: tuple[ResultMessage, ...]
    """The results that acorn added to the history for the tool calls in progress."""


Entry = (
    RunStarted | MessagesAdded | ModelRequested | ModelResponded | ToolStarted | ToolFinished
    | InputRequested | InputReceived | BranchStarted | BranchFinished | ToolResultsAdded
    | HistoryEdited | Compacted | RunFinished | RunFailed | RunInterrupted | RunPaused
)  # fmt: skip
Listener = Callable[[Entry], object]
"""A function that `acorn.listen` calls with every entry."""


__all__ = [
    "BranchStarted", "BranchFinished", "CalledTool", "Compacted", "Entry", "RunFailed", "Fallback", "RunFinished",
    "HistoryEdited", "InputReceived", "InputRequested", "RunInterrupted", "Listener", "MessagesAdded",
    "ModelResponded", "ModelRequested", "ResultMessage", "ToolResultsAdded", "RunPaused", "RunStarted",
    "ToolStarted", "ToolFinished",
]  # fmt: skip
