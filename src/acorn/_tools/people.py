"""The tool that asks a person, and which tools people have a say in.

Nothing is called here: a run that comes to such a call makes a request of it, and the answer is its result.
"""

from __future__ import annotations

import functools
import inspect
from typing import Any

from acorn._tools.declare import tool
from acorn._tools.port import Arguments, Tool
from acorn.errors import AcornError
from acorn.record import Run


@tool
def ask_human(question: str, choices: list[str] | None = None) -> Any:
    """Ask a person and wait for the answer.

    Args:
        question: What you need to know, with all that is needed to answer it.
        choices: Answers to choose from, if there are some.
    """
    raise AcornError(
        "`ask_human` is for a model to call: put it into `tools` of a module that has `on_human` or a `store`."
    )


def asks_people(tool: Tool) -> bool:
    """Whether a call of this tool may wait for a person."""
    return bool(tool.options.approval) or is_question(tool)


def is_question(tool: Tool) -> bool:
    """Whether it is `ask_human`, under whatever name."""
    function: Any = tool.function
    while isinstance(function, functools.partial):
        function = function.func
    return function is ask_human


def needs_approval(tool: Tool, arguments: Arguments) -> bool:
    """Whether this very call does; what the user's function raises ends the run."""
    approval = tool.options.approval
    if isinstance(approval, bool):
        return approval
    return bool(approval(named_arguments(tool, arguments)))


def named_arguments(tool: Tool, arguments: Arguments) -> dict[str, Any]:
    """What the function would be called with, by name and with its defaults, but for the run."""
    args, kwargs = arguments
    if tool.options.schema is not None:
        return dict(kwargs)
    try:
        signature = inspect.signature(tool.function)
        bound = signature.bind_partial(*args, **kwargs)
    except (TypeError, ValueError):  # a builtin without one
        return dict(kwargs)
    bound.apply_defaults()
    named: dict[str, Any] = {}
    for name, value in bound.arguments.items():
        kind = signature.parameters[name].kind
        if kind is inspect.Parameter.VAR_KEYWORD:
            named.update(value)
        elif not isinstance(value, Run) and not (kind is inspect.Parameter.VAR_POSITIONAL and not value):
            named[name] = value
    return named
