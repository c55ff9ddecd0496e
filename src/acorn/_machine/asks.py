"""Asks: operations that the state machine of a run needs, and that a driver performs for it.

Examples are a model request and a tool call. Each ask has an id. The driver performs the operation and passes the
result to `Machine.tell` with this id. The id is computed from the operation and from the step and tool call that need
it, so a resumed run lists the same ask under the same id.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from acorn._declare.tools.kinds import Tool, ToolSource
from acorn._history.transcript import FinishedCall
from acorn._machine.plan import Plan
from acorn._machine.state import BranchContext
from acorn.models.port import Model, ModelResponse
from acorn.models.request import ModelRequest
from acorn.record import Run
from acorn.types import JsonObject, ToolCall

Outcome = TypeVar("Outcome")


class Operation(Generic[Outcome]):
    """The base class of all asks. `Outcome` is the type of the value that the driver passes to `Machine.tell`."""

    __slots__ = ()
    id: str


@dataclass(frozen=True, eq=False)
class BranchEnd:
    """The result of a branch: its run record, and the error if the branch failed.

    `run` is None if the branch could not start.
    """

    run: Run | None
    error: BaseException | None = None
    model: object = None
    """The model setting of the branch, whose secrets acorn redacts in the traceback of the error."""


@dataclass(eq=False, slots=True)
class AskSource(Operation[object]):
    """An ask to open a tool source until the run ends. The result is the list of tools in this source."""

    id: str
    source: ToolSource


@dataclass(eq=False, slots=True)
class AskModel(Operation[ModelResponse]):
    """An ask to send a request to the model. The result is the response of the model."""

    id: str
    model: Model
    request: ModelRequest
    is_summary: bool = False
    """Whether the ask requests a summary of older steps. A summary is not streamed and not part of the conversation."""


@dataclass(eq=False, slots=True)
class AskTool(Operation[FinishedCall]):
    """An ask to call a tool function, which may run at the same time as other asks. The result is a `FinishedCall`."""

    id: str
    call: ToolCall
    tool: Tool
    args: tuple[Any, ...]
    kwargs: JsonObject
    seconds: float
    """The time limit, or infinity."""


@dataclass(eq=False, slots=True)
class AskBranch(Operation[BranchEnd]):
    """An ask to run a branch, which may run at the same time as other asks. The result is a `BranchEnd`."""

    id: str
    call: ToolCall
    context: BranchContext
    make: Callable[[], Plan]
    """A function that creates the plan of the branch. If the function raises an exception, the branch fails."""


@dataclass(eq=False, slots=True)
class AskHook(Operation[object]):
    """An ask to call a hook or a prompt method, or to read a prompt file. The result is the returned value."""

    id: str
    function: Callable[..., object]
    arguments: tuple[Any, ...] = ()
    forgives: tuple[type[Exception], ...] = ()
    """Exception classes that become the outcome when the function raises them. Any other exception ends the run."""


Ask = AskSource | AskModel | AskTool | AskBranch | AskHook
