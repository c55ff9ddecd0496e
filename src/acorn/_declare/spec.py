"""A module class, checked and frozen.

Compiling reads the attributes of a class or an instance, checks each by the rules of `_settings`, and makes the spec
that all runs share. Nothing here knows how a run goes.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from acorn._declare.settings import (
    AUTO,
    SETTINGS,
    ClassLimit,
    RateLimit,
    check_set_once,
    check_setting,
    read_rate_limit,
    setting_error,
    without_overridden,
)
from acorn._declare.tools.collect import collect_methods, collect_tools, merge_tools
from acorn._declare.tools.kinds import Tool, ToolSource
from acorn._formats.schema.shape import Shape, shape_of
from acorn._formats.xml.encode import DescriptionFormat, XmlStyle
from acorn.errors import DeclarationError
from acorn.models.port import AUTO_CACHE
from acorn.types import JsonObject


@dataclass(frozen=True, eq=False)
class Prompt:
    """The system prompt as declared: text, a file or a method."""

    text: str = ""
    file: Path | None = None
    """Found, and read anew for each run."""
    is_method: bool = False
    """To be called on the instance for each run."""


@dataclass(frozen=True, eq=False)
class Spec:
    """Everything about a module that does not change from call to call."""

    owner: str
    declared: frozenset[str]
    """The attributes that somebody set; the others hold defaults."""
    model: Any = field(repr=False)
    """As declared. It may hold a key, so it is never printed."""
    temperature: float
    max_tokens: int
    max_steps: int | None
    parse_retries: int
    prompt: Prompt
    input: Shape
    output: Shape
    tools: tuple[Tool, ...]
    sources: tuple[ToolSource, ...]
    branches: Mapping[str, Any]
    cache: tuple[Mapping[str, Any], ...]
    strict: bool | None
    max_total_tokens: int | None
    max_cost: float | None
    max_seconds: float | None
    compact_at: int | None
    rate_limit: ClassLimit[RateLimit] | None
    max_concurrency: ClassLimit[int] | None
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

    @property
    def xml(self) -> XmlStyle:
        return XmlStyle(self.xml_include_descriptions, self.xml_description_format, self.xml_include_none)


CACHE_DEFAULT = ({"location": "message", "role": "system"}, {"location": "message", "index": 0})
"""What `cache = True` stands for."""

_COUNTED = ("rate_limit", "max_concurrency")
"""Limits that all runs of a class share."""

_SHAPES = {"initial_input": "input", "final_output": "output"}


def compile_spec(cls: type, base: type, values: Mapping[str, Any], local_names: Mapping[str, Any]) -> Spec:
    """The spec of a class; `values` hold every attribute, `local_names` what its tools' hints may name."""
    declared = {
        attribute for attribute in SETTINGS if any(attribute in vars(parent) for parent in _ahead(cls, base, attribute))
    }
    frozen = _freeze(cls, values, local_names)
    frozen["model"] = _model_of_classes(cls, base, frozen["model"])
    for attribute in _COUNTED:
        if frozen[attribute] is not None:
            frozen[attribute] = ClassLimit(frozen[attribute].limit, _declarer(cls, base, attribute))
    prompt = _prompt(cls, base)
    return Spec(owner=cls.__name__, declared=frozenset(declared), prompt=prompt, **frozen)


def revise_spec(spec: Spec, cls: type, own: Mapping[str, Any], local_names: Mapping[str, Any]) -> Spec:
    """The spec of an instance that sets some attributes for itself, checked the same way."""
    changes = _freeze(cls, own, local_names)
    if "model" in own:
        check_set_once(spec.owner, own["model"], own)
    else:
        changes["model"] = without_overridden(spec.model, own)
    if "system_prompt" in own:
        changes["prompt"] = _read_prompt(own["system_prompt"], cls, own=True)
    return replace(spec, declared=spec.declared | frozenset(own), **changes)


def _model_of_classes(cls: type, base: type, model: Any) -> Any:
    """The model without what a subclass of the class that set it says for itself."""
    nearer: set[str] = set()
    for parent in _ahead(cls, base, "model"):
        if "model" in vars(parent):
            check_set_once(parent.__name__, model, vars(parent))
            break
        nearer |= vars(parent).keys()
    return without_overridden(model, nearer)


def _declarer(cls: type, base: type, attribute: str) -> type:
    """The class whose attribute counts."""
    return next((parent for parent in _ahead(cls, base, attribute) if attribute in vars(parent)), base)


def _freeze(cls: type, values: Mapping[str, Any], local_names: Mapping[str, Any]) -> JsonObject:
    """The fields of a spec that these attributes decide."""
    owner = cls.__name__
    frozen: JsonObject = {}
    for attribute, value in values.items():
        check_setting(owner, attribute, value)
        if attribute == "tools":
            listed, sources = collect_tools(value, owner, local_names)
            frozen["tools"] = merge_tools(listed, collect_methods(cls, owner, local_names), owner)
            frozen["sources"] = tuple(sources)
        elif attribute in ("initial_input", "final_output"):
            frozen[_SHAPES[attribute]] = shape_of(value, owner, attribute)
        elif attribute == "cache":
            frozen["cache"] = CACHE_DEFAULT if value is True else AUTO_CACHE if value == AUTO else tuple(value or ())
        elif attribute in _COUNTED:
            limit = read_rate_limit(value, owner) if attribute == "rate_limit" else value
            frozen[attribute] = None if limit is None else ClassLimit(limit, cls)
        elif attribute != "system_prompt":
            frozen[attribute] = value
    return frozen


def _above(cls: type, base: type) -> list[type]:
    """The class and its bases up to `module`, mixins included."""
    mro = list(cls.__mro__)
    return mro[: mro.index(base)] + [parent for parent in mro[mro.index(base) + 1 :] if parent is not object]


def _ahead(cls: type, base: type, attribute: str) -> list[type]:
    """The classes whose attribute counts: those before `module`, and all where `module` has none of its own."""
    above = _above(cls, base)
    return above[: cls.__mro__.index(base)] if attribute in vars(base) else above


def _prompt(cls: type, base: type) -> Prompt:
    """The nearest `system_prompt`, else the nearest docstring of a module."""
    for parent in _above(cls, base):
        if "system_prompt" in vars(parent):
            return _read_prompt(vars(parent)["system_prompt"], parent)
    for parent in _above(cls, base):
        if issubclass(parent, base) and parent.__doc__ and "__doc__" in vars(parent):
            return Prompt(inspect.cleandoc(parent.__doc__))
    return Prompt()


def _read_prompt(declared: Any, owner: type, *, own: bool = False) -> Prompt:
    if isinstance(declared, str):
        return Prompt(inspect.cleandoc(declared))
    if isinstance(declared, Path):
        file = _find(declared, owner)
        read_prompt_file(file, owner.__name__)
        return Prompt(file=file)
    function = declared.__func__ if isinstance(declared, staticmethod | classmethod) else declared
    if not callable(function) or isinstance(function, type):
        raise setting_error(owner.__name__, "system_prompt", declared)
    # Python binds functions and class methods to the instance, other callables it leaves alone.
    takes_self = not own and (isinstance(declared, classmethod) or inspect.isfunction(declared))
    signature = inspect.signature(function)
    try:
        signature.bind(*(["self"] if takes_self else []))
    except TypeError:
        needed = [p for p in signature.parameters.values() if p.default is p.empty and p.kind not in (2, 4)]
        takes = "`self` alone" if takes_self else "no arguments"
        raise DeclarationError(
            f"`{owner.__name__}.system_prompt` is called with {takes}; it takes {len(needed)}."
        ) from None
    return Prompt(is_method=True)


def _find(path: Path, owner: type) -> Path:
    """In the working directory, then beside the file that defines the class."""
    paths = [Path.cwd() / path]
    defined_in = getattr(sys.modules.get(owner.__module__), "__file__", None)
    if defined_in:
        paths.append(Path(defined_in).resolve().parent / path)
    for found in paths:
        if found.is_file():
            return found
    looked = " and ".join(dict.fromkeys(str(tried.parent) for tried in paths))
    raise DeclarationError(
        f"`{owner.__name__}.system_prompt` names the file `{path}`, which is not there; looked in {looked}."
    )


def read_prompt_file(file: Path, owner: str) -> str:
    """The text of a prompt file, as it is."""
    try:
        return file.read_bytes().decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise DeclarationError(f"`{owner}.system_prompt` cannot be read from `{file}` as UTF-8: {error}.") from error
