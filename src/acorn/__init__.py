"""acorn: LLM agents as typed Python classes.

    from acorn import module, tool

`module` is the class to derive from, `tool` marks functions that a model may call; the errors say whose
turn it is to act.
"""

from acorn._module import Module, module
from acorn._tools.declare import tool
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

__all__ = [
    "module",
    "Module",
    "tool",
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
