"""What the machine can ask of a driver. The answer goes back by `tell`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from acorn._tools.collect import Tool
from acorn.models.port import Model, ModelRequest
from acorn.types import ToolCall, ToolResult

if TYPE_CHECKING:
    from acorn._loop.run import Loop


@dataclass(eq=False, slots=True)
class AskModel:
    """Send this request; tell the `ModelResponse`."""

    model: Model
    request: ModelRequest


@dataclass(eq=False, slots=True)
class Invocation:
    """One function to call."""

    call: ToolCall
    tool: Tool
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    result: ToolResult | None = None
    """Once it has returned, for branches that begin while its siblings are still under way."""


@dataclass(eq=False, slots=True)
class AskTools:
    """Call these functions, side by side where they allow it; tell a `ToolResult` for each, in order."""

    invocations: list[Invocation]
    timeout: float | None
    """Seconds that the run has left."""


@dataclass(eq=False, slots=True)
class Child:
    """A branch that was called, as a run of its own."""

    call: ToolCall
    loop: Loop
    path: str


@dataclass(eq=False, slots=True)
class AskBranches:
    """Walk these runs, at the same time; tell a `ToolResult` for each, in order."""

    children: list[Child]


@dataclass(eq=False, slots=True)
class AskHook:
    """Call a method of the user's; tell what it returned."""

    function: Callable[..., Any]
    arguments: tuple[Any, ...] = ()
    forgives: tuple[type[Exception], ...] = field(default=())
    """Exceptions that are an answer; they are told like a value. All others end the run."""


@dataclass(eq=False, slots=True)
class Done:
    """The run is over."""

    output: Any


Ask = AskModel | AskTools | AskBranches | AskHook | Done
