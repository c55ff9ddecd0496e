"""The settings that a user may declare on a module: their rules, and the priority of values from several levels.

`SETTINGS` is the table of all settings, with their defaults and rules. `spec.py` compiles valid values into
the spec that all runs share. Two groups of settings need more than a rule:

- Limits: the `rate_limit` and `max_concurrency` of a class count the requests of this class, and subclasses
  that inherit a limit share its count. Instances of one class that set equal limits with an attribute, `using` or
  `override` also share one count.
- Sampling: `temperature` and `max_tokens` may be attributes or keys of a model dict. The level that is nearer to the
  call has priority. A value in a dict is removed together with the dict when another model replaces the dict. If a
  nearer level overrides a value in a dict, acorn removes the value from the dict, so it sends all values in the dict.
  In a list of models, a value in a dict applies to its model only. The attribute applies to the other models.
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
from acorn._formats.xml.encode import is_xml_name
from acorn.errors import DeclarationError
from acorn.models.port import is_model, missing_members, resembles_model
from acorn.types import JsonObject, JsonValue, is_json_object, is_list_or_tuple, is_mapping

Limit = TypeVar("Limit")


@dataclass(frozen=True)
class RateLimit:
    """The largest number of requests and tokens in a window of `per` seconds.

    None means no limit.
    """

    requests: int | None = None
    tokens: int | None = None
    per: float = 60.0
    shared: bool = False
    """Whether all processes that use the same store share one count."""


class ClassLimit(NamedTuple, Generic[Limit]):
    """A rate limit or concurrency limit, and the class whose requests count against it."""

    limit: Limit
    cls: type


def read_rate_limit(value: object, owner: str) -> RateLimit | None:
    """Return the rate limit that a user declared, or raise `DeclarationError`."""
    if not is_mapping(value):  # The rule of the setting accepts only mappings and None.
        return None
    where = f"`{owner}.rate_limit"
    for key, part in value.items():
        rule = _RATE_LIMIT_RULES.get(key)
        if rule is None:
            raise DeclarationError(
                f"{where}` has the unknown key {excerpt(key)}. "
                f"The keys are 'requests', 'tokens', 'per' (seconds) and 'shared'."
            )
        rule.check(f"{where}[{key!r}]`", part)
    if "requests" not in value and "tokens" not in value:
        raise DeclarationError(f"{where}` must have the key 'requests' or 'tokens', or both, got {excerpt(value)}.")
    return RateLimit(**value)


# Sampling settings, which may also be keys of a model dict.

MODEL_KEYS = {"temperature": ("temperature",), "max_tokens": ("max_tokens", "max_completion_tokens")}
"""A dict that maps setting names to the model dict keys with the same meaning."""


def settings_in(model: JsonValue) -> Iterator[tuple[str, str]]:
    """Yield the settings in a model dict as pairs: the name of the setting, and its key in the dict."""
    if isinstance(model, dict):
        for attribute, keys in MODEL_KEYS.items():
            for key in keys:
                if key in model:
                    yield attribute, key


def setting_in(model: JsonValue, attribute: str, default: Any) -> Any:
    """Return the value of a setting in a model dict, or `default` if the dict does not contain the setting."""
    if not isinstance(model, dict):
        return default
    return next((model[key] for key in MODEL_KEYS[attribute] if key in model), default)


def without_overridden(model: Any, nearer: Collection[str]) -> Any:
    """Return a model or a list of models without the values that the settings named in `nearer` override."""
    if is_list_or_tuple(model):
        members = [without_overridden(member, nearer) for member in model]
        return model if all(map(is_, members, model)) else members
    overridden = [key for attribute, key in settings_in(model) if attribute in nearer]
    return {key: value for key, value in model.items() if key not in overridden} if overridden else model


def remove_overridden(settings: JsonObject, overrides: Mapping[str, Any]) -> None:
    """Remove the settings of an instance that `using(...)` replaces, also settings in its model dict."""
    if "model" in settings:
        settings["model"] = without_overridden(settings["model"], overrides)
    for attribute, _ in settings_in(overrides.get("model")):
        settings.pop(attribute, None)


def check_set_once(owner: str, model: Any, attributes: Collection[str]) -> None:
    """Raise `DeclarationError` if one level sets a value twice: as an attribute and as a key of the model dict."""
    if is_list_or_tuple(model):
        for index, member in enumerate(model):
            _check_set_once(owner, f"model[{index}]", member, ())
    else:
        _check_set_once(owner, "model", model, attributes)


def _check_set_once(owner: str, where: str, model: JsonValue, attributes: Collection[str]) -> None:
    seen: dict[str, str] = {}
    for attribute, key in settings_in(model):
        other = f"`{owner}.{where}[{seen[attribute]!r}]`" if attribute in seen else f"`{owner}.{attribute}`"
        if attribute in seen or attribute in attributes:
            raise DeclarationError(f"{other} and `{owner}.{where}[{key!r}]` set the same value. Remove one of them.")
        seen[attribute] = key


def merge_settings(settings: Mapping[str, Any], changes: Mapping[str, Any]) -> JsonObject:
    """Return a copy of `settings` with later changes.

    If the changes contain a model dict, its values override earlier values of the same settings.
    """
    overridden = [attribute for attribute, _ in settings_in(changes.get("model"))]
    merged = {name: value for name, value in settings.items() if name not in overridden}
    if isinstance(merged.get("model"), list | tuple):
        merged["model"] = without_overridden(merged["model"], changes)
    return merged | dict(changes)


# The table.


@dataclass(frozen=True, eq=False)
class Rule:
    """A check of a value, and the text of the check for error messages."""

    is_valid: Callable[[object], bool]
    expected: str
    describe: Callable[[object], str] = excerpt
    """A function that returns a text about a wrong value, without secrets."""

    def or_none(self, expected: str = "") -> Rule:
        """Return a rule that also accepts None."""
        return Rule(lambda value: value is None or self.is_valid(value), expected or f"{self.expected}, or None")

    def check(self, where: str, value: object) -> None:
        """Raise `DeclarationError` if a value violates the rule. `where` is the name of the value in the message."""
        if not self.is_valid(value):
            raise DeclarationError(f"{where} must be {self.expected}, got {self.describe(value)}.")


class Setting(NamedTuple):
    """One setting in the table: its default and its rule."""

    default: Any
    rule: Rule


def _is_count(value: object, minimum: int = 1) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= minimum


def _is_number(value: object, low: float, high: float) -> bool:
    is_real = isinstance(value, int | float) and not isinstance(value, bool)
    return is_real and low <= value <= high and value != math.inf  # type: ignore[operator]


def _is_amount(value: object) -> bool:
    return _is_number(value, 0, math.inf) and value != 0


def _is_store(value: object) -> bool:
    if value is None or isinstance(value, str | Path):
        return value is None or bool(str(value).strip())
    # Two methods identify a store. An import of the store port would slow down programs that store no runs.
    return not isinstance(value, type) and all(callable(getattr(value, name, None)) for name in ("commit", "claim"))


_RESERVED_ARGUMENTS = {"messages", "tools", "stream", "stream_options"}
"""The LiteLLM arguments that only acorn may set. Without an error, acorn would ignore a user's value silently."""


def _is_model(value: object) -> bool:
    """Return whether a value is a model or a non-empty list. `_check_models` checks each model in the list."""
    return _is_one_model(value) or (is_list_or_tuple(value) and bool(value))


def _is_one_model(value: object) -> bool:
    if is_json_object(value):
        name = value.get("model", value.get("id"))
        return (
            isinstance(name, str)
            and bool(name.strip())
            and _is_count(value.get("num_retries", 0), 0)
            and _is_number(value.get("retry_delay", 0), 0, math.inf)
            and _RESERVED_ARGUMENTS.isdisjoint(value)
        )
    if isinstance(value, str):
        return bool(value.strip())
    return value is None or is_model(value)


def _describe_model(value: object) -> str:
    """Return a description of a model for an error message. A dict is described by its keys, without secrets."""
    if is_mapping(value):
        return f"a dict with the keys {', '.join(sorted(map(str, value))) or '(none)'}"
    if is_list_or_tuple(value):
        return f"a {type(value).__name__} of {', '.join(map(_describe_model, value)) or 'nothing'}"
    if isinstance(value, type) and resembles_model(value):
        return f"the class `{value.__name__}` instead of an instance of it"
    if resembles_model(value):
        missing = " and ".join(f"`{name}`" for name in missing_members(value))
        return f"an object of `{type(value).__name__}`, which lacks {missing}"
    return excerpt(value)


STEP_SETTINGS = ("model", "temperature", "max_tokens", "tools")
"""The settings that a hook can change for the rest of its run."""
MODEL_OPTIONS = frozenset(
    {"api_key", "api_base", "base_url", "api_version", "timeout", "num_retries", "retry_delay", "top_p", "seed", "stop"}
)
"""Keys of a model dict that users may mistake for settings of a module."""
AUTO = "auto"
_CACHE_KEYS = {"location", "role", "index", "control"}
_ROLES = ("system", "user", "assistant", "tool")


def _is_cache(value: object) -> bool:
    if isinstance(value, bool) or (isinstance(value, str) and value == AUTO):
        return True
    return is_list_or_tuple(value) and len(value) <= 4 and all(_is_cache_point(point) for point in value)


def _is_cache_point(point: object) -> bool:
    return (
        is_json_object(point)
        and set(point) <= _CACHE_KEYS
        and point.get("location") == "message"
        and ("role" in point or "index" in point)
        and point.get("role", "user") in _ROLES
        and isinstance(index := point.get("index", 0), int)
        and not isinstance(index, bool)
        and isinstance(point.get("control", {}), dict)
    )


class _EmptyList(list[Any]):
    """The default value of settings that are lists.

    All modules share this list, so it cannot be changed.
    """

    def _refuse(self, *_: object) -> Any:
        raise TypeError("This list is the default of all modules. Declare your own list, as in `tools = [...]`.")

    append = extend = insert = __iadd__ = __setitem__ = _refuse


EMPTY_LIST = _EmptyList()

FLAG = Rule(lambda value: isinstance(value, bool), "True or False")
TEXT = Rule(lambda value: isinstance(value, str) and bool(value.strip()), "a non-empty string")
AMOUNT = Rule(_is_amount, "a number of dollars above 0")
DURATION = Rule(_is_amount, "a number of seconds above 0")
_XML_NAME = Rule(lambda value: isinstance(value, str) and is_xml_name(value), "the name of an XML element")
COUNT = Rule(_is_count, "a whole number of at least 1")
_RATE_LIMIT_RULES = {"requests": COUNT, "tokens": COUNT, "per": DURATION, "shared": FLAG}
_CHECKED_LATER = Rule(lambda value: True, "")
"""The rule of settings that `spec.py` and `shape.py` check, with their own messages."""


def _one_of(*values: str | None) -> Rule:
    *first, last = map(repr, values)
    return Rule(lambda value: value in values, f"{', '.join(first)} or {last}")


_MODEL = Rule(
    lambda value: value is not None and _is_one_model(value),
    "a model id such as 'openai/gpt-4o' or 'local/smollm2', a dict with 'model' and LiteLLM arguments "
    "('num_retries' a count, 'retry_delay' in seconds; not 'messages', 'tools' or 'stream'), "
    "or an object of the model port",
    _describe_model,
)
"""The rule of one model in a list."""

SETTINGS: Mapping[str, Setting] = {
    "model": Setting(
        None,
        Rule(
            _is_model, f"{_MODEL.expected}, or a list of these, of which the next is used if one fails", _describe_model
        ),
    ),
    "temperature": Setting(0.7, Rule(lambda value: _is_number(value, 0, 2), "a number from 0 to 2")),
    "max_tokens": Setting(4096, COUNT),
    "max_steps": Setting(None, COUNT.or_none(f"{COUNT.expected}, or None for a single turn")),
    "parse_retries": Setting(2, Rule(lambda value: _is_count(value, 0), "a whole number of at least 0")),
    "system_prompt": Setting(None, _CHECKED_LATER),
    "initial_input": Setting(EMPTY_LIST, _CHECKED_LATER),
    "final_output": Setting(EMPTY_LIST, _CHECKED_LATER),
    "tools": Setting(EMPTY_LIST, Rule(is_list_or_tuple, "a list of functions such as [search]")),
    "branches": Setting(MappingProxyType({}), Rule(is_mapping, "a dict of names and modules")),
    "cache": Setting(
        EMPTY_LIST,
        Rule(
            _is_cache,
            "'auto', True, or at most 4 points such as {'location': 'message', 'role': 'system'} or "
            "{'location': 'message', 'index': 0}",
        ),
    ),
    "strict": Setting(None, FLAG.or_none("True, False, or None to let acorn decide")),
    "max_total_tokens": Setting(None, COUNT.or_none()),
    "max_cost": Setting(None, AMOUNT.or_none()),
    "max_seconds": Setting(None, DURATION.or_none()),
    "compact_at": Setting(None, COUNT.or_none("a whole number of tokens of at least 1, or None")),
    "rate_limit": Setting(
        None, Rule(is_mapping, "a dict such as {'requests': 60, 'tokens': 100_000, 'per': 60}").or_none()
    ),
    "max_concurrency": Setting(None, COUNT.or_none()),
    "max_depth": Setting(5, COUNT),
    "max_media_bytes": Setting(20_000_000, COUNT.or_none("a whole number of bytes of at least 1, or None")),
    "store": Setting(
        None, Rule(_is_store, "a file such as 'runs.db', 'memory', 'postgresql://...', or an object of the store port")
    ),
    "loop_guard": Setting("notice", _one_of("notice", "force", None)),
    "history_format": Setting("messages", _one_of("messages", "thread")),
    "xml_include_descriptions": Setting(True, FLAG),
    "xml_include_none": Setting(False, FLAG),
    "xml_description_format": Setting("attribute", _one_of("attribute", "comment")),
    "xml_input_root": Setting("input", _XML_NAME),
    "xml_output_root": Setting("output", _XML_NAME),
    "xml_context_root": Setting("context", _XML_NAME),
}


def check_setting(owner: str, attribute: str, value: object) -> None:
    """Raise `DeclarationError` if a value violates the rule of its setting."""
    SETTINGS[attribute].rule.check(f"`{owner}.{attribute}`", value)
    if attribute == "model":
        if is_list_or_tuple(value) and not is_model(value):
            _check_models(owner, value)
        else:
            _check_model_keys(f"{owner}.model", value)


def _check_models(owner: str, models: Sequence[Any]) -> None:
    for index, model in enumerate(models):
        where = f"{owner}.model[{index}]"
        _MODEL.check(f"`{where}`", model)
        _check_model_keys(where, model)
        for earlier, other in enumerate(models[:index]):
            if model is other or (isinstance(model, str | dict) and model == other):
                raise DeclarationError(
                    f"`{where}` is the same as `{owner}.model[{earlier}]`. Remove one of them. To repeat "
                    f"failed requests to a model, set its `num_retries`."
                )


def _check_model_keys(where: str, model: Any) -> None:
    for attribute, key in settings_in(model):
        SETTINGS[attribute].rule.check(f"`{where}[{key!r}]`", model[key])


def describe_model(model: object) -> str:
    """Return a text such as `model='openai/gpt-4o'` for a model or a list of models, without secrets."""
    if is_list_or_tuple(model):
        return f"model=[{', '.join(describe_model(entry).removeprefix('model=') for entry in model)}]"
    if is_json_object(model):
        model = model.get("model", model.get("id"))
    return f"model={model!r}" if isinstance(model, str) else f"model={type(model).__name__}" if model else "no model"
