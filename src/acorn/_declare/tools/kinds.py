"""The kinds of tools: the port that a run uses, agents as tools, hosted tools, tool sources and `ask_human`.

A run sees a tool only through `Tool`: its name, its schema, and how arguments become a call. Functions as tools are in
`collect.py`.

- An agent as a tool is a separate run, with its own prompt and conversation, whose output is the result of the call.
  `module` has the attribute `AS_TOOL`, and a run starts the agent like a branch.
- A hosted tool runs at the provider. It is a dict in `tools`, which is sent to the model unchanged:

      tools = [{"type": "web_search_20250305", "name": "web_search"}]

  Its results are part of the response of the model, and adapters keep them there.
- A tool source is an object in `tools` that provides tools when a run starts, such as an MCP server.
- `ask_human` and approvals wait for a person: a call becomes a request, and the answer becomes its result.
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
from typing import Any, Protocol, TypeGuard, runtime_checkable

from acorn._declare.tools.decorator import ToolOptions, tool
from acorn._formats.json import shorten
from acorn._formats.schema.generate import JsonSchema, close_objects
from acorn.errors import AcornError, DeclarationError
from acorn.record import Run
from acorn.types import JsonObject

Arguments = tuple[tuple[Any, ...], JsonObject]
"""The positional and the keyword arguments of a call."""


class ArgumentError(Exception):
    """The arguments of a tool call are invalid. The model reads the message."""


class Tool(Protocol):
    """A tool of a run."""

    @property
    def name(self) -> str: ...
    @property
    def schema(self) -> JsonObject:
        """Name, description and parameters, as in the `function` of a request."""
        ...

    @property
    def options(self) -> ToolOptions: ...
    @property
    def where(self) -> str:
        """The place of the declaration, for messages."""
        ...

    @property
    def function(self) -> Callable[..., Any]:
        """The callable, or the agent or dict that stands for it."""
        ...

    @property
    def may_ask_human(self) -> bool:
        """Whether a call of this tool may wait for human input."""
        ...

    def bind(self, arguments: str, run: Run | None = None) -> Arguments:
        """Return the arguments of the call that the model requests in JSON, or raise `ArgumentError`."""
        ...

    def bound_to(self, instance: object) -> Tool:
        """Return the tool as a method of one instance; a tool that is not a method returns itself."""
        ...


class Binding(Protocol):
    """The schema of the arguments of a function, and how they are validated."""

    @property
    def schema(self) -> JsonSchema: ...

    def bind(self, arguments: str, run: Run | None = None) -> Arguments: ...


@runtime_checkable
class ToolSource(Protocol):
    """An object with the method `tools()`.

    A run opens it before the first call and closes it at the end, if it is a sync or async context manager or has
    `open()` and `close()`.
    """

    def tools(self) -> Sequence[Callable[..., Any]]: ...


def is_source(value: object) -> TypeGuard[ToolSource]:
    """Return whether an entry of `tools` is a source and not a tool."""
    return not isinstance(value, type) and callable(getattr(value, "tools", None))


def source_may_ask_human(source: object) -> bool:
    """Return whether a source declares that calls of its tools may wait for a person."""
    return bool(getattr(source, "asks_people", False))


AS_TOOL = "__acorn_as_tool__"
"""The attribute of an agent class or instance with a function that creates its tool, given `where` and `owner`."""
_BLANK_LINE = re.compile(r"\n\s*\n")


def first_paragraph(doc: str | None) -> str:
    """Return the first paragraph of a docstring, which describes an agent to the model."""
    return _BLANK_LINE.split(inspect.cleandoc(doc or ""))[0]


@dataclass(frozen=True, eq=False)
class AgentTool:
    """A tool that starts another agent."""

    name: str
    function: Any = field(repr=False)
    """The class, which each call instantiates, or the instance itself."""
    options: ToolOptions
    where: str
    doc: str | None
    parameters: Callable[[], JsonObject] = field(repr=False)
    """Returns the schema of its input."""
    may_ask_human: bool = field(default=False, init=False)

    @cached_property
    def schema(self) -> JsonObject:
        """Name, description and parameters, as in the `function` of a request."""
        description = self.options.description or first_paragraph(self.doc)
        optional = {"description": description} if description else {}
        if self.options.strict:
            return {"name": self.name, **optional, "parameters": close_objects(self.parameters()), "strict": True}
        return {"name": self.name, **optional, "parameters": self.parameters()}

    def bind(self, arguments: str, run: Run | None = None) -> Arguments:
        raise ArgumentError(f"`{self.name}` is an agent: it is walked, not called.")

    def bound_to(self, instance: object) -> AgentTool:
        return self


_OPTIONS = ToolOptions()
_RUN_BY_CALLER = re.compile(
    r"(?:bash|text_editor|computer|memory)_\d{8}|local_shell|computer_use_preview|computer|apply_patch"
)
"""Types whose schema the provider knows, but which the caller must execute."""
_EXAMPLE = "{'type': 'web_search_20250305', 'name': 'web_search'}"


@dataclass(frozen=True, eq=False)
class HostedTool:
    """A tool that runs at the provider."""

    name: str
    schema: JsonObject = field(repr=False)
    """The dict of the user, which is sent unchanged."""
    where: str
    function: Callable[..., Any] = field(repr=False)
    """The dict object of the user, which identifies the tool in `step.tools`."""
    options: ToolOptions = _OPTIONS
    may_ask_human: bool = field(default=False, init=False)

    def bind(self, arguments: str, run: Run | None = None) -> Arguments:
        raise ArgumentError(f"`{self.name}` is run by the provider and cannot be called like this")

    def bound_to(self, instance: object) -> HostedTool:
        return self


def hosted_tool_name(entry: Mapping[str, Any]) -> Any:
    """Return the name of a hosted tool. Several MCP servers have the same type and differ in their label."""
    return next((entry[key] for key in ("name", "server_label", "mcp_server_name") if key in entry), entry.get("type"))


def hosted_tool(entry: Any, where: str, owner: str) -> HostedTool:
    """Create a hosted tool from a dict. The keys other than the type and the name are up to the provider."""
    place = f"`{owner}.{where}`"
    kind = entry.get("type")
    if kind is None:
        keys = ", ".join(f"`{key}`" for key in entry) or "nothing"
        raise DeclarationError(f"{place} is a dict with {keys}. A hosted tool needs a `type`, as in {_EXAMPLE}.")
    if not isinstance(kind, str) or not kind.strip():
        raise DeclarationError(f"{place} is a dict whose `type` must be the name of a hosted tool, as in {_EXAMPLE}.")
    name = hosted_tool_name(entry)
    if not isinstance(name, str):
        raise DeclarationError(f"{place} is a dict whose name must be a string, as in {_EXAMPLE}.")
    if kind in ("function", "custom"):
        raise DeclarationError(
            f"{place} describes a function (`type` is {kind!r}) without an implementation. Write the function, with "
            f"`@tool(name=..., schema=...)` if it has a JSON Schema."
        )
    if _RUN_BY_CALLER.fullmatch(kind):
        raise DeclarationError(
            f"{place} is `{kind}`, which the provider does not run itself. Write a function for it and mark it with "
            f"`@tool`."
        )
    try:
        json.dumps(entry, allow_nan=False)
        schema = copy.deepcopy(entry)
    except (TypeError, ValueError, RecursionError) as error:
        raise DeclarationError(f"{place} must be JSON data: {shorten(str(error))}.") from error
    function: Any = entry
    return HostedTool(name, schema, f"{where} (`{kind}`)", function)


@tool
def ask_human(question: str, choices: list[str] | None = None) -> Any:
    """Ask a person and wait for the answer.

    Args:
        question: What you need to know, with all that is needed to answer it.
        choices: Answers to choose from, if there are some.
    """
    raise AcornError(
        "Only a model can call `ask_human`. Add it to the `tools` of a module that has `on_human` or a `store`."
    )


def is_ask_human(function: Any) -> bool:
    """Return whether the function of a tool is `ask_human`, possibly as a partial."""
    while isinstance(function, functools.partial):
        function = function.func
    return function is ask_human


def needs_approval(tool: Tool, arguments: Arguments) -> bool:
    """Return whether this call needs approval. An exception in the user's function ends the run."""
    approval = tool.options.approval
    if isinstance(approval, bool):
        return approval
    return bool(approval(named_arguments(tool, arguments)))


def named_arguments(tool: Tool, arguments: Arguments) -> JsonObject:
    """Return the arguments of a call by name, with defaults and without the run."""
    args, kwargs = arguments
    if tool.options.schema is not None:
        return dict(kwargs)
    try:
        signature = inspect.signature(tool.function)
        bound = signature.bind_partial(*args, **kwargs)
    except (TypeError, ValueError):  # A builtin without a signature.
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
