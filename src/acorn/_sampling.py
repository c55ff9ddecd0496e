"""`temperature` and `max_tokens`, which may be attributes and stand in a model dict: what was set nearer counts.

A value in a dict counts where that dict was set, and goes with it when another model takes its place. So a dict
that is overruled from nearer is handed on without the value, and whatever a dict still says is what is sent.
In a list of models what a dict says is for that model alone, and the attribute for those that say nothing.
`_spec` puts the declared levels together by this, the loop what hooks and branches add.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from operator import is_
from typing import Any

from acorn.errors import DeclarationError

KEYS = {"temperature": ("temperature",), "max_tokens": ("max_tokens", "max_completion_tokens")}
"""By attribute, the keys of a model dict that say the same."""


def said_in(model: Any) -> Iterator[tuple[str, str]]:
    """The attributes that a model dict sets, each with its key."""
    if isinstance(model, dict):
        for attribute, keys in KEYS.items():
            for key in keys:
                if key in model:
                    yield attribute, key


def value_in(model: Any, attribute: str, otherwise: Any) -> Any:
    """What a model says for an attribute."""
    if isinstance(model, dict):
        for key in KEYS[attribute]:
            if key in model:
                return model[key]
    return otherwise


def overruled(model: Any, nearer: Collection[str]) -> Any:
    """A model, or a list, without what the attributes that were set nearer than it overrule."""
    if isinstance(model, list | tuple):
        left = [overruled(each, nearer) for each in model]
        return model if all(map(is_, left, model)) else left
    lost = [key for attribute, key in said_in(model) if attribute in nearer]
    return {key: value for key, value in model.items() if key not in lost} if lost else model


def check_said_once(owner: str, model: Any, beside: Collection[str]) -> None:
    """Two values in one place leave open which is meant."""
    if isinstance(model, list | tuple):
        for at, each in enumerate(model):
            _check_said_once(owner, f"model[{at}]", each, ())
    else:
        _check_said_once(owner, "model", model, beside)


def _check_said_once(owner: str, where: str, model: Any, beside: Collection[str]) -> None:
    seen: dict[str, str] = {}
    for attribute, key in said_in(model):
        other = f"`{owner}.{where}[{seen[attribute]!r}]`" if attribute in seen else f"`{owner}.{attribute}`"
        if attribute in seen or attribute in beside:
            raise DeclarationError(f"{other} and `{owner}.{where}[{key!r}]` are set in one place; keep one of them.")
        seen[attribute] = key


def in_force(attribute: str, settings: Mapping[str, Any], spec: Any) -> Any:
    """What a setting is in a run, with what `on_step` has changed of its spec by then."""
    if attribute in settings:
        return settings[attribute]
    if attribute not in KEYS:
        found = getattr(spec, attribute)
        return overruled(found, settings) if attribute == "model" and isinstance(found, list | tuple) else found
    return value_in(settings.get("model", spec.model), attribute, getattr(spec, attribute))


def adopted(settings: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Settings with later changes, of which a model dict overrules what was set before it."""
    said = [attribute for attribute, _ in said_in(changes.get("model"))]
    kept = {name: value for name, value in settings.items() if name not in said}
    if isinstance(kept.get("model"), list | tuple):
        kept["model"] = overruled(kept["model"], changes)
    return kept | dict(changes)


def set_by_user(settings: Mapping[str, Any], spec: Any) -> frozenset[str]:
    """The settings that somebody set, one way or the other; the others are defaults."""
    model = settings.get("model", spec.model)
    declared: frozenset[str] = spec.declared
    said = [attribute for attribute, _ in said_in(model)]
    return declared.union(settings, said) if settings or said else declared
