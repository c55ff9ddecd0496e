"""The asks: operations that the machine needs and a driver performs.

Each ask has an id. The driver passes the outcome back under this id with `Machine.tell`. The id names the operation and
its place in the run, so a resumed run lists the same ask under the same id.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from acorn._declare.tools.kinds import Tool, ToolSource
from acorn._machine.plan import Plan
from acorn._machine.state import BranchContext
from acorn.models.port import Model, ModelResponse
from acorn.models.request import ModelRequest
from acorn.record import Run
from acorn.types import JsonObject, ToolCall, ToolResult

Outcome = TypeVar("Outcome")


class Operation(Generic[Outcome]):
    """The base of all asks: an operation with an id, whose outcome has the type `Outcome`."""

    __slots__ = ()
    id: str


@dataclass(frozen=True, eq=False)
class BranchEnd:
    """The outcome of a branch: its run record, and the error that it failed with.

    A branch that could not start has no record.
    """

    run: Run | None
    error: BaseException | None = None


@dataclass(eq=False, slots=True)
class AskSource(Operation[object]):
    """A request to open a tool source for the duration of the run. The outcome is its list of tools."""

    id: str
    source: ToolSource


@dataclass(eq=False, slots=True)
class AskModel(Operation[ModelResponse]):
    """A request to send a model request. The outcome is the response of the model."""

    id: str
    model: Model
    request: ModelRequest
    message_count: int
    is_summary: bool = False
    """Whether the ask requests a summary of older steps. A summary is not streamed and not part of the conversation."""


@dataclass(eq=False, slots=True)
class AskTool(Operation[ToolResult]):
    """A request to call a tool function, concurrently with other asks. The outcome is the tool result."""

    id: str
    call: ToolCall
    tool: Tool
    args: tuple[Any, ...]
    kwargs: JsonObject
    seconds: float
    """The time limit, or infinity."""


@dataclass(eq=False, slots=True)
class AskBranch(Operation[BranchEnd]):
    """A request to run a branch, concurrently with other asks. The outcome is a `BranchEnd`."""

    id: str
    call: ToolCall
    context: BranchContext
    make: Callable[[], Plan]
    """A function that creates the plan of the branch. If the function raises an exception, the branch fails."""


@dataclass(eq=False, slots=True)
class AskHook(Operation[object]):
    """A request to call a hook or a prompt method, or to read a prompt file. The outcome is the returned value."""

    id: str
    function: Callable[..., object]
    arguments: tuple[Any, ...] = ()
    forgives: tuple[type[Exception], ...] = ()
    """Exception classes that become the outcome when the function raises them. Any other exception ends the run."""


Ask = AskSource | AskModel | AskTool | AskBranch | AskHook
