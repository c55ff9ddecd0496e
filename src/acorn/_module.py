"""The front door: the class that users derive from.

It declares the attributes and keeps the spec of each class and instance true to them. What an attribute
means and what it may be is `_spec`'s business.
"""

from __future__ import annotations

import copy
import sys
import warnings
from collections.abc import Mapping, Sequence
from typing import Any, Generic, Self, get_args, get_origin

from typing_extensions import TypeVar

from acorn._spec import SETTINGS, Spec, compile_spec, revise_spec
from acorn.errors import DeclarationError

In = TypeVar("In", default=Any)
Out = TypeVar("Out", default=Any)


class module(Generic[In, Out]):
    """An LLM agent as a class.

    class Sentiment(module[Text, Verdict]):
        \"\"\"Classify the sentiment of the text.\"\"\"

        model = "openai/gpt-4o"
    """

    model: Any = SETTINGS["model"].default
    """A LiteLLM id, or a dict with `model` and any LiteLLM argument."""
    temperature: float = SETTINGS["temperature"].default
    """Sampling temperature, 0 to 2."""
    max_tokens: int = SETTINGS["max_tokens"].default
    """The most tokens in one response."""
    max_steps: int | None = SETTINGS["max_steps"].default
    """The most steps of the loop; None is a single turn."""
    parse_retries: int = SETTINGS["parse_retries"].default
    """Corrections of an output that does not validate."""
    system_prompt: Any
    """A string, a Path or a method; without it the docstring is the prompt."""
    initial_input: Any = SETTINGS["initial_input"].default
    """What a call takes."""
    final_output: Any = SETTINGS["final_output"].default
    """What a call returns."""
    tools: Sequence[Any] = SETTINGS["tools"].default
    """Functions, callable objects and sources of tools."""
    branches: Mapping[str, Any] = SETTINGS["branches"].default
    """Modules that this one may start, by name."""
    cache: Any = SETTINGS["cache"].default
    """Cache points of the provider; True is the system message and the input."""
    xml_include_descriptions: bool = SETTINGS["xml_include_descriptions"].default
    """Whether fields carry their descriptions in XML."""
    xml_description_format: str = SETTINGS["xml_description_format"].default
    """`"attribute"` or `"comment"`."""
    xml_include_none: bool = SETTINGS["xml_include_none"].default
    """Whether None is written as an empty element instead of left out."""
    xml_input_root: str = SETTINGS["xml_input_root"].default
    xml_output_root: str = SETTINGS["xml_output_root"].default
    xml_context_root: str = SETTINGS["xml_context_root"].default

    def __init__(self, **overrides: Any) -> None:
        for name, value in overrides.items():
            if name not in SETTINGS:
                raise TypeError(f"`{type(self).__name__}` has no attribute `{name}` to set{_hint(name)}.")
            setattr(self, name, value)
        if overrides:
            spec_of(self)

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        _take_brackets(cls)
        _warn_of_near_misses(cls)
        _class_spec(cls, _local_names(cls))

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {_model_id(self.model)}>"

    def using(self, **overrides: Any) -> Self:
        """A light copy with other settings; the original stays as it is.

        strict = agent.using(temperature=0.0)
        """
        other = copy.copy(self)
        module.__init__(other, **overrides)
        return other


Module = module


def spec_of(agent: module[Any, Any]) -> Spec:
    """The spec of an instance as it is now.

    An attribute that was set on the instance, or changed on its class after the definition, gives a new
    spec, checked the same way; otherwise it is the one made when the class was defined.
    """
    cls = type(agent)
    spec = _class_spec(cls, {})
    own = {name: value for name, value in vars(agent).items() if name in SETTINGS}
    if not own:
        return spec
    seen = (spec, _snapshot(own))
    kept: tuple[Any, Spec] | None = vars(agent).get(_KEPT)
    if kept is None or kept[0][0] is not spec or kept[0][1] != seen[1]:
        kept = (seen, revise_spec(spec, cls, module, own))
        vars(agent)[_KEPT] = kept
    return kept[1]


_KEPT = "_acorn_spec"
_TYPES = "_acorn_types"


def _class_spec(cls: type[module[Any, Any]], local_names: Mapping[str, Any]) -> Spec:
    values = {name: getattr(cls, name, None) for name in SETTINGS}
    seen = _snapshot(values)
    kept: tuple[Any, Spec] | None = vars(cls).get(_KEPT)
    if kept is None or kept[0] != seen:
        kept = (seen, compile_spec(cls, module, values, local_names))
        setattr(cls, _KEPT, kept)
    return kept[1]


def _snapshot(values: Mapping[str, Any]) -> tuple[Any, ...]:
    """The values in a form that a later `append` does not change."""
    return tuple(
        tuple(value) if isinstance(value, list) else tuple(value.items()) if isinstance(value, dict) else value
        for value in values.values()
    )


def _take_brackets(cls: type[module[Any, Any]]) -> None:
    """Read `module[In, Out]`, also through a generic class in between, as the two attributes."""
    found: tuple[Any, Any] = getattr(cls, _TYPES, (In, Out))
    for alias in vars(cls).get("__orig_bases__", ()):
        origin = get_origin(alias)
        if not isinstance(origin, type) or not issubclass(origin, module):
            continue
        given: dict[Any, Any] = dict(zip(origin.__parameters__, get_args(alias), strict=False))  # type: ignore[attr-defined]
        found = tuple(given.get(part, part) for part in getattr(origin, _TYPES, (In, Out)))
    setattr(cls, _TYPES, found)
    for attribute, kind in zip(("initial_input", "final_output"), found, strict=True):
        if kind is Any or type(kind).__name__ == "TypeVar":
            continue
        if attribute in vars(cls) and vars(cls)[attribute] is not kind:
            raise DeclarationError(
                f"`{cls.__name__}` declares `{attribute}` twice, in brackets and as an attribute; keep one."
            )
        setattr(cls, attribute, kind)


def _local_names(cls: type) -> dict[str, Any]:
    """The types around a class that is defined inside a function, for the hints of its tools."""
    frame = sys._getframe(2)
    while frame.f_globals.get("__name__") != cls.__module__ and frame.f_back is not None:
        frame = frame.f_back
    if frame.f_locals is frame.f_globals:
        return {}
    return {
        name: value
        for name, value in frame.f_locals.items()
        if isinstance(value, type) or get_origin(value) is not None
    }


def _warn_of_near_misses(cls: type) -> None:
    for name, value in vars(cls).items():
        if name.startswith("_") or name in SETTINGS or callable(value) or isinstance(value, property | staticmethod):
            continue
        if hint := _hint(name):
            warnings.warn(f"`{cls.__name__}.{name}` is not an attribute of modules{hint}", UserWarning, stacklevel=3)


def _hint(name: str) -> str:
    near = [known for known in SETTINGS if _is_near(name, known)]
    return f"; did you mean `{near[0]}`?" if near else ""


def _is_near(one: str, other: str) -> bool:
    """Whether at most two letters were changed, added or left out."""
    if abs(len(one) - len(other)) > 2:
        return False
    row = list(range(len(other) + 1))
    for at, letter in enumerate(one, start=1):
        above, row = row, [at]
        for column, wanted in enumerate(other, start=1):
            row.append(min(above[column] + 1, row[-1] + 1, above[column - 1] + (letter != wanted)))
        if min(row) > 2:
            return False
    return row[-1] <= 2


def _model_id(model: Any) -> str:
    """A model without its secrets."""
    if isinstance(model, dict):
        return f"model={model.get('model', model.get('id'))!r}"
    return f"model={model!r}" if isinstance(model, str) else f"model={type(model).__name__}" if model else "no model"
