"""The journal of a run: what happened, entry by entry, each with the run, the step and the time.

The loop alone writes it, beside the history, and nobody changes an entry afterwards: what could be edited
is in it as a copy. The thread, the stores, telemetry and the views are made from it.

    with acorn.listen(print):
        agent(question="...")
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, NamedTuple

from acorn.types import Content, Fallback, ForkedFrom, JsonObject, Usage

Message = JsonObject
Form = Literal["text", "json", "error", "skipped", "stopped"]
"""What the text of a result is; a skipped call was never begun, a stopped one never returned."""


class CalledTool(NamedTuple):
    """A call as the model made it."""

    id: str
    name: str
    arguments: str


class ResultMessage(NamedTuple):
    """What the model reads of one call."""

    call_id: str
    content: Content
    form: Form
    seconds: float | None
    """How long the function or branch took; None where none was called."""


class RunStarted(NamedTuple):
    """A run has begun; nothing is asked yet."""

    run_id: str
    step: int
    at: float
    """Seconds into the run."""
    module: str
    """`package.file:Class`."""
    input: Any
    """The input model."""
    parent_id: str | None = None
    """The run that this is a branch of."""
    branch: str | None = None
    """Its path, `outer/inner`."""
    call_id: str | None = None
    """The call that began it; None for a branch begun by the user's code."""
    forked_from: ForkedFrom | None = None
    """The run whose steps, up to one, stand at the beginning of this journal: they were told, not done again."""


class MessagesAdded(NamedTuple):
    """Messages that acorn has put into the history: the first ones, a reminder, a correction."""

    run_id: str
    step: int
    at: float
    messages: tuple[Message, ...]
    where: int | None = None
    """Before which message they stand; None is the end."""
    inherited: int = 0
    """How many of the first messages a branch has from its parent."""


class ModelRequested(NamedTuple):
    """A request is on its way to the model."""

    run_id: str
    step: int
    at: float
    ask_id: str
    model: str
    messages: int
    """How many messages are in it."""
    forced: str | None
    """Why it must end in an answer: `forced` (max_steps), `limit` or `loop`."""


class ModelResponded(NamedTuple):
    """The model's turn, and what it cost."""

    run_id: str
    step: int
    at: float
    asked: float
    """When the request was begun."""
    model: str
    content: str
    reasoning: str | None
    calls: tuple[CalledTool, ...]
    extra: Message
    """Further keys of the assistant message, such as signed thinking blocks."""
    stop_reason: str
    refusal: str | None
    """Why the model would not answer; such a turn is not in the history."""
    usage: Usage
    cost: float | None
    attempts: int
    """How many requests it took; 0 for a turn that was kept from another run, which has no usage either."""
    waits: tuple[float, ...]
    """Seconds waited before each further one."""
    fallbacks: tuple[Fallback, ...] = ()
    """Which models of a list did not answer before this one did; `attempts` and `waits` are of this one alone."""


class ToolStarted(NamedTuple):
    """A function is called."""

    run_id: str
    step: int
    at: float
    call_id: str
    name: str
    arguments: str


class ToolFinished(NamedTuple):
    """A call has its result, before `on_step` may change it."""

    run_id: str
    step: int
    at: float
    call_id: str
    name: str
    began: float | None
    """When the function was called; None where it was not: an unknown tool, wrong arguments."""
    content: Content
    """What a model would read of it."""
    error: str | None


class InputRequested(NamedTuple):
    """A call waits for a person: a question, or a call that needs a yes."""

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
    """A person has answered."""

    run_id: str
    step: int
    at: float
    request_id: str
    call_id: str
    answer: str
    """Text as it is, anything else as JSON."""


class BranchStarted(NamedTuple):
    """A run below this one has begun: a branch, or an agent that is a tool."""

    run_id: str
    step: int
    at: float
    child_id: str
    branch: str
    """Its path, `outer/inner`."""
    call_id: str | None
    """The call that began it; None where the user's code did."""
    inside: str | None = None
    """The call whose function began it; None for a called branch, and for one begun in a hook."""


class BranchFinished(NamedTuple):
    """A run below this one has ended, well or not."""

    run_id: str
    step: int
    at: float
    child_id: str
    branch: str
    call_id: str | None
    stop_reason: str | None
    seconds: float
    content: Content
    """What a model would read of it."""
    error: str | None
    usage: Usage
    cost: float | None


class ToolResultsAdded(NamedTuple):
    """The results of a turn, as the model reads them, have entered the history."""

    run_id: str
    step: int
    at: float
    results: tuple[ResultMessage, ...]
    context: Content | None
    """What `add_to_context` shows beside them."""
    where: int | None
    """Where in the history they stand; None where their turn was removed."""


class HistoryEdited(NamedTuple):
    """The user has changed the history: `history[where : where + removed]` is now `messages`."""

    run_id: str
    step: int
    at: float
    where: int
    removed: int
    messages: tuple[Message, ...]
    added: tuple[int, ...]
    """Which of them were nowhere before; the others were moved, copied or edited."""


class Compacted(NamedTuple):
    """Older steps were summed up by the model: `history[where : where + removed]` is now `messages`."""

    run_id: str
    step: int
    at: float
    asked: float
    """When the request was begun."""
    model: str
    summary: str
    """What stands in the history; empty where the model gave none, and then nothing has changed."""
    where: int
    removed: int
    messages: tuple[Message, ...]
    """The summary, and what stays as it was: the inputs."""
    steps: tuple[int, ...]
    """The steps that the summary stands for; 0 is what was there before the first."""
    usage: Usage
    cost: float | None


class RunFinished(NamedTuple):
    """The run has its output."""

    run_id: str
    step: int
    at: float
    stop_reason: str
    content: str
    """The output as text, or as JSON; of an unfinished single turn, what it lacks."""
    form: Form


class RunFailed(NamedTuple):
    """The run is over without an output."""

    run_id: str
    step: int
    at: float
    error: str
    """`ValueError: what it said`, without secrets."""
    results: tuple[ResultMessage, ...]
    """What the calls that were open are answered with in the record."""


class RunInterrupted(NamedTuple):
    """The run was stopped by Ctrl-C, cancellation, a limit or a provider in trouble, and can go on from before it."""

    run_id: str
    step: int
    at: float
    error: str
    results: tuple[ResultMessage, ...]


class RunPaused(NamedTuple):
    """The run waits for people and nothing else, and goes on from before this when they have answered."""

    run_id: str
    step: int
    at: float
    results: tuple[ResultMessage, ...]
    """What the calls that were open are answered with in the record."""


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
