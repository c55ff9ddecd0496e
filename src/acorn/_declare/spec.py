"""The spec of an agent class: its checked settings in an object that does not change.

The functions check the attributes of a class or an instance with the rules in `settings.py`, and create the spec that
all runs share.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, NamedTuple

from acorn._declare import settings
from acorn._declare.generics import deps_type
from acorn._declare.tools.collect import FunctionTool, collect_methods, collect_tools, merge_tools
from acorn._declare.tools.kinds import AgentTool, Tool, ToolSource
from acorn._formats.json import excerpt
from acorn._formats.schema.shape import Shape, shape_of
from acorn._formats.xml.encode import DescriptionFormat, XmlStyle
from acorn.errors import DeclarationError
from acorn.models.request import AUTO_CACHE
from acorn.types import JsonObject, is_list_or_tuple, is_mapping


@dataclass(frozen=True, eq=False)
class Prompt:
    """The system prompt that a class declares: a text, a file or a method."""

    text: str = ""
    file: Path | None = None
    """The resolved path of the prompt file. Each run loads the file again."""
    is_method: bool = False
    """Whether the prompt is a method, which each run calls on its instance."""


class Sampling(NamedTuple):
    """The settings that every request of a run uses until a hook changes them."""

    model: Any
    temperature: float
    max_tokens: int
    explicit: frozenset[str]
    """The names of the settings that the user set as attributes, in a model dict or in `on_step`."""


@dataclass(frozen=True, eq=False)
class Spec:
    """The settings, tools and types of a module, which do not change from call to call."""

    owner: str
    module: str
    """The name of the class for journals, such as `package.file:Class`."""
    declared: frozenset[str]
    """The names of the attributes that the user set. All other attributes have their defaults."""
    model: Any = field(repr=False)
    """The model setting of the user. It may contain an API key, so `repr` omits it."""
    temperature: float
    max_tokens: int
    max_steps: int | None
    parse_retries: int
    prompt: Prompt
    input: Shape
    output: Shape
    tools: tuple[Tool, ...]
    agent_tools: tuple[Any, ...]
    """The agents that are tools: module classes and instances."""
    human_tools: tuple[Tool, ...]
    """The tools whose calls may wait for a person."""
    has_tool_methods: bool
    """Whether any tool is a method, which must be bound to the instance."""
    sources: tuple[ToolSource, ...]
    branches: Mapping[str, Any]
    cache: tuple[Mapping[str, Any], ...]
    strict: bool | None
    max_total_tokens: int | None
    max_cost: float | None
    max_seconds: float | None
    compact_at: int | None
    rate_limit: settings.ClassLimit[settings.RateLimit] | None
    max_concurrency: settings.ClassLimit[int] | None
    loop_guard: str | None
    max_depth: int
    max_media_bytes: int | None
    store: Any
    history_format: str
    xml_include_descriptions: bool
    xml_description_format: DescriptionFormat
    xml_include_none: bool
    xml_input_root: str
    xml_output_root: str
    xml_context_root: str

    local_names: Mapping[str, object] = field(repr=False)
    """The local variables that the type hints of tools may use, if the class was defined in a function."""
    deps_type: Any
    """The type that the class declares for its dependencies, or `Any`."""

    @cached_property
    def xml(self) -> XmlStyle:
        """The settings for descriptions and missing values in XML, in the format of the XML encoder."""
        return XmlStyle(self.xml_include_descriptions, self.xml_description_format, self.xml_include_none)

    def __post_init__(self) -> None:
        _ = self.sampling, self.xml  # Compute them with the spec, so that the first call does not.

    @cached_property
    def sampling(self) -> Sampling:
        """The settings for requests of a run whose hooks have not changed them."""
        return self.changed_sampling({})

    def changed_sampling(self, changed: Mapping[str, Any]) -> Sampling:
        """Return the settings for requests. `changed` contains the values that `on_step` has changed so far."""
        in_model = [attribute for attribute, _ in settings.settings_in(changed.get("model", self.model))]
        explicit = self.declared.union(changed, in_model)
        if self.effective("strict", changed) is None:
            explicit -= {"strict"}
        names = ("model", "temperature", "max_tokens")
        model, temperature, max_tokens = (self.effective(name, changed) for name in names)
        return Sampling(model, temperature, max_tokens, explicit)

    def effective(self, attribute: str, changed: Mapping[str, Any]) -> Any:
        """Return the value of a setting that applies in a run.

        `changed` contains the values that `on_step` has changed so far.
        """
        if attribute in changed:
            return changed[attribute]
        value = getattr(self, attribute)
        if attribute in settings.MODEL_KEYS:
            return settings.setting_in(changed.get("model", self.model), attribute, value)
        is_model_list = attribute == "model" and is_list_or_tuple(value)
        return settings.without_overridden(value, changed) if is_model_list else value

    @property
    def startable(self) -> tuple[Any, ...]:
        """The agents that a run may start: agents that are used as tools, and branches."""
        branches = [entry["module"] if is_mapping(entry) else entry for entry in self.branches.values()]
        return (*self.agent_tools, *branches)


CACHE_DEFAULT = ({"location": "message", "role": "system"}, {"location": "message", "index": 0})
"""The cache points of the setting `cache = True`."""

_CLASS_LIMITS = ("rate_limit", "max_concurrency")
"""The names of the limit settings whose counts all runs of a class share."""

_SHAPE_FIELDS = {"initial_input": "input", "final_output": "output"}


def compile_spec(cls: type, base: type, values: Mapping[str, object], local_names: Mapping[str, object]) -> Spec:
    """Compile the spec of a class.

    `values` maps all settings to their values. `local_names` are local variables that the type hints of tools may use.
    """
    declared = [attribute for attribute in settings.SETTINGS if _declarer(cls, base, attribute) is not base]
    frozen = _freeze(cls, values, local_names)
    frozen["model"] = _inherited_model(cls, base, frozen["model"])
    for attribute in _CLASS_LIMITS:
        if frozen[attribute] is not None:
            frozen[attribute] = settings.ClassLimit(frozen[attribute].limit, _declarer(cls, base, attribute))
    return Spec(
        owner=cls.__name__,
        module=f"{cls.__module__}:{cls.__qualname__}",
        declared=frozenset(declared),
        prompt=_find_prompt(cls, base),
        local_names=local_names,
        deps_type=deps_type(cls),
        **frozen,
    )


def revise_spec(spec: Spec, cls: type, values: Mapping[str, object]) -> Spec:
    """Return a copy of a spec with changed settings from an instance or a `with Agent.override(...)` block."""
    changes = _freeze(cls, values, spec.local_names)
    if "model" in values:
        settings.check_set_once(spec.owner, values["model"], values)
    else:
        changes["model"] = settings.without_overridden(spec.model, values)
    if "system_prompt" in values:
        changes["prompt"] = _read_prompt(values["system_prompt"], cls, is_on_instance=True)
    return replace(spec, declared=spec.declared | frozenset(values), **changes)


def _inherited_model(cls: type, base: type, model: Any) -> Any:
    """Return a model that a base class declares, without the values that subclasses override."""
    declarer = _declarer(cls, base, "model")
    settings.check_set_once(declarer.__name__, model, vars(declarer))
    subclasses = cls.__mro__[: cls.__mro__.index(declarer)]
    return settings.without_overridden(model, {name for subclass in subclasses for name in vars(subclass)})


def _declarer(cls: type, base: type, attribute: str) -> type:
    """Return the class that defines the attribute for `cls`, or `base` if no class defines it."""
    return next((parent for parent in cls.__mro__ if attribute in vars(parent)), base)


def _freeze(cls: type, values: Mapping[str, Any], local_names: Mapping[str, object]) -> JsonObject:
    """Check the attributes in `values`, and return the spec fields that are computed from them as a dict."""
    owner = cls.__name__
    frozen: JsonObject = {}
    for attribute, value in values.items():
        settings.check_setting(owner, attribute, value)
        if attribute == "tools":
            methods = collect_methods(cls, owner, local_names)
            listed, sources = collect_tools(value, owner, local_names, methods)
            tools = merge_tools(listed, methods, owner)
            frozen["tools"] = tools
            frozen["agent_tools"] = tuple([tool.function for tool in tools if isinstance(tool, AgentTool)])
            frozen["human_tools"] = tuple([tool for tool in tools if tool.may_ask_human])
            frozen["has_tool_methods"] = any(isinstance(tool, FunctionTool) and bool(tool.method) for tool in tools)
            frozen["sources"] = tuple(sources)
        elif attribute in _SHAPE_FIELDS:
            find_names = partial(_names_of, cls, local_names)
            frozen[_SHAPE_FIELDS[attribute]] = shape_of(value, owner, attribute, find_names)
        elif attribute == "cache":
            frozen["cache"] = (
                CACHE_DEFAULT if value is True else AUTO_CACHE if value == settings.AUTO else tuple(value or ())
            )
        elif attribute in _CLASS_LIMITS:
            limit = settings.read_rate_limit(value, owner) if attribute == "rate_limit" else value
            frozen[attribute] = None if limit is None else settings.ClassLimit(limit, cls)
        elif attribute != "system_prompt":
            frozen[attribute] = value
    return frozen


def _names_of(cls: type, local_names: Mapping[str, object]) -> JsonObject:
    """Return the names that a class definition can use: those of its Python module, and its local variables."""
    return {**getattr(sys.modules.get(cls.__module__), "__dict__", {}), **local_names}


def _find_prompt(cls: type, base: type) -> Prompt:
    """Return the `system_prompt` of the nearest base class, or else the docstring of the nearest base class."""
    declarer = _declarer(cls, base, "system_prompt")
    if declarer is not base:
        return _read_prompt(vars(declarer)["system_prompt"], declarer)
    return Prompt(inspect.cleandoc(find_docstring(cls, base) or ""))


def find_docstring(cls: type, base: type) -> str | None:
    """Return the docstring of the nearest base class that has one. Ignore the docstring of `module` itself."""
    docs = [vars(parent).get("__doc__") for parent in cls.__mro__ if issubclass(parent, base) and parent is not base]
    return next(filter(None, docs), None)


def _read_prompt(declared: object, owner: type, *, is_on_instance: bool = False) -> Prompt:
    if isinstance(declared, str):
        return Prompt(inspect.cleandoc(declared))
    if isinstance(declared, Path):
        file = _find_file(declared, owner)
        read_prompt_file(file, owner.__name__)
        return Prompt(file=file)
    check_method(declared, owner, "system_prompt", "a string, a Path or a method", is_on_instance=is_on_instance)
    return Prompt(is_method=True)


def check_method(
    declared: Any, owner: type, name: str, expected: str, *parameters: str, is_on_instance: bool = False
) -> None:
    """Raise `DeclarationError` if acorn cannot call a prompt method or a hook with `self` and these parameters."""
    where = f"`{owner.__name__}.{name}`"
    method = declared
    is_property = issubclass(type(declared), property | cached_property)  # A method must be callable itself.
    if not is_on_instance and not is_property and hasattr(declared, "__get__"):
        method = declared.__get__(object(), object)
    if not callable(method) or isinstance(method, type):
        raise DeclarationError(f"{where} must be {expected}, got {excerpt(declared)}.")
    if inspect.isgeneratorfunction(method) or inspect.isasyncgenfunction(method):
        raise DeclarationError(f"{where} contains `yield`, so it is a generator. Return a value instead.")
    takes = ("self", *parameters) if inspect.ismethod(method) else parameters
    try:
        # A decorator may pass other arguments to the function that it wraps, so its own signature counts.
        signature = inspect.signature(method.__func__ if inspect.ismethod(method) else method, follow_wrapped=False)
    except ValueError:  # Some builtin functions have no signature.
        return
    try:
        signature.bind(*takes)
    except TypeError:
        given = " and ".join(f"`{parameter}`" for parameter in takes) or "no arguments"
        raise DeclarationError(
            f"{where} has the parameters `({', '.join(signature.parameters)})`, but acorn calls it with {given}. "
            f"Write `def {name}({', '.join(takes)})`."
        ) from None


def _find_file(path: Path, owner: type) -> Path:
    """Return the path of a prompt file in the working directory, or else in the directory of the class's file.

    Raise `DeclarationError` if neither directory contains the file.
    """
    candidates = [Path.cwd() / path]
    defined_in = getattr(sys.modules.get(owner.__module__), "__file__", None)
    if defined_in:
        candidates.append(Path(defined_in).resolve().parent / path)
    for candidate in candidates:
        if candidate.is_file():
            return candidate
    directories = " and ".join(dict.fromkeys(str(candidate.parent) for candidate in candidates))
    raise DeclarationError(
        f"`{owner.__name__}.system_prompt` is the path of the file `{path}`, which does not exist in {directories}. "
        f"Correct the path, or create the file."
    )


def read_prompt_file(file: Path, owner: str) -> str:
    """Return the text of a prompt file, unchanged."""
    try:
        return file.read_bytes().decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise DeclarationError(
            f"`{owner}.system_prompt` cannot be read from `{file}` as UTF-8: {error}. Use a readable file in UTF-8."
        ) from error
