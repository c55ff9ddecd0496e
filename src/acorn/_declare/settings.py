"""What `rate_limit` and `max_concurrency` say, checked, and the class that they are counted by.

The class whose attribute it is: subclasses that inherit a limit share it. What an instance, `using` or `override` sets
is counted by the class of the instance, and by its value. `_spec` reads it, `models/throttle.py` keeps to it.

`temperature` and `max_tokens`, which may be attributes and stand in a model dict: what was set nearer counts.

A value in a dict counts where that dict was set, and goes with it when another model takes its place. So a dict
that is overruled from nearer is handed on without the value, and whatever a dict still says is what is sent.
In a list of models what a dict says is for that model alone, and the attribute for those that say nothing.
`_spec` puts the declared levels together by this, the loop what hooks and branches add.

The attributes that a user may declare on a module: each with its default, its rule, and the rule in words.

One table. What a value must be stands here and nowhere else; `_spec` makes of the values what all runs share.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import is_
from pathlib import Path
from types import MappingProxyType
from typing import Any, Generic, NamedTuple, TypeVar

from acorn._formats.json import excerpt
from acorn._formats.xml.parse import is_xml_name
from acorn.errors import DeclarationError
from acorn.models.port import is_meant_as_model, is_model, lacks
from acorn.types import JsonObject

Limit = TypeVar("Limit")
_KEYS = ("requests", "tokens", "per", "shared")


@dataclass(frozen=True)
class RateLimit:
    """So much in any window of so many seconds; None is no limit."""

    requests: int | None
    tokens: int | None
    per: float = 60.0
    shared: bool = False
    """Whether all machines that use one store count together, and not each process for itself."""


class ClassLimit(NamedTuple, Generic[Limit]):
    """A limit, and the class whose requests it counts."""

    limit: Limit
    of: type


def read_rate_limit(value: Any, owner: str) -> RateLimit | None:
    """A `rate_limit` as a user declares it."""
    if value is None:
        return None
    where = f"`{owner}.rate_limit"
    if not isinstance(value, Mapping):
        raise DeclarationError(
            f"{where}` must be a dict such as {{'requests': 60, 'tokens': 100_000, 'per': 60}}, or None, "
            f"got {excerpt(value)}."
        )
    if unknown := [key for key in value if key not in _KEYS]:
        raise DeclarationError(
            f"{where}` has the key {excerpt(unknown[0])}; it takes 'requests', 'tokens', 'per' (seconds) and 'shared'."
        )
    for key in ("requests", "tokens"):
        if key in value and not _is_count(value[key]):
            raise DeclarationError(
                f"{where}[{key!r}]` must be a whole number of at least 1, got {excerpt(value[key])}."
            )
    if "requests" not in value and "tokens" not in value:
        raise DeclarationError(f"{where}` must say how many 'requests' or 'tokens', or both, got {excerpt(value)}.")
    if not _is_seconds(value.get("per", 60)):
        raise DeclarationError(f"{where}['per']` must be seconds above 0, got {excerpt(value['per'])}.")
    if not isinstance(value.get("shared", False), bool):
        raise DeclarationError(f"{where}['shared']` must be True or False, got {excerpt(value['shared'])}.")
    per = float(value.get("per", 60))
    return RateLimit(value.get("requests"), value.get("tokens"), per, value.get("shared", False))


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def _is_seconds(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < math.inf


MODEL_KEYS = {"temperature": ("temperature",), "max_tokens": ("max_tokens", "max_completion_tokens")}
"""By attribute, the keys of a model dict that say the same."""


def settings_in(model: Any) -> Iterator[tuple[str, str]]:
    """The attributes that a model dict sets, each with its key."""
    if isinstance(model, dict):
        for attribute, keys in MODEL_KEYS.items():
            for key in keys:
                if key in model:
                    yield attribute, key


def setting_in(model: Any, attribute: str, otherwise: Any) -> Any:
    """What a model says for an attribute."""
    if isinstance(model, dict):
        for key in MODEL_KEYS[attribute]:
            if key in model:
                return model[key]
    return otherwise


def without_overridden(model: Any, nearer: Collection[str]) -> Any:
    """A model, or a list, without what the attributes that were set nearer than it overrule."""
    if isinstance(model, list | tuple):
        left = [without_overridden(each, nearer) for each in model]
        return model if all(map(is_, left, model)) else left
    lost = [key for attribute, key in settings_in(model) if attribute in nearer]
    return {key: value for key, value in model.items() if key not in lost} if lost else model


def check_set_once(owner: str, model: Any, beside: Collection[str]) -> None:
    """Two values in one place leave open which is meant."""
    if isinstance(model, list | tuple):
        for at, each in enumerate(model):
            _check_set_once(owner, f"model[{at}]", each, ())
    else:
        _check_set_once(owner, "model", model, beside)


def _check_set_once(owner: str, where: str, model: Any, beside: Collection[str]) -> None:
    seen: dict[str, str] = {}
    for attribute, key in settings_in(model):
        other = f"`{owner}.{where}[{seen[attribute]!r}]`" if attribute in seen else f"`{owner}.{attribute}`"
        if attribute in seen or attribute in beside:
            raise DeclarationError(f"{other} and `{owner}.{where}[{key!r}]` are set in one place; keep one of them.")
        seen[attribute] = key


def effective_setting(attribute: str, settings: Mapping[str, Any], spec: Any) -> Any:
    """What a setting is in a run, with what `on_step` has changed of its spec by then."""
    if attribute in settings:
        return settings[attribute]
    if attribute not in MODEL_KEYS:
        found = getattr(spec, attribute)
        return (
            without_overridden(found, settings) if attribute == "model" and isinstance(found, list | tuple) else found
        )
    return setting_in(settings.get("model", spec.model), attribute, getattr(spec, attribute))


def merge_settings(settings: Mapping[str, Any], changes: Mapping[str, Any]) -> JsonObject:
    """Settings with later changes, of which a model dict overrules what was set before it."""
    said = [attribute for attribute, _ in settings_in(changes.get("model"))]
    kept = {name: value for name, value in settings.items() if name not in said}
    if isinstance(kept.get("model"), list | tuple):
        kept["model"] = without_overridden(kept["model"], changes)
    return kept | dict(changes)


def explicit_settings(settings: Mapping[str, Any], spec: Any) -> frozenset[str]:
    """The settings that somebody set, one way or the other; the others are defaults."""
    model = settings.get("model", spec.model)
    declared: frozenset[str] = spec.declared
    said = [attribute for attribute, _ in settings_in(model)]
    return declared.union(settings, said) if settings or said else declared


@dataclass(frozen=True, eq=False)
class Setting:
    """One attribute: its default, its rule, and the rule in words."""

    default: Any
    fits: Callable[[Any], bool]
    allowed: str
    show: Callable[[Any], str] = lambda value: excerpt(value)


def _is_number(value: object, low: float, high: float) -> bool:
    is_real = isinstance(value, int | float) and not isinstance(value, bool)
    return is_real and low <= value <= high and value != math.inf  # type: ignore[operator]


def _is_amount(value: object) -> bool:
    return _is_number(value, 0, math.inf) and value != 0


def _is_positive_count(value: object, low: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= low


def _is_bool(value: object) -> bool:
    return isinstance(value, bool)


def _is_store(value: object) -> bool:
    if value is None or isinstance(value, str | Path):
        return value is None or bool(str(value).strip())
    # By two of its names: the port brings a room of its own, which a program that keeps no runs does not need.
    return not isinstance(value, type) and all(callable(getattr(value, name, None)) for name in ("commit", "claim"))


def _is_root(value: object) -> bool:
    return isinstance(value, str) and is_xml_name(value)


_SET_BY_US = {"messages", "tools", "stream", "stream_options"}
"""LiteLLM arguments that are ours to set; from a user they would be overruled in silence."""


def _is_model(value: object) -> bool:
    return _is_one_model(value) or _is_list(value)


def _is_list(value: object) -> bool:
    """Whether it is a list of models, or meant as one: `_check_models` judges what is in it."""
    return isinstance(value, list | tuple) and bool(value)


def _is_one_model(value: object) -> bool:
    if isinstance(value, dict):
        name = value.get("model", value.get("id"))
        return (
            isinstance(name, str)
            and bool(name.strip())
            and _is_positive_count(value.get("num_retries", 0), 0)
            and _is_number(value.get("retry_delay", 0), 0, math.inf)
            and _SET_BY_US.isdisjoint(value)
        )
    if isinstance(value, str):
        return bool(value.strip())
    return value is None or is_model(value)


def _show_model(value: object) -> str:
    """A model without its secrets: of a dict only the keys are told."""
    if isinstance(value, Mapping):
        return f"a dict with the keys {', '.join(sorted(map(str, value))) or '(none)'}"
    if isinstance(value, list | tuple):
        return f"a {type(value).__name__} of {', '.join(map(_show_model, value)) or 'nothing'}"
    if isinstance(value, type) and is_meant_as_model(value):
        return f"the class `{value.__name__}`; give an instance of it"
    if is_meant_as_model(value):
        missing = " and ".join(f"`{name}`" for name in lacks(value))
        return f"an object of `{type(value).__name__}`, which lacks {missing}"
    return excerpt(value)


AUTO = "auto"
_CACHE_KEYS = {"location", "role", "index", "control"}
_ROLES = ("system", "user", "assistant", "tool")


def _is_cache(value: object) -> bool:
    if isinstance(value, bool) or (isinstance(value, str) and value == AUTO):
        return True
    return isinstance(value, list | tuple) and len(value) <= 4 and all(_is_cache_point(point) for point in value)


def _is_index(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_cache_point(point: object) -> bool:
    return (
        isinstance(point, dict)
        and set(point) <= _CACHE_KEYS
        and point.get("location") == "message"
        and ("role" in point or "index" in point)
        and point.get("role", "user") in _ROLES
        and _is_index(point.get("index", 0))
        and isinstance(point.get("control", {}), dict)
    )


_ROOT = Setting("", _is_root, "the name of an XML element")
_FLAG = "True or False"


class _Nothing(list[Any]):
    """The empty list that every module begins with; one for all, so nobody may add to it."""

    def _refuse(self, *_: Any) -> Any:
        raise TypeError("this is the default of all modules; declare a list of your own, as in `tools = [...]`")

    append = extend = insert = __iadd__ = __setitem__ = _refuse


EMPTY_LIST = _Nothing()

_ONE_MODEL = (
    "a model id such as 'openai/gpt-4o' or 'local/smollm2', a dict with 'model' and LiteLLM arguments "
    "('num_retries' a count, 'retry_delay' in seconds; not 'messages', 'tools' or 'stream'), "
    "or an object of the model port"
)

SETTINGS: Mapping[str, Setting] = {
    "model": Setting(
        None,
        _is_model,
        f"{_ONE_MODEL}, or a list of these, the next to be asked where one fails",
        _show_model,
    ),
    "temperature": Setting(0.7, lambda value: _is_number(value, 0, 2), "a number from 0 to 2"),
    "max_tokens": Setting(4096, lambda value: _is_positive_count(value, 1), "a whole number of at least 1"),
    "max_steps": Setting(
        None,
        lambda value: value is None or _is_positive_count(value, 1),
        "a whole number of at least 1, or None for a single turn",
    ),
    "parse_retries": Setting(2, lambda value: _is_positive_count(value, 0), "a whole number of at least 0"),
    "system_prompt": Setting(None, lambda value: True, "a string, a Path or a method"),  # `_read_prompt` judges it
    "initial_input": Setting(EMPTY_LIST, lambda value: True, ""),  # `shape_of` judges both, in its own words
    "final_output": Setting(EMPTY_LIST, lambda value: True, ""),
    "tools": Setting(EMPTY_LIST, lambda value: isinstance(value, list | tuple), "a list of functions"),
    "branches": Setting(MappingProxyType({}), lambda value: isinstance(value, Mapping), "a dict of names and modules"),
    "cache": Setting(
        EMPTY_LIST,
        _is_cache,
        "'auto', True, or at most 4 points such as {'location': 'message', 'role': 'system'} or "
        "{'location': 'message', 'index': 0}",
    ),
    "strict": Setting(None, lambda value: value is None or _is_bool(value), "True, False, or None where we decide"),
    "max_total_tokens": Setting(
        None, lambda value: value is None or _is_positive_count(value, 1), "a whole number of at least 1, or None"
    ),
    "max_cost": Setting(None, lambda value: value is None or _is_amount(value), "dollars above 0, or None"),
    "max_seconds": Setting(None, lambda value: value is None or _is_amount(value), "seconds above 0, or None"),
    "compact_at": Setting(
        None,
        lambda value: value is None or _is_positive_count(value, 1),
        "a whole number of tokens of at least 1, or None",
    ),
    "rate_limit": Setting(None, lambda value: True, ""),  # `read_rate_limit` judges it, in its own words
    "max_concurrency": Setting(
        None, lambda value: value is None or _is_positive_count(value, 1), "a whole number of at least 1, or None"
    ),
    "max_depth": Setting(5, lambda value: _is_positive_count(value, 1), "a whole number of at least 1"),
    "max_media_bytes": Setting(
        20_000_000,
        lambda value: value is None or _is_positive_count(value, 1),
        "a whole number of bytes of at least 1, or None",
    ),
    "store": Setting(
        None, _is_store, "a file such as 'runs.db', 'memory', 'postgresql://...', or an object of the store port"
    ),
    "loop_guard": Setting("notice", lambda value: value in ("notice", "force", None), "'notice', 'force' or None"),
    "history_format": Setting("messages", lambda value: value in ("messages", "thread"), "'messages' or 'thread'"),
    "xml_include_descriptions": Setting(True, _is_bool, _FLAG),
    "xml_include_none": Setting(False, _is_bool, _FLAG),
    "xml_description_format": Setting(
        "attribute", lambda value: value in ("attribute", "comment"), "'attribute' or 'comment'"
    ),
    "xml_input_root": Setting("input", _ROOT.fits, _ROOT.allowed),
    "xml_output_root": Setting("output", _ROOT.fits, _ROOT.allowed),
    "xml_context_root": Setting("context", _ROOT.fits, _ROOT.allowed),
}


def check_setting(owner: str, attribute: str, value: Any) -> None:
    """Judge one value by the rule of its attribute."""
    if not SETTINGS[attribute].fits(value):
        raise setting_error(owner, attribute, value)
    if attribute == "model":
        if _is_list(value) and not is_model(value):
            _check_models(owner, value)
        else:
            _check_said(owner, "model", value)


def _check_models(owner: str, models: Sequence[Any]) -> None:
    for at, model in enumerate(models):
        where = f"model[{at}]"
        if model is None or not _is_one_model(model):
            raise DeclarationError(f"`{owner}.{where}` must be {_ONE_MODEL}, got {_show_model(model)}.")
        _check_said(owner, where, model)
        for before, other in enumerate(models[:at]):
            if model is other or (isinstance(model, str | dict) and model == other):
                raise DeclarationError(
                    f"`{owner}.{where}` is the same as `{owner}.model[{before}]`; a model is asked once for an answer, "
                    f"and as often again as its `num_retries` say."
                )


def _check_said(owner: str, where: str, model: Any) -> None:
    for name, key in settings_in(model):
        if not SETTINGS[name].fits(model[key]):
            raise setting_error(owner, name, model[key], f"{where}[{key!r}]")


def setting_error(owner: str, attribute: str, value: Any, where: str = "") -> DeclarationError:
    setting = SETTINGS[attribute]
    return DeclarationError(f"`{owner}.{where or attribute}` must be {setting.allowed}, got {setting.show(value)}.")
