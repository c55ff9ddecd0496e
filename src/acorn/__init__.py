"""acorn: LLM agents as typed Python classes.

    from acorn import module, tool

`module` is the class to derive from, `tool` marks functions that a model may call; the errors say whose
turn it is to act.
"""

from acorn._module import Module, module
from acorn._tools.declare import tool
from acorn.chunk import StreamChunk
from acorn.errors import (
    AcornError,
    BranchError,
    DeclarationError,
    InputError,
    LimitError,
    ModelError,
    ParseError,
    StoreError,
    ToolConflictError,
)
from acorn.partial import Partial
from acorn.record import Run, capture, current_run
from acorn.step import Step
from acorn.types import ToolCall, ToolResult, Unfinished, Usage

__all__ = [
    "module",
    "Module",
    "tool",
    "Partial",
    "Step",
    "ToolCall",
    "ToolResult",
    "StreamChunk",
    "Run",
    "Usage",
    "Unfinished",
    "capture",
    "current_run",
    "AcornError",
    "DeclarationError",
    "ToolConflictError",
    "InputError",
    "ParseError",
    "BranchError",
    "ModelError",
    "LimitError",
    "StoreError",
]
