"""What only its author can read: signed thinking and the like, which goes back to the provider that wrote it.

The history says nothing of who wrote a turn. Who did is remembered for as long as the process lives; thoughts of
whom nobody knows, of a run that was loaded or of an earlier conversation, are taken for those of the first model of
the list. Called by `fallback.py`; a single model is sent all that its protocol has a place for.
"""

from __future__ import annotations

import threading
from collections.abc import Hashable, Mapping, Sequence
from typing import Any

from pydantic_core import to_json

from acorn.models.lane import THOUGHTS

_MOST = 10_000
_ONE_FAMILY = ("anthropic", "openai")
"""Providers whose models read each other's thoughts; of others, which may house models of many makers, none does."""


class Authors:
    """Who wrote what."""

    def __init__(self) -> None:
        self._names = {*THOUGHTS}
        """The keys of messages that hold such things, as far as they were seen."""
        self._wrote: dict[int, Hashable] = {}
        self._authors: set[Hashable] = set()
        self._lock = threading.Lock()

    def note(self, extra: Mapping[str, Any], author: Hashable) -> None:
        """What came with a turn."""
        with self._lock:
            for name, value in extra.items():
                self._names.add(name)
                self._wrote[_mark(name, value)] = author
            self._authors.add(author)
            while len(self._wrote) > _MOST:
                del self._wrote[next(iter(self._wrote))]

    def readable(
        self, messages: Sequence[dict[str, Any]], reader: Hashable, first: Hashable
    ) -> list[dict[str, Any]] | None:
        """The messages without what the reader did not write; None where that is all of them."""
        if reader == first and self._authors <= {first}:
            return None
        names = tuple(self._names)
        found: dict[int, dict[str, Any]] = {}
        for at in {at for name in names for at, message in enumerate(messages) if name in message}:
            message = messages[at]
            foreign = [name for name in names if name in message and self._author(name, message, first) != reader]
            if foreign:
                found[at] = {name: value for name, value in message.items() if name not in foreign}
        if not found:
            return None
        return [found.get(at, message) for at, message in enumerate(messages)]

    def _author(self, name: str, message: Mapping[str, Any], otherwise: Hashable) -> Hashable:
        return self._wrote.get(_mark(name, message[name]), otherwise)


def reader_of(declared: Any) -> Hashable:
    """Whose thoughts a model can read, itself included."""
    if not isinstance(declared, str | dict):
        return str(getattr(declared, "name", ""))
    config: Mapping[str, Any] = {"model": declared} if isinstance(declared, str) else declared
    name = str(config.get("model") or config.get("id"))
    provider = name.partition("/")[0]
    address = config.get("base_url") or config.get("api_base")
    return hash((provider if provider in _ONE_FAMILY else name, address, config.get("api_key")))


def _mark(name: str, value: Any) -> int:
    return hash((name, to_json(value, inf_nan_mode="null", serialize_unknown=True)))


AUTHORS = Authors()
"""Those of the process: a branch or a later call may go on with the conversation."""
