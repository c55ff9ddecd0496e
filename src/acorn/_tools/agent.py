"""An agent as a tool: a run of its own, with its own prompt and conversation, whose output is the result.

The class `module` says by `AS_TOOL` how it becomes one; a run walks it like a branch.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from acorn._schema.strict import closed
from acorn._tools.declare import ToolOptions
from acorn._tools.port import ArgumentError, Arguments
from acorn.record import Run

AS_TOOL = "__acorn_as_tool__"
"""The attribute of a class or an instance that makes a tool of it: a function of where it is declared and the owner."""
_BLANK_LINE = re.compile(r"\n\s*\n")


def first_paragraph(doc: str | None) -> str:
    """What a model is told of an agent: the first words of its docstring."""
    return _BLANK_LINE.split(inspect.cleandoc(doc or ""))[0]


@dataclass(frozen=True, eq=False)
class AgentTool:
    """A tool that starts another module."""

    name: str
    function: Callable[..., Any] = field(repr=False)
    """The class, of which each call makes an instance, or the instance itself."""
    options: ToolOptions
    where: str
    doc: str | None
    parameters: Callable[[], dict[str, Any]] = field(repr=False)
    """The schema of its input."""

    @cached_property
    def schema(self) -> dict[str, Any]:
        """Name, description and parameters, as in a request's `function`."""
        description = self.options.description or first_paragraph(self.doc)
        described = {"description": description} if description else {}
        if self.options.strict:
            return {"name": self.name, **described, "parameters": closed(self.parameters()), "strict": True}
        return {"name": self.name, **described, "parameters": self.parameters()}

    def bind(self, arguments: str, run: Run[Any] | None = None) -> Arguments:
        raise ArgumentError(f"`{self.name}` is an agent: it is walked, not called.")

    def bound_to(self, instance: object) -> AgentTool:
        return self
