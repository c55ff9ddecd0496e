"""Collection of the tools of a module, each with a unique name and a description.

The docstring of a tool contains its description, which is all text before the first section, and a line for each
parameter. The Google, NumPy and Sphinx styles are supported.

Tools are the entries of `tools = [...]` and the methods with `@tool`, including the methods of base classes. A spec
collects them when a class is defined. A run calls `collect_tools` again for the tools of its sources.
"""

from __future__ import annotations

import functools
import inspect
import re
import textwrap
import types
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, get_origin

from acorn._declare.tools.arguments import Binding, UnresolvedHintError, schema_binding, signature_binding
from acorn._declare.tools.decorator import ToolOptions, is_partial, options_of, unwrap_method
from acorn._declare.tools.kinds import AS_TOOL, Arguments, Tool, ToolSource, hosted_tool, is_source, tool_definition
from acorn._formats.json import excerpt
from acorn._formats.xml.encode import snake_case
from acorn.errors import DeclarationError, ToolConflictError
from acorn.record import Run
from acorn.types import JsonObject

FINISH = "__finish__"
"""The name of the tool that ends a run. Every module has this tool."""

_NEVER_BOUND = (staticmethod, types.MethodType, functools.partial)
"""The types of callables that may have a `__get__` method but never receive the instance as an argument."""

# Every provider accepts these names.
_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")


@dataclass(frozen=True, eq=False)
class FunctionTool(Tool):
    """A tool that calls a function.

    The signature or an explicit JSON Schema describes its arguments.
    """

    method: str | None = None
    """If the tool is a method, the name of the instance attribute."""
    drop_first: bool = False
    local_names: Mapping[str, object] = field(default_factory=JsonObject, repr=False)

    @cached_property
    def _doc(self) -> tuple[str, dict[str, str]]:
        return read_docstring(callable_docstring(self.function))

    @cached_property
    def binding(self) -> Binding:
        """The binding that contains the schema and the validator of the arguments."""
        arguments = (self.function, self.name, self.drop_first, self.local_names)
        if self.options.schema is not None:
            return schema_binding(self.options.schema, *arguments, fills_defaults=bool(self.options.approval))
        return signature_binding(lambda: self._doc[1], *arguments)

    @cached_property
    def schema(self) -> JsonObject:
        return tool_definition(self.name, self.options, self._doc[0], self.binding.schema)

    def bind(self, arguments: str, run: Run | None = None) -> Arguments:
        return self.binding.bind(arguments, run)

    def named(self, arguments: Arguments) -> JsonObject:
        return self.binding.named(*arguments)

    def bound_to(self, instance: object) -> FunctionTool:
        if self.method is None:
            return self
        bound = replace(self, function=getattr(instance, self.method), drop_first=False)
        # The signature is the same for every instance, so the cached values of the class tool are reused.
        vars(bound).update(_doc=self._doc, binding=self.binding, schema=self.schema, may_ask_human=self.may_ask_human)
        return bound


def collect_tools(
    declared: Iterable[object], owner: str, local_names: Mapping[str, object], methods: Sequence[Tool] = ()
) -> tuple[list[Tool], list[ToolSource]]:
    """Return two lists from a `tools` list: its tools, each tool once, and its tool sources.

    The list of tools does not contain the tool methods of the class, which are `methods`.
    """
    tools: list[Tool] = []
    sources: list[ToolSource] = []
    for index, entry in enumerate(declared):
        if is_source(entry):
            if not any(entry is known for known in sources):
                sources.append(entry)
        elif not any(_is_same_function(unwrap_method(entry), known.function) for known in (*methods, *tools)):
            tools.append(make_tool(entry, f"tools[{index}]", owner, local_names))
    return tools, sources


def make_tool(entry: Any, where: str, owner: str, local_names: Mapping[str, object]) -> Tool:
    """Return the tool for a callable, an agent, or the dict of a hosted tool.

    A tool source may also list finished tools, such as the tools of an MCP server.
    """
    if isinstance(entry, FunctionTool):
        return entry
    if hasattr(get_origin(entry), AS_TOOL):  # The entry is an agent with type arguments, such as `Extract[Person]`.
        make_tool(get_origin(entry), where, owner, local_names)  # This fails if the class cannot be instantiated.
        entry = entry()
    if hasattr(entry, AS_TOOL):
        return check_tool_name(getattr(entry, AS_TOOL)(where, owner), owner)
    if isinstance(entry, dict):
        return check_tool_name(hosted_tool(entry, where, owner), owner)
    entry = unwrap_method(entry)
    if not callable(entry) and is_source(entry):
        raise DeclarationError(
            f"`{owner}.{where}` must be a tool, but {excerpt(entry, 200)} is a source of tools, which is opened when a "
            f"run starts. Add it to `tools`."
        )
    if not callable(entry) or isinstance(entry, type):
        received = f"the class `{entry.__name__}`" if isinstance(entry, type) else excerpt(entry, 200)
        raise DeclarationError(
            f"`{owner}.{where}` must be a function, a callable object, an agent, a source with `tools()` or a "
            f"hosted tool as a dict, got {received}."
        )
    options = options_of(entry) or ToolOptions()
    name = options.name or callable_name(entry)
    return _check_tool(
        FunctionTool(name, entry, options, f"{where} (`{_label(entry)}`)", local_names=local_names), owner
    )


def collect_methods(cls: type, owner: str, local_names: Mapping[str, object]) -> list[FunctionTool]:
    """Return the methods with `@tool` in a class and its base classes, base classes first, in the order of definition.

    A method that overrides a tool stays a tool without the decorator, at the position of the overridden method.
    """
    marked: dict[str, tuple[object, ToolOptions]] = {}
    for base in reversed(cls.__mro__):
        for attribute, value in vars(base).items():
            inherited = marked[attribute][1] if attribute in marked else None
            options = options_of(value) or (inherited if callable(value) or isinstance(value, staticmethod) else None)
            if options is not None:
                marked[attribute] = (value, options)
            else:
                marked.pop(attribute, None)
    tools: list[FunctionTool] = []
    for attribute, (value, options) in marked.items():
        name, function, where = options.name or attribute, unwrap_method(value), f"method `{attribute}`"
        # An object from a decorator, such as `functools.lru_cache`, may receive `self` like a function.
        is_bound_later = hasattr(type(value), "__get__") and not isinstance(value, _NEVER_BOUND)
        tool = FunctionTool(name, function, options, where, attribute, is_bound_later, local_names)
        tools.append(_check_tool(tool, owner))
    return tools


def merge_tools(listed: Sequence[Tool], methods: Sequence[Tool], owner: str) -> tuple[Tool, ...]:
    """Return the listed tools and then the tool methods.

    Raise `ToolConflictError` if two tools have the same name.
    """
    by_name: dict[str, Tool] = {}
    for tool in (*listed, *methods):
        other = by_name.setdefault(tool.name, tool)
        if other is tool or _is_same_function(other.function, tool.function):
            continue
        if tool in methods and other not in methods:
            raise ToolConflictError(f"Tool '{tool.name}' defined in both tools attribute and as method")
        raise ToolConflictError(
            f"Tool '{tool.name}' of `{owner}` is defined twice: as {other.where} and as {tool.where}. "
            f"Rename one with `@tool(name=...)`."
        )
    return tuple(by_name.values())


def is_tool_name(name: object) -> bool:
    """Return True if providers accept the name for a tool and acorn does not reserve it."""
    return isinstance(name, str) and bool(_NAME.fullmatch(name)) and name != FINISH


def check_tool_name(tool: Tool, owner: str) -> Tool:
    """Return the tool, or raise `DeclarationError` if its name is not a valid tool name."""
    if tool.name == FINISH:
        raise DeclarationError(
            f"`{owner}` has a tool named `{FINISH}` ({tool.where}), but that name is reserved for the tool that ends a "
            f"run. Rename it with `@tool(name=...)`."
        )
    if not _NAME.fullmatch(tool.name):
        raise DeclarationError(
            f"`{owner}` has a tool named {tool.name!r} ({tool.where}), but providers accept only 1 to 64 letters, "
            f"digits, `_` and `-`. Rename it with `@tool(name=...)`."
        )
    return tool


def _check_tool(tool: FunctionTool, owner: str) -> FunctionTool:
    check_tool_name(tool, owner)
    try:
        tool.binding  # noqa: B018 - The property caches its value.
    except UnresolvedHintError:
        pass  # The file may define the class later. The first call evaluates the type hints again.
    except DeclarationError as error:
        raise type(error)(f"{error} (`{owner}`, {tool.where})") from error
    return tool


def _is_same_function(entry: object, function: object) -> bool:
    if isinstance(entry, dict):  # A hosted tool.
        return bool(entry == function)
    return entry is function or (inspect.ismethod(entry) and inspect.ismethod(function) and entry == function)


def callable_name(entry: Any) -> str:
    """Return the name of a callable.

    For a `functools.partial`, return the name of its function. For a callable object, return the name of its class.
    """
    while is_partial(entry) and not hasattr(entry, "__name__"):
        entry = entry.func
    return str(getattr(entry, "__name__", "") or snake_case(type(entry).__name__))


def _label(entry: object) -> str:
    while is_partial(entry):
        entry = entry.func
    target: Any = entry if hasattr(entry, "__qualname__") else type(entry)
    # A method of a builtin object, such as `"".join`, has the module None. A method of a builtin class has none.
    module = getattr(target, "__module__", None)
    return f"{module}.{target.__qualname__}" if module else str(target.__qualname__)


def callable_docstring(function: object) -> str | None:
    """Return the docstring of a callable.

    For a partial, use its function; for an object, use its `__call__`.
    """
    # A decorator that is a class may set a docstring on its instances.
    is_on_instance = "__doc__" in getattr(function, "__dict__", {})
    if is_partial(function) and not is_on_instance:
        return callable_docstring(function.func)
    if is_on_instance or inspect.isroutine(function):
        doc: str | None = function.__doc__
        return doc
    return type(function).__call__.__doc__ or type(function).__doc__


# Descriptions in docstrings.

_SECTIONS = {
    "google": re.compile(
        r"^(?:Args|Arguments|Parameters|Params|Attributes|Returns?|Yields?|Raises|Exceptions|Except|Examples?|Notes?|"
        r"Warnings?|Warns|See Also|References|Todo|Keyword Args|Keyword Arguments|Other Parameters|Methods)"
        r"\s*:[ \t]*$",
        re.MULTILINE,
    ),
    "numpy": re.compile(r"^[A-Z][A-Za-z ]*\n(?:-{3,}|={3,})[ \t]*$", re.MULTILINE),
    "sphinx": re.compile(
        r"^:(?:param|parameter|arg|argument|key|keyword|type|returns?|rtype|raises?|yields?|ytype|var|ivar|cvar|"
        r"vartype|except|exception)\b[^:\n]*:",
        re.MULTILINE,
    ),
}
"""A dict that maps each style of docstrings to a pattern of its section titles."""
_PARAMETER_SECTIONS = (
    "Args",
    "Arguments",
    "Parameters",
    "Params",
    "Keyword Args",
    "Keyword Arguments",
    "Other Parameters",
)


def read_docstring(doc: str | None) -> tuple[str, dict[str, str]]:
    """Return the description of a tool, and a dict that maps parameter names to their descriptions."""
    text = _clean(doc) if doc else ""
    starts = {style: match.start() for style, title in _SECTIONS.items() if (match := title.search(text))}
    if not starts:
        return text.strip(), {}
    style = min(starts, key=lambda style: starts[style])
    return text[: starts[style]].strip(), _read_parameters(text[starts[style] :], style)


def _clean(doc: str) -> str:
    """Return a docstring without its indentation, but preserve the indentation of a section on the first line."""
    text = inspect.cleandoc(doc)
    first_line, _, body = text.partition("\n")
    if _SECTIONS["google"].match(first_line) and not body[:1].isspace():
        return first_line + "\n" + textwrap.indent(body, "    ")
    return text


def _read_parameters(text: str, style: str) -> dict[str, str]:
    from docstring_parser import google, numpydoc, rest

    # Parse only the parameter sections of a Google docstring, so that errors in other sections do not matter.
    sections = [google.Section(title, "param", google.SectionType.MULTIPLE) for title in _PARAMETER_SECTIONS]
    parsers = {"google": google.GoogleParser(sections).parse, "numpy": numpydoc.parse, "sphinx": rest.parse}
    try:
        # The parsers remove the indentation of all lines except the first line, so it must not be a section title.
        parsed = parsers[style](f"_\n\n{text}")
    except Exception:  # The descriptions of a malformed section are lost, but the tool still works.
        return {}
    descriptions: dict[str, str] = {}
    for parameter in parsed.params:
        description = (parameter.description or "").strip()
        for name in parameter.arg_name.split(","):
            if description:
                descriptions[name.strip().lstrip("*")] = description
    return descriptions
