"""Texts that a server wrote: what nobody can see in them is removed, and what is too long is cut and says so.

`pin="mcp.lock"`: the definitions that were seen first, and a diff where a server has others now.

The file holds the definitions themselves, so that it can be read and reviewed, and several servers side by side.

The tools that a server defines: which of them are let in, under which names, and what the model reads of them.

Pure. Everything in a definition is the server's word and nothing more: its hints are not even read.

From what a server answered to what a tool returns: data where there is data, text, pictures and sounds.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import os
import re
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from difflib import unified_diff
from functools import cached_property
from pathlib import Path
from typing import Any

from acorn._inside import FINISH, shorten, to_compact_json
from acorn.errors import AcornError, ToolConflictError
from acorn.media import Audio, File, Image, Media
from acorn.types import JsonObject

# Control characters but tab and newline, halves of surrogate pairs, and what leaves no mark on the page: joiners,
# fillers, changes of direction, selectors of variants, and the tags in which whole sentences can be hidden.
_UNSEEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u2028-\u202e"
    "\u2060-\u206f\u3164\ud800-\udfff\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufffb\U0001bca0-\U0001bca3"
    "\U0001d173-\U0001d17a\U000e0000-\U000e0fff]"
)


def clean(text: str) -> str:
    """The text as a person would see it."""
    return _UNSEEN.sub("", text)


def cut(text: str, limit: int) -> str:
    """The text, or as much of it as is allowed."""
    return text if len(text) <= limit else f"{text[:limit]}\n[cut off after {limit} of {len(text)} characters]"


def cleaned(value: Any) -> Any:
    """Plain data with all of its texts cleaned."""
    if isinstance(value, str):
        return clean(value)
    if isinstance(value, dict):
        return {clean(key): cleaned(item) for key, item in value.items()}
    return [cleaned(item) for item in value] if isinstance(value, list) else value


def has_unseen(text: str) -> bool:
    """Whether something in it cannot be seen."""
    return _UNSEEN.search(text) is not None


_LONGEST_DIFF = 6000


def check_pinned(path: Path, key: str, definitions: Sequence[Definition]) -> None:
    """Compare what a server defines with the file; what is not in the file yet is written to it."""
    whole = _read(path)
    now = {each.name: each.plain for each in definitions}
    known = whole["servers"].get(key)
    if known is None:
        whole["servers"][key] = now
        _write(path, whole)
    elif known != now:
        raise AcornError(
            f"The MCP server `{key}` defines its tools otherwise than `{path}` has them, so none of them is called. "
            f"Read the difference; if you trust it, remove `{key}` from the file and run again.\n"
            f"{_difference(known, now)}"
        )


def _read(path: Path) -> JsonObject:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {"servers": {}}
    except (OSError, ValueError, RecursionError) as error:
        raise AcornError(f"`{path}`, the `pin` of an MCP server, cannot be read: {shorten(str(error))}.") from error
    if not isinstance(found, dict) or not isinstance(found.get("servers"), dict):
        raise AcornError(f"`{path}`, the `pin` of an MCP server, is no file that `pin` has written; name another.")
    return found


def _write(path: Path, whole: JsonObject) -> None:
    """At once or not at all: another process may read it."""
    try:
        descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}")
        try:
            with open(descriptor, "w", encoding="utf-8") as file:
                file.write(_text(whole) + "\n")
            os.chmod(name, 0o644)
            os.replace(name, path)
        except OSError:
            os.unlink(name)
            raise
    except OSError as error:
        raise AcornError(f"`{path}`, the `pin` of an MCP server, cannot be written: {error.strerror}.") from error


def _difference(known: Any, now: Any) -> str:
    lines = list(unified_diff(_text(known).splitlines(), _text(now).splitlines(), "pinned", "now", lineterm="", n=2))
    return shorten("\n".join(lines), _LONGEST_DIFF)


def _text(value: Any) -> str:
    # In ASCII, so that a diff shows what cannot be seen.
    return json.dumps(value, indent=2, sort_keys=True)


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
    schema: JsonObject
    output: JsonObject | None = None
    veiled: JsonObject | None = None
    """The schema for others to read, where it has keys of the user in it: a hash stands for each."""

    @cached_property
    def plain(self) -> JsonObject:
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


def safe_schema(definition: Definition, limit: int, server: str) -> JsonObject:
    """The schema as it is, but for what it says in words, which is cleaned and cut like any description.

    In the rest nothing can be changed, for the server expects it so; what is unseen there is refused.
    """
    size = len(json.dumps(definition.schema))
    if size > _LARGEST_SCHEMA:
        raise AcornError(
            f"The MCP server `{server}` describes the arguments of `{clean(definition.name)}` in {size} characters, "
            f"and at most {_LARGEST_SCHEMA} are taken; leave the tool out by `allow=[...]`."
        )
    made: JsonObject = _safe(definition.schema, "", limit, definition, server)
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


LARGEST_MEDIA = 20_000_000
"""Bytes of one picture, sound or file."""


class ServerError(Exception):
    """A call that a server answered with an error, or did not answer; the words are for the model."""


def media(data: str, media_type: str | None) -> Media:
    """A server's bytes as something that a message can carry."""
    media_type = clean(media_type or "application/octet-stream").lower()
    try:
        whole = base64.b64decode(data, validate=True)
    except (binascii.Error, ValueError) as error:
        raise ServerError(f"the server sent `{media_type}` that is no base64: {error}") from error
    if len(whole) > LARGEST_MEDIA:
        raise ServerError(f"the server sent {len(whole)} bytes of `{media_type}`; at most {LARGEST_MEDIA} are taken")
    kind = {"image": Image, "audio": Audio}.get(media_type.partition("/")[0], File)
    try:
        return kind.from_bytes(whole, media_type)
    except (AcornError, ValueError) as error:
        raise ServerError(f"the server sent `{media_type}`, which cannot be passed on: {error}") from error


def output_of(result: Any, definition: Definition, limit: int, hidden: Callable[[str], str]) -> Any:
    """What the tool returns; an error that the server reports is raised, without the keys of the user."""
    structured = result.structured_content
    if result.is_error:
        words = _texts(result.content) or ("" if structured is None else to_compact_json(structured))
        raise ServerError(cut(hidden(clean(words)), limit) or "the server reports an error without a word")
    if structured is None:
        if all(_is_text(block) for block in result.content):
            return cut(clean(_texts(result.content)), limit)
        given = _within([_part(block) for block in result.content], limit)
        return given[0] if len(given) == 1 else given
    if definition.is_wrapped and isinstance(structured, dict) and list(structured) == ["result"]:
        structured = structured["result"]
    data = _bounded(cleaned(structured), limit)
    others = [_part(block) for block in result.content if block.type != "text"]  # which is the same data again
    return [data, *_within(others, limit - len(to_compact_json(data)))] if others else data


def _is_text(block: Any) -> bool:
    return block.type not in ("image", "audio") and (block.type != "resource" or hasattr(block.resource, "text"))


def _texts(blocks: list[Any]) -> str:
    return "\n".join(_text_of_block(block) for block in blocks if _is_text(block))


def _text_of_block(block: Any) -> str:
    match block.type:
        case "text":
            return str(block.text)
        case "resource_link":
            return " ".join(each for each in (block.name, block.uri, block.description) if each)
        case "resource":
            return str(block.resource.text)
        case _:
            return f"[{block.type}]"


def _part(block: Any) -> Any:
    """One block: a text as a person would see it, or something that is none."""
    if _is_text(block):
        return clean(_text_of_block(block))
    if block.type == "resource":
        return media(block.resource.blob, block.resource.mime_type)
    return media(block.data, block.mime_type)


def _bounded(data: Any, limit: int) -> Any:
    """Data as it is, or as much of its JSON as is allowed."""
    if isinstance(data, str):
        return cut(data, limit)
    text = to_compact_json(data)
    return data if len(text) <= limit else cut(text, limit)


def _within(parts: list[Any], limit: int) -> list[Any]:
    """The parts, of whose texts no more is left than is allowed in all."""
    kept: list[Any] = []
    for part in parts:
        if isinstance(part, str):
            part = cut(part, max(limit, 0))
            limit -= len(part)
        kept.append(part)
    return kept
