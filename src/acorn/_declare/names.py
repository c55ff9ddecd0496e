"""The names in a module class: checks for unknown and misspelled settings, and local names in type hints."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterable
from typing import get_origin

from acorn._declare.module_base import AgentBase
from acorn._declare.settings import SETTINGS
from acorn._declare.spec_cache import HOOKS, class_spec

_METHODS = (*HOOKS, "system_prompt")


def check_setting_name(cls: type[AgentBase], name: str) -> None:
    """Raise `TypeError` if a keyword argument of `cls(...)` is not a setting."""
    if name not in SETTINGS and name in class_spec(cls).input.schema.model_fields:
        call = f"{cls.__name__}()({name}=...)"
        raise TypeError(f"`{name}` is an input of `{cls.__name__}`, not a setting. Pass it to the call: `{call}`.")
    if name not in SETTINGS:
        raise TypeError(f"`{cls.__name__}` has no setting `{name}`.{_hint(name, SETTINGS)}")


def warn_about_misspelled_names(cls: type) -> None:
    """Warn about attributes of a new class whose names look like a misspelled setting or hook."""
    for name, value in vars(cls).items():
        is_nested = isinstance(value, type) and value.__qualname__.startswith(f"{cls.__qualname__}.")
        is_method = not isinstance(value, type) and hasattr(value, "__get__")
        if name.startswith("_") or name in SETTINGS or name in _METHODS or is_nested:
            continue
        if hint := _hint(name, _METHODS if is_method else SETTINGS):
            kind = "hook" if is_method else "setting"
            # This stack level makes the warning point to the `class` statement.
            warnings.warn(f"`{cls.__name__}.{name}` is not a {kind}.{hint}", UserWarning, stacklevel=3)


def _hint(name: str, known_names: Iterable[str]) -> str:
    similar = next((known for known in known_names if _is_similar(name, known)), None)
    return f" Did you mean `{similar}`?" if similar else ""


def _is_similar(name: str, other: str) -> bool:
    """Return whether the Levenshtein distance of two names, in changed, added or removed letters, is at most 2."""
    if abs(len(name) - len(other)) > 2:
        return False
    distances = list(range(len(other) + 1))
    for row, letter in enumerate(name, start=1):
        above, distances = distances, [row]
        for column, other_letter in enumerate(other, start=1):
            substituted = above[column - 1] + (letter != other_letter)
            distances.append(min(above[column] + 1, distances[-1] + 1, substituted))
        if min(distances) > 2:
            return False
    return distances[-1] <= 2


def local_types(cls: type) -> dict[str, object]:
    """Return a dict that maps local names to types, for the type hints of a class inside a function.

    Only `module.__init_subclass__` may call this function, because it inspects the call stack.
    """
    frame = sys._getframe(2)  # pyright: ignore[reportPrivateUsage]  # Documented by Python, and faster than `inspect`.
    while frame.f_globals.get("__name__") != cls.__module__ and frame.f_back is not None:
        frame = frame.f_back
    if frame.f_locals is frame.f_globals:
        return {}
    return {
        name: value
        for name, value in frame.f_locals.items()
        if isinstance(value, type) or get_origin(value) is not None
    }
