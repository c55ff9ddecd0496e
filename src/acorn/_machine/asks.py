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
    """An operation whose outcome has the type `Outcome`."""

    __slots__ = ()
    id: str


@dataclass(frozen=True, eq=False)
class BranchEnd:
    """The end of a branch: its record, and the error it failed with. A branch that could not start has no record."""

    run: Run | None
    error: BaseException | None = None


@dataclass(eq=False, slots=True)
class AskSource(Operation[object]):
    """Open a source of tools and keep it open during the run. The outcome is the list of its tools."""

    id: str
    source: ToolSource


@dataclass(eq=False, slots=True)
class AskModel(Operation[ModelResponse]):
    """Send a request to the model. The outcome is its response."""

    id: str
    model: Model
    request: ModelRequest
    message_count: int
    is_summary: bool = False
    """Whether it requests a summary, which is not part of the conversation and is not streamed."""


@dataclass(eq=False, slots=True)
class AskTool(Operation[ToolResult]):
    """Call a function, concurrently with the other asks. The outcome is its result."""

    id: str
    call: ToolCall
    tool: Tool
    args: tuple[Any, ...]
    kwargs: JsonObject
    seconds: float
    """The time limit, or infinity."""


@dataclass(eq=False, slots=True)
class AskBranch(Operation[BranchEnd]):
    """Run a branch, concurrently with the other asks. The outcome is its end."""

    id: str
    call: ToolCall
    context: BranchContext
    make: Callable[[], Plan]
    """Makes the plan of a new instance of the class. If it raises, the branch fails."""


@dataclass(eq=False, slots=True)
class AskHook(Operation[object]):
    """Call a method of the user, or read a prompt file. The outcome is the returned value."""

    id: str
    function: Callable[..., object]
    arguments: tuple[Any, ...] = ()
    forgives: tuple[type[Exception], ...] = ()
    """Exceptions that are passed back as the outcome. Any other exception ends the run."""


Ask = AskSource | AskModel | AskTool | AskBranch | AskHook
