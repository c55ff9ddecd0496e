"""What models turned out not to take, for as long as the process lives: it cost a request to find out.

A default temperature, or a forced tool. Called by the adapters of providers.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Set
from functools import cached_property
from typing import Any

from acorn._secrets import without_secrets

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


def forget_refusals() -> None:
    """Try everything anew: an endpoint may have become another one."""
    _learned.clear()
