"""Objects that bring tools with them: a server's, a toolbox's.

A source goes straight into `tools = [...]`. What it offers is asked for when a run begins.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol, runtime_checkable


@runtime_checkable
class ToolSource(Protocol):
    """Anything with `tools()`.

    It is opened before and closed after, where it can be: as a context manager, async or not, or by `open()` and
    `close()`.
    """

    def tools(self) -> Sequence[Callable[..., Any]]: ...


def is_source(value: object) -> bool:
    """Whether an entry of `tools` is a source rather than a tool."""
    return not isinstance(value, type) and callable(getattr(value, "tools", None))


def may_ask_people(source: object) -> bool:
    """Whether a source says beforehand that calls of its tools may wait for a person."""
    return bool(getattr(source, "asks_people", False))
