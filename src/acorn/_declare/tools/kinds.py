"""What a run knows of a tool: its name, what the model is told of it, and how arguments become a call.

The loop and the drivers see no more than this. `collect` makes the tools that are functions, described by their
signature or by a JSON Schema that came with them.

Objects that bring tools with them: a server's, a toolbox's.

A source goes straight into `tools = [...]`. What it offers is asked for when a run begins.

An agent as a tool: a run of its own, with its own prompt and conversation, whose output is the result.

The class `module` says by `AS_TOOL` how it becomes one; a run walks it like a branch.

Tools that a provider runs itself: a dict in `tools`, which goes to the model as it is.

    tools = [{"type": "web_search_20250305", "name": "web_search"}]

What such a tool returns never passes through here: it comes within the model's answer, and adapters keep it there.

The tool that asks a person, and which tools people have a say in.

Nothing is called here: a run that comes to such a call makes a request of it, and the answer is its result.
"""

from __future__ import annotations

import copy
import functools
import inspect
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Protocol, runtime_checkable

from acorn._declare.tools.decorator import ToolOptions, tool
from acorn._formats.json import shorten
from acorn._formats.schema.generate import JsonSchema, close_objects
from acorn.errors import AcornError, DeclarationError
from acorn.record import Run
from acorn.types import JsonObject

Arguments = tuple[tuple[Any, ...], JsonObject]
"""What to call a function with: by position and by name."""


class ArgumentError(Exception):
    """The model's arguments do not fit; the words are for the model."""


class Tool(Protocol):
    """One tool of a run."""

    @property
    def name(self) -> str: ...
    @property
    def schema(self) -> JsonObject:
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

    def bind(self, arguments: str, run: Run | None = None) -> Arguments:
        """The call that the model's JSON asks for; raises `ArgumentError` where it does not fit."""
        ...

    def bound_to(self, instance: object) -> Tool:
        """The same tool as a method of one instance; a tool that is no method stays as it is."""
        ...


class Binding(Protocol):
    """The part in which functions differ: how their arguments are described and checked."""

    @property
    def schema(self) -> JsonSchema: ...

    def bind(self, arguments: str, run: Run | None = None) -> Arguments: ...


@runtime_checkable
class ToolSource(Protocol):
    """Anything with `tools()`.

    It is opened before and closed after, where it can be: as a context manager, async or not, or by `open()` and
    `close()`.
    """

    def tools(self) -> Sequence[Callable[..., Any]]: ...


def is_source(value: object) -> bool:
    """Whether an entry of `tools` is a source rather than a tool."""
    return not isinstance(value, type) and callable(getattr(value, "tools", None))


def source_may_ask_human(source: object) -> bool:
    """Whether a source says beforehand that calls of its tools may wait for a person."""
    return bool(getattr(source, "asks_people", False))


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
    parameters: Callable[[], JsonObject] = field(repr=False)
    """The schema of its input."""

    @cached_property
    def schema(self) -> JsonObject:
        """Name, description and parameters, as in a request's `function`."""
        description = self.options.description or first_paragraph(self.doc)
        described = {"description": description} if description else {}
        if self.options.strict:
            return {"name": self.name, **described, "parameters": close_objects(self.parameters()), "strict": True}
        return {"name": self.name, **described, "parameters": self.parameters()}

    def bind(self, arguments: str, run: Run | None = None) -> Arguments:
        raise ArgumentError(f"`{self.name}` is an agent: it is walked, not called.")

    def bound_to(self, instance: object) -> AgentTool:
        return self


_OPTIONS = ToolOptions()
_RUN_BY_US = re.compile(
    r"(?:bash|text_editor|computer|memory)_\d{8}|local_shell|computer_use_preview|computer|apply_patch"
)
"""Kinds of which a provider knows the schema, and leaves the work to whoever asks."""
_EXAMPLE = "{'type': 'web_search_20250305', 'name': 'web_search'}"


@dataclass(frozen=True, eq=False)
class HostedTool:
    """A tool that a provider runs."""

    name: str
    schema: JsonObject = field(repr=False)
    """What is sent, as the user wrote it."""
    where: str
    function: Callable[..., Any] = field(repr=False)
    """The user's own dict, by which it is known in `step.tools`."""
    options: ToolOptions = _OPTIONS

    def bind(self, arguments: str, run: Run | None = None) -> Arguments:
        raise ArgumentError(f"`{self.name}` is run by the provider and cannot be called like this")

    def bound_to(self, instance: object) -> HostedTool:
        return self


def hosted_tool_name(entry: Mapping[str, Any]) -> Any:
    """What a tool of a provider's is called; several servers may be told by the same type."""
    return next((entry[key] for key in ("name", "server_label", "mcp_server_name") if key in entry), entry.get("type"))


def hosted_tool(entry: Any, where: str, owner: str) -> HostedTool:
    """A tool of a dict; what is in it is the provider's business, but for what it is."""
    place = f"`{owner}.{where}`"
    kind = entry.get("type")
    if kind is None:
        keys = ", ".join(f"`{key}`" for key in entry) or "nothing"
        raise DeclarationError(
            f"{place} is a dict with {keys}, which is no tool of a provider: it needs a `type`, as in {_EXAMPLE}."
        )
    if not isinstance(kind, str) or not kind.strip():
        raise DeclarationError(
            f"{place} is a dict whose `type` must be the name of a provider's tool, as in {_EXAMPLE}."
        )
    name = hosted_tool_name(entry)
    if not isinstance(name, str):
        raise DeclarationError(f"{place} is a dict whose name must be a string, as in {_EXAMPLE}.")
    if kind in ("function", "custom"):
        raise DeclarationError(
            f"{place} describes a function (`type` is {kind!r}) and nobody runs it; write the function, with "
            f"`@tool(name=..., schema=...)` where it has a JSON Schema already."
        )
    if _RUN_BY_US.fullmatch(kind):
        raise DeclarationError(
            f"{place} is `{kind}`, which the provider does not run itself; write a function that does, and mark it "
            f"with `@tool`."
        )
    try:
        json.dumps(entry, allow_nan=False)
        own = copy.deepcopy(entry)
    except (TypeError, ValueError, RecursionError) as error:
        raise DeclarationError(f"{place} must be plain JSON data: {shorten(str(error))}.") from error
    function: Any = entry
    return HostedTool(name, own, f"{where} (`{kind}`)", function)


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


def may_ask_human(tool: Tool) -> bool:
    """Whether a call of this tool may wait for a person."""
    return bool(tool.options.approval) or is_ask_human(tool)


def is_ask_human(tool: Tool) -> bool:
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


def named_arguments(tool: Tool, arguments: Arguments) -> JsonObject:
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
    named: JsonObject = {}
    for name, value in bound.arguments.items():
        kind = signature.parameters[name].kind
        if kind is inspect.Parameter.VAR_KEYWORD:
            named.update(value)
        elif not isinstance(value, Run) and not (kind is inspect.Parameter.VAR_POSITIONAL and not value):
            named[name] = value
    return named
