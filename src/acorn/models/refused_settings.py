"""What models turned out not to take, for as long as the process lives: it cost a request to find out.

A default temperature, a forced tool, a schema that is strict though nobody asked for it. Called by the adapters of
providers.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Set
from functools import cached_property
from hashlib import sha256
from typing import Any

from pydantic_core import to_json

from acorn._secrets import without_secrets
from acorn._tools.collect import FINISH
from acorn.models.port import ModelRequest

_WHO = ("user", "metadata", "headers", "extra_headers")
"""Settings that say who asks: what a model takes does not depend on them."""
_learned: dict[tuple[str, ...], set[str]] = {}
_NONE: frozenset[str] = frozenset()


class Refusals:
    """What one model, with these settings, does not take."""

    def __init__(self, name: str, settings: Mapping[str, Any]) -> None:
        self._name = name
        self._settings = settings

    @property
    def known(self) -> Set[str]:
        return _learned.get(self._key, _NONE) if _learned else _NONE

    def remember(self, left_out: set[str]) -> None:
        if left_out:
            _learned[self._key] = left_out | set(self.known)

    def check_forced(self, forced: str | None, called: Collection[str], stop_reason: str) -> None:
        """A forced tool that was not called, in an answer that is whole: the force was dropped on the way."""
        if forced and forced not in called and stop_reason in ("stop", "tool_calls"):
            self.remember({"tool_choice"})

    @cached_property
    def _key(self) -> tuple[str, ...]:
        settings = {key: value for key, value in self._settings.items() if key not in _WHO}
        return (self._name, *sorted(map(repr, without_secrets(settings).items())))


def droppable(request: ModelRequest, set_by_user: Collection[str]) -> Iterator[tuple[str, str]]:
    """What of a request can be left out where it is refused, and by which mark that is remembered."""
    if request.forced_tool:
        yield "tool_choice", "tool_choice"
    for name in ("temperature", "max_tokens"):
        if name not in set_by_user:
            yield name, name
    if request.is_auto_cached:
        yield "cache_control", "cache_control"
    if (function := _unasked(request)) is not None:
        yield "strict", _mark(function)


def as_taken(request: ModelRequest, left_out: Collection[str]) -> ModelRequest:
    """The request without a strictness that was refused."""
    if not any(name.startswith(_STRICT) for name in left_out):
        return request
    function = _unasked(request)
    if function is None or _mark(function) not in left_out:
        return request
    loose = {key: value for key, value in function.items() if key != "strict"}
    return request.but(tools=[*request.tools[:-1], {**request.tools[-1], "function": loose}], tools_json=None)


def strict_by_user(request: ModelRequest) -> bool:
    """Whether the user has asked for something strict that is in a request."""
    are_strict = [bool(each.get("function", {}).get("strict")) for each in request.tools]
    return any(are_strict[:-1]) or (any(are_strict) and "strict" in request.declared)


_STRICT = "strict "


def _unasked(request: ModelRequest) -> dict[str, Any] | None:
    """The definition of `__finish__` where it is strict and nobody has asked for that."""
    if not request.tools or "strict" in request.declared:
        return None
    function: dict[str, Any] = request.tools[-1].get("function") or {}
    return function if function.get("strict") and function.get("name") == FINISH else None


def _mark(function: dict[str, Any]) -> str:
    # It is this schema that was refused: another may well be taken.
    return _STRICT + sha256(to_json(function)).hexdigest()[:16]


def forget_refusals() -> None:
    """Try everything anew: an endpoint may have become another one."""
    _learned.clear()
