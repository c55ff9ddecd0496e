"""The kinds of tools: the interface `Tool`, agents as tools, hosted tools, tool sources and `ask_human`.

A run uses a tool only through the interface `Tool`: its name, its schema and its method `bind`. Function tools are in
`collect.py`.

- An agent tool starts a separate run with its own prompt and conversation. The output of this run is the tool result.
  `module` has the attribute `AS_TOOL`, and a run starts the agent like a branch.
- A hosted tool runs at the provider. It is a dict in `tools`, which is sent to the model unchanged:

      tools = [{"type": "web_search_20250305", "name": "web_search"}]

  Its results are part of the model response, and adapters preserve them there.
- A tool source is an object in `tools` that provides tools when a run starts, such as an MCP server.
- `ask_human` and approvals wait for a person: a call becomes a request, and the answer becomes its result.
"""

from __future__ import annotations

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
from acorn._formats.schema.generate import close_objects
from acorn.errors import AcornError, DeclarationError
from acorn.record import Run
from acorn.types import JsonObject

Arguments = tuple[tuple[Any, ...], JsonObject]
"""The positional arguments and the keyword arguments of a call."""


class ArgumentError(Exception):
    """The error for invalid arguments of a tool call.

    The model receives its message.
    """


@dataclass(frozen=True, eq=False)
class Tool:
    """The base class of the tools that a run offers to the model."""

    name: str
    function: Any = field(repr=False)
    """The callable, the agent class or instance, or the dict of a hosted tool."""
    options: ToolOptions
    where: str
    """The location of the declaration, for error messages."""

    @cached_property
    def schema(self) -> JsonObject:
        """The name, description and parameters in OpenAI's format. A hosted tool has the format of its provider."""
        raise NotImplementedError

    @cached_property
    def may_ask_human(self) -> bool:
        """Whether a call of this tool may wait for human input."""
        return bool(self.options.approval) or is_ask_human(self.function)

    def bind(self, arguments: str, run: Run | None = None) -> Arguments:
        """Return the validated call arguments from the model's JSON text. Raise `ArgumentError` if they are invalid."""
        raise NotImplementedError

    def named(self, arguments: Arguments) -> JsonObject:
        """Return all arguments of a call by name, including defaults, but without the run and the partial's values."""
        return arguments[1]

    def bound_to(self, instance: object) -> Tool:
        """Return a copy that calls the tool method on one instance, or the tool itself if it is not a method."""
        return self


def tool_definition(name: str, options: ToolOptions, description: str, parameters: JsonObject) -> JsonObject:
    """Return the name, description and parameters of a tool in OpenAI's format.

    `description` is used if the options have none. The parameters of a strict tool forbid additional properties, unless
    the user fixed them with an explicit schema.
    """
    description = options.description or description
    definition = {"name": name, **({"description": description} if description else {}), "parameters": parameters}
    if not options.strict:
        return definition
    closed = parameters if options.schema is not None else close_objects(parameters)
    return {**definition, "parameters": closed, "strict": True}


@runtime_checkable
class ToolSource(Protocol):
    """An object that provides tools with its method `tools()`, such as an MCP server.

    A run opens the source before the first call and closes it at the end, if the source is a context manager or has
    `open()` and `close()`.
    """

    def tools(self) -> Sequence[Callable[..., Any]]: ...


def is_source(value: object) -> TypeGuard[ToolSource]:
    """Return True if an entry of `tools` is a tool source, such as an MCP server, and not a single tool."""
    return not isinstance(value, type) and callable(getattr(value, "tools", None))


def source_may_ask_human(source: object) -> bool:
    """Return whether a tool source declares that calls of its tools may wait for human input."""
    return bool(getattr(source, "asks_people", False))


AS_TOOL = "__acorn_as_tool__"
"""The attribute of an agent that contains a function. The function creates the tool from `where` and `owner`."""


def first_paragraph(doc: str | None) -> str:
    """Return the first paragraph of a docstring, which describes an agent to the model."""
    return re.split(r"\n\s*\n", inspect.cleandoc(doc or ""))[0]


@dataclass(frozen=True, eq=False)
class AgentTool(Tool):
    """A tool that starts another agent."""

    doc: str | None
    parameters: Callable[[], JsonObject] = field(repr=False)
    """A function that returns the JSON Schema of the agent's input."""

    @cached_property
    def schema(self) -> JsonObject:
        return tool_definition(self.name, self.options, first_paragraph(self.doc), self.parameters())


_RUN_BY_CALLER = re.compile(
    r"(?:bash|text_editor|computer|memory)_\d{8}|local_shell|computer_use_preview|computer|apply_patch"
)
"""The tool types of providers that the provider does not execute, although it defines their schemas."""
_EXAMPLE = "{'type': 'web_search_20250305', 'name': 'web_search'}"


@dataclass(frozen=True, eq=False)
class HostedTool(Tool):
    """A tool that the provider executes. Its `function` is the user's dict, which identifies it in `step.tools`."""

    definition: JsonObject = field(repr=False)
    """A copy of the user's dict, which acorn sends unchanged."""

    @cached_property
    def schema(self) -> JsonObject:
        return self.definition

    def bind(self, arguments: str, run: Run | None = None) -> Arguments:
        raise ArgumentError(f"The provider executes `{self.name}`. Do not call it as a function.")


def hosted_tool_name(entry: Mapping[str, Any]) -> Any:
    """Return the name of a hosted tool.

    All hosted MCP servers have the same type, so the server label is used as the name.
    """
    return next((entry[key] for key in ("name", "server_label", "mcp_server_name") if key in entry), entry.get("type"))


def hosted_tool(entry: Any, where: str, owner: str) -> HostedTool:
    """Return the hosted tool that a dict in `tools` describes.

    acorn checks only the type and the name, because the provider defines all other keys.
    """
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
        definition = json.loads(json.dumps(entry, allow_nan=False))
    except (TypeError, ValueError, RecursionError) as error:
        raise DeclarationError(f"{place} must be JSON data: {shorten(str(error))}.") from error
    return HostedTool(name, entry, ToolOptions(), f"{where} (`{kind}`)", definition)


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
    """Return whether the function of a tool is `ask_human` or a partial of `ask_human`."""
    while isinstance(function, functools.partial):
        function = function.func
    return function is ask_human
