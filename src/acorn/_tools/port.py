"""What a run knows of a tool: its name, what the model is told of it, and how arguments become a call.

The loop and the drivers see no more than this. `collect` makes the tools that are functions, described by their
signature or by a JSON Schema that came with them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from acorn._schema.generate import JsonSchema
from acorn._tools.declare import ToolOptions
from acorn.record import Run

Arguments = tuple[tuple[Any, ...], dict[str, Any]]
"""What to call a function with: by position and by name."""


class ArgumentError(Exception):
    """The model's arguments do not fit; the words are for the model."""


class Tool(Protocol):
    """One tool of a run."""

    @property
    def name(self) -> str: ...
    @property
    def schema(self) -> dict[str, Any]:
        """Name, description and parameters, as in a request's `function`."""
        ...

    @property
    def options(self) -> ToolOptions: ...
    @property
    def where(self) -> str:
        """Where it was declared, for messages."""
        ...

    @property
    def function(self) -> Callable[..., Any]:
        """What is called."""
        ...

    def bind(self, arguments: str, run: Run[Any] | None = None) -> Arguments:
        """The call that the model's JSON asks for; raises `ArgumentError` where it does not fit."""
        ...

    def bound_to(self, instance: object) -> Tool:
        """The same tool as a method of one instance; a tool that is no method stays as it is."""
        ...


class Binding(Protocol):
    """The part in which functions differ: how their arguments are described and checked."""

    @property
    def schema(self) -> JsonSchema: ...

    def bind(self, arguments: str, run: Run[Any] | None = None) -> Arguments: ...
