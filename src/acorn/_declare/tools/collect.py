"""Everything that is a tool of a module, each with one name.

From `tools = [...]` and from the methods marked with `@tool`, bases included. `_spec` calls it when a
class is defined; a run calls `gather` again for what its sources offer.
"""

from __future__ import annotations

import functools
import inspect
import re
import types
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, get_origin

from acorn._declare.tools.decorator import ToolOptions, options_of
from acorn._declare.tools.kinds import AS_TOOL, Arguments, Binding, Tool, ToolSource, hosted_tool, is_source
from acorn._declare.tools.schemas import schema_binding
from acorn._declare.tools.signatures import UnresolvedHintError, read_docstring, signature_binding
from acorn._formats.json import excerpt
from acorn._formats.schema.generate import close_objects
from acorn._formats.xml.encode import snake_case
from acorn.errors import DeclarationError, ToolConflictError
from acorn.record import Run
from acorn.types import JsonObject

FINISH = "__finish__"
"""The tool that ends a run; every module has it."""

_NEVER_BOUND = (staticmethod, types.MethodType, functools.partial)
"""What has a `__get__`, or may have one, and yet does not take the instance."""

# The names that every provider takes.
_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")


@dataclass(frozen=True, eq=False)
class FunctionTool:
    """A tool that is a function, described by its signature or by the schema that came with it."""

    name: str
    function: Callable[..., Any] = field(repr=False)
    options: ToolOptions
    where: str
    """Where it was declared, for messages."""
    method: str | None = None
    """The attribute to take it from on an instance, for methods."""
    drop_first: bool = False
    local_names: Mapping[str, Any] = field(default_factory=JsonObject, repr=False)

    @cached_property
    def _doc(self) -> tuple[str, dict[str, str]]:
        return read_docstring(callable_docstring(self.function))

    @cached_property
    def binding(self) -> Binding:
        """The schema and validator of its arguments."""
        if self.options.schema is not None:
            return schema_binding(
                self.options.schema,
                self.function,
                self.name,
                drop_first=self.drop_first,
                local_names=self.local_names,
            )
        return signature_binding(
            self.function,
            self.name,
            descriptions=lambda: self._doc[1],
            drop_first=self.drop_first,
            local_names=self.local_names,
        )

    @property
    def schema(self) -> JsonObject:
        """Name, description and parameters, as in a request's `function`; the same object each time."""
        return self._schema

    @cached_property
    def _schema(self) -> JsonObject:
        description = self.options.description or self._doc[0]
        described = {"description": description} if description else {}
        schema = self.binding.schema
        if not self.options.strict:
            return {"name": self.name, **described, "parameters": schema}
        # One that came with the tool is sent as it is.
        sent = schema if self.options.schema is not None else close_objects(schema)
        return {"name": self.name, **described, "parameters": sent, "strict": True}

    def bind(self, arguments: str, run: Run | None = None) -> Arguments:
        """The call that the model's JSON asks for."""
        return self.binding.bind(arguments, run)

    def bound_to(self, instance: object) -> FunctionTool:
        """The same tool as a method of one instance."""
        if self.method is None:
            return self
        bound = replace(self, function=getattr(instance, self.method), drop_first=False)
        # The signature was read from the class; what came of it holds for every instance.
        vars(bound).update(_doc=self._doc, binding=self.binding, _schema=self._schema)
        return bound


def collect_tools(
    declared: Iterable[Any], owner: str, local_names: Mapping[str, Any]
) -> tuple[list[Tool], list[ToolSource]]:
    """The tools and the sources in a `tools` list, each tool once."""
    tools: list[Tool] = []
    sources: list[ToolSource] = []
    for index, entry in enumerate(declared):
        if is_source(entry):
            if not any(entry is known for known in sources):
                sources.append(entry)
        elif not any(_same(entry, known.function) for known in tools):
            tools.append(make_tool(entry, f"tools[{index}]", owner, local_names))
    return tools, sources


def make_tool(entry: Any, where: str, owner: str, local_names: Mapping[str, Any]) -> Tool:
    """A tool from any callable, or from what makes a tool of itself, as agents do."""
    if hasattr(get_origin(entry), AS_TOOL):  # an agent in brackets, `Extract[Person]`
        make_tool(get_origin(entry), where, owner, local_names)  # which says so where it cannot be made
        entry = entry()
    if hasattr(entry, AS_TOOL):
        made: Tool = getattr(entry, AS_TOOL)(where, owner)
        return check_tool_name(made, owner)
    if isinstance(entry, dict):
        return check_tool_name(hosted_tool(entry, where, owner), owner)
    if isinstance(entry, staticmethod | classmethod):
        entry = entry.__func__
    if not callable(entry) and is_source(entry):
        raise DeclarationError(
            f"`{owner}.{where}` takes a tool, and {excerpt(entry, 200)} is a source of several, which is opened when a "
            f"run begins; put it in `tools`."
        )
    if not callable(entry) or isinstance(entry, type):
        what = f"the class `{entry.__name__}`" if isinstance(entry, type) else excerpt(entry, 200)
        raise DeclarationError(
            f"`{owner}.{where}` must be a function, a callable object, an agent, a source with `tools()` or a "
            f"provider's own tool as a dict, got {what}."
        )
    options = options_of(entry) or ToolOptions()
    return _checked(
        FunctionTool(
            options.name or callable_name(entry),
            entry,
            options,
            f"{where} (`{_label(entry)}`)",
            local_names=local_names,
        ),
        owner,
    )


def collect_methods(cls: type, owner: str, local_names: Mapping[str, Any]) -> list[FunctionTool]:
    """The marked methods of a class and its bases, base first, in the order of their definition.

    An override without the decorator stays a tool: it takes the place of the method it overrides.
    """
    found: dict[str, tuple[Any, ToolOptions]] = {}
    for base in reversed(cls.__mro__):
        for attribute, value in vars(base).items():
            inherited = found[attribute][1] if attribute in found else None
            options = options_of(value) or (inherited if callable(value) or isinstance(value, staticmethod) else None)
            if options is not None:
                found[attribute] = (value, options)
            else:
                found.pop(attribute, None)
    return [_method(attribute, value, options, owner, local_names) for attribute, (value, options) in found.items()]


def _method(
    attribute: str, value: Any, options: ToolOptions, owner: str, local_names: Mapping[str, Any]
) -> FunctionTool:
    function = value.__func__ if isinstance(value, staticmethod | classmethod) else value
    # What a decorator has made of a function may bind itself like one: `functools.lru_cache` does.
    is_bound_later = hasattr(type(value), "__get__") and not isinstance(value, _NEVER_BOUND)
    name = options.name or attribute
    tool = FunctionTool(name, function, options, f"method `{attribute}`", attribute, is_bound_later, local_names)
    return _checked(tool, owner)


def merge_tools(listed: Sequence[Tool], own: Sequence[Tool], owner: str) -> tuple[Tool, ...]:
    """All tools under distinct names; the listed ones come first."""
    listed = [tool for tool in listed if not any(tool.function is method.function for method in own)]
    check_tool_name: dict[str, Tool] = {}
    for tool in (*listed, *own):
        other = check_tool_name.setdefault(tool.name, tool)
        if other is tool or _same(other.function, tool.function):
            continue
        if tool in own and other not in own:
            raise ToolConflictError(f"Tool '{tool.name}' defined in both tools attribute and as method")
        raise ToolConflictError(
            f"Tool '{tool.name}' of `{owner}` is defined twice: as {other.where} and as {tool.where}; "
            f"rename one with `@tool(name=...)`."
        )
    return tuple(check_tool_name.values())


def is_tool_name(name: object) -> bool:
    """Whether providers take it and it is not ours."""
    return isinstance(name, str) and bool(_NAME.fullmatch(name)) and name != FINISH


def check_tool_name(tool: Tool, owner: str) -> Tool:
    """The tool, if its name is one that providers take and not ours."""
    if tool.name == FINISH:
        raise DeclarationError(
            f"`{owner}` has a tool named `{FINISH}` ({tool.where}); the name belongs to the tool that ends a run. "
            f"Rename it with `@tool(name=...)`."
        )
    if not _NAME.fullmatch(tool.name):
        raise DeclarationError(
            f"`{owner}` has a tool named {tool.name!r} ({tool.where}); providers take 1 to 64 letters, digits, "
            f"`_` and `-`. Name it with `@tool(name=...)`."
        )
    return tool


def _checked(tool: FunctionTool, owner: str) -> FunctionTool:
    check_tool_name(tool, owner)
    try:
        tool.binding  # noqa: B018 - computed once and kept
    except UnresolvedHintError:
        pass  # the class may come later in the file; the first call looks again
    except DeclarationError as error:
        raise type(error)(f"{error} (`{owner}`, {tool.where})") from error
    return tool


def _same(entry: Any, function: Any) -> bool:
    if isinstance(entry, dict):  # a tool of a provider's
        return bool(entry == function)
    return entry is function or (inspect.ismethod(entry) and inspect.ismethod(function) and entry == function)


def callable_name(entry: Any) -> str:
    """What a callable is called where nobody named it: a partial like its function, an object like its class."""
    while isinstance(entry, functools.partial) and not hasattr(entry, "__name__"):
        entry = entry.func
    return str(getattr(entry, "__name__", "") or snake_case(type(entry).__name__))


def _label(entry: Any) -> str:
    while isinstance(entry, functools.partial):
        entry = entry.func
    target = entry if hasattr(entry, "__qualname__") else type(entry)
    # A method of a builtin object, `"".join`, has no module.
    return f"{target.__module__}.{target.__qualname__}" if target.__module__ else str(target.__qualname__)


def callable_docstring(function: Any) -> str | None:
    """What a callable says of itself; a partial has the words of its function, an object those of its `__call__`."""
    # An instance has a docstring of its own where somebody gave it one: a decorator that is a class, say.
    has_own = "__doc__" in getattr(function, "__dict__", {})
    if isinstance(function, functools.partial) and not has_own:
        return callable_docstring(function.func)
    if has_own or inspect.isroutine(function):
        own: str | None = function.__doc__
        return own
    return type(function).__call__.__doc__ or type(function).__doc__
