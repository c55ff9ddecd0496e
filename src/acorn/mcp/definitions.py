"""The tools that a server defines: which of them are let in, under which names, and what the model reads of them.

Pure. Everything in a definition is the server's word and nothing more: its hints are not even read.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from acorn._json import shorten
from acorn._tools.collect import FINISH
from acorn.errors import AcornError, ToolConflictError
from acorn.mcp.texts import clean, cut, has_unseen

_NO_NAME = re.compile(r"[^A-Za-z0-9_-]")
_LONGEST_NAME = 64
_LARGEST_SCHEMA = 200_000
"""Characters of JSON; a larger one would crowd out everything else that the model should read."""
_VALUES = ("default", "examples")
"""What a schema proposes, and no argument depends on."""
_WORDS = ("description", "title", "$comment")
"""What a schema says to its reader, and no argument depends on."""


@dataclass(frozen=True)
class Definition:
    """A tool as its server describes it."""

    name: str
    description: str
    schema: dict[str, Any]
    output: dict[str, Any] | None = None
    veiled: dict[str, Any] | None = None
    """The schema for others to read, where it has keys of the user in it: a hash stands for each."""

    @cached_property
    def plain(self) -> dict[str, Any]:
        """What the model's reading depends on, word for word."""
        return {"description": self.description, "schema": self.schema if self.veiled is None else self.veiled}

    @cached_property
    def fingerprint(self) -> str:
        """The same for the same definition, and for no other."""
        whole = json.dumps([self.name, self.plain, self.output], sort_keys=True)
        return hashlib.sha256(whole.encode("utf-8", "surrogatepass")).hexdigest()

    @property
    def is_wrapped(self) -> bool:
        """Whether its results are wrapped, since they are no objects themselves."""
        properties: Any = (self.output or {}).get("properties")
        return isinstance(properties, dict) and list(properties) == ["result"]


def define(told: Any, hidden: Callable[[str], str]) -> Definition:
    """A tool as a server tells of it, but not with the keys of the user: it is sent to a model, and may be written
    to a file for all to read. A `default` with one in it is left out, for the server knows it by itself."""
    description = hidden(told.description) if told.description else ""
    schema = told.input_schema
    as_text = json.dumps(schema, ensure_ascii=False)
    if hidden(as_text) == as_text:
        return Definition(told.name, description, schema, told.output_schema)
    sent, veiled = _without_keys(schema, "", hidden), _with_hashes(schema, hidden)
    return Definition(told.name, description, sent, told.output_schema, veiled)


def _without_keys(value: Any, key: str, hidden: Callable[[str], str]) -> Any:
    if isinstance(value, Mapping):
        proposed = () if key == "properties" else _VALUES
        kept = {name: item for name, item in value.items() if name not in proposed or not _has_key(item, hidden)}
        return {name: _without_keys(item, name, hidden) for name, item in kept.items()}
    if isinstance(value, list):
        return [_without_keys(item, key, hidden) for item in value]
    return hidden(value) if isinstance(value, str) and key in _WORDS else value


def _has_key(value: Any, hidden: Callable[[str], str]) -> bool:
    if isinstance(value, Mapping | list):
        return any(_has_key(item, hidden) for item in (value.values() if isinstance(value, Mapping) else value))
    return isinstance(value, str) and hidden(value) != value


def _with_hashes(value: Any, hidden: Callable[[str], str]) -> Any:
    if isinstance(value, Mapping):
        return {name: _with_hashes(item, hidden) for name, item in value.items()}
    if isinstance(value, list):
        return [_with_hashes(item, hidden) for item in value]
    if not isinstance(value, str) or hidden(value) == value:
        return value
    return f"{hidden(value)} (sha256 {hashlib.sha256(value.encode('utf-8', 'surrogatepass')).hexdigest()[:16]})"


def check_apart(offered: Sequence[Definition], server: str) -> None:
    """Complain of two tools of one name: nobody could say which of them is called."""
    known: set[str] = set()
    for each in offered:
        if each.name in known:
            raise ToolConflictError(f"The MCP server `{server}` offers `{clean(each.name)}` twice; it is not used.")
        known.add(each.name)


def admitted(offered: Sequence[Definition], allow: Sequence[str] | None, server: str) -> list[Definition]:
    """Those that the user lets in, in the order of the server."""
    if allow is None:
        return list(offered)
    check_offered(allow, offered, "allow", server)
    return [each for each in offered if each.name in allow]


def check_offered(names: Iterable[str], offered: Sequence[Definition], option: str, server: str) -> None:
    """A name that is misspelt must not open, or leave open, another door."""
    known = [each.name for each in offered]
    for name in names:
        if name not in known:
            there = ", ".join(f"`{shorten(clean(each), 80)}`" for each in known) or "none"
            raise AcornError(
                f"`{option}` of the MCP server `{server}` names `{name}`, which the server does not offer; "
                f"its tools: {there}."
            )


def tool_names(definitions: Sequence[Definition], prefix: str, server: str) -> dict[str, Definition]:
    """Each under the name by which the model calls it."""
    named: dict[str, Definition] = {}
    for each in definitions:
        name = _tool_name(prefix, each.name)
        other = named.setdefault(name, each)
        if other is not each:
            raise ToolConflictError(
                f"The MCP server `{server}` offers `{clean(other.name)}` and `{clean(each.name)}`, which are both "
                f"`{name}` to a model; leave one out by `allow=[...]`."
            )
        if name == FINISH:
            raise ToolConflictError(
                f"The MCP server `{server}` offers a tool named `{FINISH}`, which ends a run; give the server a "
                f"`prefix`, or leave the tool out by `allow=[...]`."
            )
    return named


def _tool_name(prefix: str, name: str) -> str:
    whole = prefix + (_NO_NAME.sub("_", name) or "_")
    if len(whole) <= _LONGEST_NAME:
        return whole
    mark = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:8]
    return f"{whole[: _LONGEST_NAME - 9]}_{mark}"


def safe_description(definition: Definition, limit: int) -> str:
    """What the model reads of a tool."""
    return cut(clean(definition.description), limit).strip()


def safe_schema(definition: Definition, limit: int, server: str) -> dict[str, Any]:
    """The schema as it is, but for what it says in words, which is cleaned and cut like any description.

    In the rest nothing can be changed, for the server expects it so; what is unseen there is refused.
    """
    size = len(json.dumps(definition.schema))
    if size > _LARGEST_SCHEMA:
        raise AcornError(
            f"The MCP server `{server}` describes the arguments of `{clean(definition.name)}` in {size} characters, "
            f"and at most {_LARGEST_SCHEMA} are taken; leave the tool out by `allow=[...]`."
        )
    made: dict[str, Any] = _safe(definition.schema, "", limit, definition, server)
    return made


def _safe(value: Any, key: str, limit: int, definition: Definition, server: str) -> Any:
    if isinstance(value, Mapping):
        return {
            _seen(name, definition, server): _safe(item, name, limit, definition, server)
            for name, item in value.items()
        }
    if isinstance(value, list):
        return [_safe(item, key, limit, definition, server) for item in value]
    if not isinstance(value, str):
        return value
    return cut(clean(value), limit) if key in _WORDS else _seen(value, definition, server)


def _seen(text: str, definition: Definition, server: str) -> str:
    if has_unseen(text):
        raise AcornError(
            f"The MCP server `{server}` hides characters that nobody can see in the arguments of "
            f"`{clean(definition.name)}` ({shorten(text, 80)!a}); leave the tool out by `allow=[...]`, or do not "
            f"use this server."
        )
    return text
