"""Tools that a provider runs itself: a dict in `tools`, which goes to the model as it is.

    tools = [{"type": "web_search_20250305", "name": "web_search"}]

What such a tool returns never passes through here: it comes within the model's answer, and adapters keep it there.
"""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from acorn._json import shorten
from acorn._tools.declare import ToolOptions
from acorn._tools.port import ArgumentError, Arguments
from acorn.errors import DeclarationError
from acorn.record import Run

_OPTIONS = ToolOptions()
_RUN_BY_US = re.compile(
    r"(?:bash|text_editor|computer|memory)_\d{8}|local_shell|computer_use_preview|computer|apply_patch"
)
"""Kinds of which a provider knows the schema, and leaves the work to whoever asks."""
_EXAMPLE = "{'type': 'web_search_20250305', 'name': 'web_search'}"


@dataclass(frozen=True, eq=False)
class HostedTool:
    """A tool that a provider runs."""

    name: str
    schema: dict[str, Any] = field(repr=False)
    """What is sent, as the user wrote it."""
    where: str
    function: Callable[..., Any] = field(repr=False)
    """The user's own dict, by which it is known in `step.tools`."""
    options: ToolOptions = _OPTIONS

    def bind(self, arguments: str, run: Run[Any] | None = None) -> Arguments:
        raise ArgumentError(f"`{self.name}` is run by the provider and cannot be called like this")

    def bound_to(self, instance: object) -> HostedTool:
        return self


def name_of(entry: Mapping[str, Any]) -> Any:
    """What a tool of a provider's is called; several servers may be told by the same type."""
    return next((entry[key] for key in ("name", "server_label", "mcp_server_name") if key in entry), entry.get("type"))


def hosted_tool(entry: Any, where: str, owner: str) -> HostedTool:
    """A tool of a dict; what is in it is the provider's business, but for what it is."""
    place = f"`{owner}.{where}`"
    kind = entry.get("type")
    if kind is None:
        keys = ", ".join(f"`{key}`" for key in entry) or "nothing"
        raise DeclarationError(
            f"{place} is a dict with {keys}, which is no tool of a provider: it needs a `type`, as in {_EXAMPLE}."
        )
    if not isinstance(kind, str) or not kind.strip():
        raise DeclarationError(
            f"{place} is a dict whose `type` must be the name of a provider's tool, as in {_EXAMPLE}."
        )
    name = name_of(entry)
    if not isinstance(name, str):
        raise DeclarationError(f"{place} is a dict whose name must be a string, as in {_EXAMPLE}.")
    if kind in ("function", "custom"):
        raise DeclarationError(
            f"{place} describes a function (`type` is {kind!r}) and nobody runs it; write the function, with "
            f"`@tool(name=..., schema=...)` where it has a JSON Schema already."
        )
    if _RUN_BY_US.fullmatch(kind):
        raise DeclarationError(
            f"{place} is `{kind}`, which the provider does not run itself; write a function that does, and mark it "
            f"with `@tool`."
        )
    try:
        json.dumps(entry, allow_nan=False)
        own = copy.deepcopy(entry)
    except (TypeError, ValueError, RecursionError) as error:
        raise DeclarationError(f"{place} must be plain JSON data: {shorten(str(error))}.") from error
    function: Any = entry
    return HostedTool(name, own, f"{where} (`{kind}`)", function)
