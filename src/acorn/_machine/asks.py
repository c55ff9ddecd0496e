"""What the machine can ask of a driver. Each ask has an id; the answer goes back under it by `tell`.

An id says what is asked and where in the run: it is the same when a saved run asks again.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from acorn._declare.tools.kinds import Tool, ToolSource
from acorn._machine.plan import Plan
from acorn._machine.state import BranchContext
from acorn.models.port import Model, ModelRequest
from acorn.record import Run
from acorn.types import ToolCall


@dataclass(eq=False, slots=True)
class AskSource:
    """Open a source of tools, and keep it open while the run goes on; tell what it lists."""

    id: str
    source: ToolSource


@dataclass(eq=False, slots=True)
class AskModel:
    """Send this request; tell the `ModelResponse`."""

    id: str
    model: Model
    request: ModelRequest
    is_quiet: bool = False
    """Whether it is no part of the conversation, so that nobody sees it come in."""


@dataclass(eq=False, slots=True)
class AskTool:
    """Call this function, beside the others that are asked for; tell its `ToolResult`."""

    id: str
    call: ToolCall
    tool: Tool
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    seconds: float
    """How long it may take; infinite where nothing bounds it."""


@dataclass(eq=False, slots=True)
class AskBranch:
    """Walk the run that was born here, beside the others; tell how it ended."""

    id: str
    call: ToolCall
    context: BranchContext
    make: Callable[[], Plan]
    """The plan of a new instance of its class; what it raises is an end of the branch too."""


@dataclass(eq=False, slots=True)
class AskHook:
    """Call a method of the user's, or read a prompt; tell what it returned."""

    id: str
    function: Callable[..., Any]
    arguments: tuple[Any, ...] = ()
    forgives: tuple[type[Exception], ...] = field(default=())
    """Exceptions that are an answer; they are told like a value. All others end the run."""


Ask = AskSource | AskModel | AskTool | AskBranch | AskHook


@dataclass(frozen=True, eq=False)
class BranchEnd:
    """How a branch ended: its record, and what it failed of. One that could not even begin has no record."""

    run: Run | None
    error: BaseException | None = None
