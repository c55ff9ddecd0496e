"""acorn: LLM agents as typed Python classes.

    from acorn import module, tool

Derive your agents from the class `module`. Use the decorator `tool` for functions that a model may call.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from acorn._declare.tools.decorator import tool
from acorn._declare.tools.kinds import ask_human
from acorn._module import Module, module
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
from acorn.record import Run, capture, current_run, listen
from acorn.types import Paused, Request, ToolCall, ToolResult, Unfinished, Usage, approve, deny

if TYPE_CHECKING:
    from acorn._call.runs import runs
    from acorn.chunk import Partial, StreamChunk
    from acorn.media import Audio, File, Image
    from acorn.step import Step

__version__ = "0.2.0"

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
    "Paused",
    "Image",
    "Audio",
    "File",
    "Request",
    "ask_human",
    "approve",
    "deny",
    "capture",
    "listen",
    "current_run",
    "runs",
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

# The modules of these names are slow to import, so acorn imports a module when its name is first used.
_LATE = {
    "runs": "acorn._call.runs",
    "Partial": "acorn.chunk",
    "Step": "acorn.step",
    "StreamChunk": "acorn.chunk",
    **dict.fromkeys(("Image", "Audio", "File"), "acorn.media"),
}


def __getattr__(name: str) -> Any:
    if name not in _LATE:
        raise AttributeError(f"module 'acorn' has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(_LATE[name]), name)
    return value
