"""The tools of an MCP server: their definitions, the pin file, and the results of calls.

acorn does not trust any text from a server. It removes invisible characters, cuts long texts, and ignores the server's
hints about the behavior of a tool.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from difflib import unified_diff
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING

from acorn._inside import FINISH, shorten, to_compact_json
from acorn.errors import AcornError, ToolConflictError
from acorn.media import Audio, File, Image, Media
from acorn.types import JsonObject, is_json_list, is_json_object

if TYPE_CHECKING:
    from mcp import types

Redact = Callable[[str], str]
"""A function that replaces the user's keys in a text."""


# The pattern matches control characters except tab and newline, lone surrogates, and invisible characters: joiners,
# fillers, direction marks, variation selectors, and tags. A server could hide whole sentences in tags.
_INVISIBLE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u2028-\u202e"
    "\u2060-\u206f\u3164\ud800-\udfff\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufffb\U0001bca0-\U0001bca3"
    "\U0001d173-\U0001d17a\U000e0000-\U000e0fff]"
)


def clean(text: str) -> str:
    """Remove invisible characters from a text, because a server could hide instructions in them."""
    return _INVISIBLE.sub("", text)


def truncate(text: str, limit: int) -> str:
    """Return the text unchanged if it has at most `limit` characters, and otherwise cut it and append a note."""
    return text if len(text) <= limit else f"{text[:limit]}\n[cut off after {limit} of {len(text)} characters]"


def map_texts(value: object, change: Callable[[str, str], str], key: str = "") -> object:
    """Return a copy of JSON data in which `change(text, key)` replaces each text and each JSON key.

    The second argument is the JSON key of the object that contains the text, or "" for a JSON key itself.
    """
    if is_json_object(value):
        return {change(name, ""): map_texts(item, change, name) for name, item in value.items()}
    if is_json_list(value):
        return [map_texts(item, change, key) for item in value]
    return change(value, key) if isinstance(value, str) else value


def has_invisible(text: str) -> bool:
    """Return True if a text contains characters that a person cannot see."""
    return _INVISIBLE.search(text) is not None


_MAX_DIFF = 6000
"""The maximum length of a difference in an error message, in characters."""


# Pinned definitions. The file of `pin` contains the definitions of several servers, so that people can review them.


def check_pinned(path: Path, key: str, definitions: Sequence[Definition]) -> None:
    """Raise `AcornError` if the tools of a server differ from the tools in the pin file.

    A pin file stores the tool definitions that a user has reviewed. If it does not contain the server yet, the function
    adds the current definitions.
    """
    content = _read_pins(path)
    current = {definition.name: definition.data for definition in definitions}
    pinned = content["servers"].get(key)
    if pinned is None:
        content["servers"][key] = current
        _write_pins(path, content)
    elif pinned != current:
        raise AcornError(
            f"The tools of the MCP server `{key}` differ from the pinned tools in `{path}`, so acorn does not call "
            f"them. Review the difference. If you trust the server, remove `{key}` from the file and run again.\n"
            f"{_difference(pinned, current)}"
        )


def _read_pins(path: Path) -> JsonObject:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {"servers": {}}
    except (OSError, ValueError, RecursionError) as error:
        raise AcornError(
            f"Cannot read the pin file `{path}` of an MCP server: {shorten(str(error))}. Repair the file, or set "
            f"`pin` to another path."
        ) from error
    if not is_json_object(content) or not isinstance(content.get("servers"), dict):
        raise AcornError(
            f"The option `pin` of an MCP server contains the path `{path}`, but this file is not a pin file. Set "
            f"`pin` to another path."
        )
    return content


def _write_pins(path: Path, content: JsonObject) -> None:
    """Write the pin file. The file is replaced in one operation, because another process may read it."""
    new_file = path.with_name(f".{path.name}{os.urandom(8).hex()}")
    try:
        new_file.write_text(_json_text(content) + "\n", encoding="utf-8")
        new_file.replace(path)
    except OSError as error:
        with suppress(OSError):
            new_file.unlink()
        raise AcornError(
            f"Cannot write the pin file `{path}` of an MCP server: {error.strerror}. Set `pin` to a path in a writable "
            f"folder."
        ) from error


def _difference(pinned: JsonObject, current: JsonObject) -> str:
    before, after = _json_text(pinned).splitlines(), _json_text(current).splitlines()
    lines = list(unified_diff(before, after, "pinned", "now", lineterm="", n=2))
    return shorten("\n".join(lines), _MAX_DIFF)


def _json_text(value: JsonObject) -> str:
    # ASCII makes invisible characters visible in a difference.
    return json.dumps(value, indent=2, sort_keys=True)


# Definitions

_NAME_ESCAPE = re.compile(r"[^A-Za-z0-9_-]")
_MAX_NAME = 64
_MAX_SCHEMA = 200_000
"""The maximum length of a schema in characters of JSON. A larger schema would fill the model's context."""
_VALUE_KEYWORDS = ("default", "examples")
"""JSON Schema keywords that suggest values and do not affect validation."""
_TEXT_KEYWORDS = ("description", "title", "$comment")
"""JSON Schema keywords that contain explanations and do not affect validation."""


@dataclass(frozen=True)
class Definition:
    """The definition of a tool that a server sent: the name, the description and the schemas."""

    name: str
    description: str
    schema: JsonObject
    output: JsonObject | None = None
    redacted: JsonObject | None = None
    """The schema with a hash in place of each of the user's keys, or None if it contains no key."""

    @cached_property
    def data(self) -> JsonObject:
        """The description and the input schema of the tool, as the pin file stores them."""
        return {"description": self.description, "schema": self.schema if self.redacted is None else self.redacted}

    @cached_property
    def fingerprint(self) -> str:
        """A hash of the tool definition, with which acorn notices that the server changed the tool."""
        return _digest(json.dumps([self.name, self.data, self.output], sort_keys=True))

    @property
    def is_wrapped(self) -> bool:
        """True if the server returns each result inside an object whose only JSON key is `result`."""
        properties = (self.output or {}).get("properties")
        return is_json_object(properties) and list(properties) == ["result"]


def define_tool(tool: types.Tool, redact: Redact) -> Definition:
    """Convert a tool of the MCP SDK to a definition without the API keys of the user.

    API keys must be removed because acorn sends the definition to a model and may write it to a file. If a `default` in
    the schema contains an API key, the function removes the `default`, and the server uses its own default value.
    """
    description = redact(tool.description or "")
    schema = tool.input_schema
    if not _has_key(schema, redact):
        return Definition(tool.name, description, schema, tool.output_schema)
    sent = {name: _without_keys(item, name, redact) for name, item in schema.items()}
    redacted = {name: map_texts(item, partial(_with_hash, redact), name) for name, item in schema.items()}
    return Definition(tool.name, description, sent, tool.output_schema, redacted)


def _has_key(value: object, redact: Redact) -> bool:
    text = json.dumps(value, ensure_ascii=False)
    return redact(text) != text


def _without_keys(value: object, key: str, redact: Redact) -> object:
    """Return a copy of a part of a schema with redacted descriptions, and without defaults that contain an API key."""
    if is_json_object(value):
        removable = () if key == "properties" else _VALUE_KEYWORDS
        kept = {name: item for name, item in value.items() if name not in removable or not _has_key(item, redact)}
        return {name: _without_keys(item, name, redact) for name, item in kept.items()}
    if is_json_list(value):
        return [_without_keys(item, key, redact) for item in value]
    return redact(value) if isinstance(value, str) and key in _TEXT_KEYWORDS else value


def _with_hash(redact: Redact, text: str, key: str) -> str:
    redacted = redact(text)
    return text if redacted == text else f"{redacted} (sha256 {_digest(text)[:16]})"


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def allowed_tools(
    offered: Sequence[Definition], allow: Sequence[str] | None, approve: Sequence[str], server: str
) -> Sequence[Definition]:
    """Return the definitions of the tools in `allow`, or all definitions if `allow` is None.

    Raise `AcornError` if `allow` or `approve` contains the name of another tool.
    """
    if allow is not None:
        _check_offered(allow, offered, "allow", server)
        offered = [definition for definition in offered if definition.name in allow]
    _check_offered(approve, offered, "approve", server)
    return offered


def _check_offered(names: Iterable[str], offered: Sequence[Definition], option: str, server: str) -> None:
    """Raise `AcornError` if an option contains the name of a tool that the server does not offer.

    Without this check, a misspelled name in `approve` would allow calls of the real tool without approval.
    """
    known = [definition.name for definition in offered]
    for name in names:
        if name not in known:
            available = ", ".join(f"`{shorten(clean(other), 80)}`" for other in known) or "none"
            raise AcornError(
                f"`{option}` of the MCP server `{server}` contains `{name}`, which is not a tool of the server. "
                f"Use one of its tools: {available}."
            )


def tool_names(definitions: Sequence[Definition], prefix: str, server: str) -> dict[str, Definition]:
    """Return a dict that maps the tool names in requests to the model to the tool definitions of the server."""
    named: dict[str, Definition] = {}
    for definition in definitions:
        name = _tool_name(prefix, definition.name)
        other = named.setdefault(name, definition)
        if other is not definition:
            raise ToolConflictError(
                f"The MCP server `{server}` offers `{clean(other.name)}` and `{clean(definition.name)}`, but both "
                f"tools would have the name `{name}` in requests to the model. Set `allow` to the names of the other "
                f"tools and of only one of these two tools."
            )
        if name == FINISH:
            raise ToolConflictError(
                f"The MCP server `{server}` offers a tool named `{FINISH}`, which is the name of the tool that ends a "
                f"run. Set `prefix` to rename the tools, or set `allow` to the names of the other tools."
            )
    return named


def _tool_name(prefix: str, name: str) -> str:
    full_name = prefix + (_NAME_ESCAPE.sub("_", name) or "_")
    if len(full_name) <= _MAX_NAME:
        return full_name
    return f"{full_name[: _MAX_NAME - 9]}_{_digest(name)[:8]}"


def safe_schema(definition: Definition, limit: int, server: str) -> JsonObject:
    """Return the input schema of a tool for the model, with cleaned and shortened descriptions and titles.

    All other texts in the schema must not change, because the server expects them. If they contain invisible
    characters, the function raises `AcornError`.
    """
    size = len(json.dumps(definition.schema))
    if size > _MAX_SCHEMA:
        raise AcornError(
            f"The MCP server `{server}` describes the arguments of `{clean(definition.name)}` in {size} characters. "
            f"At most {_MAX_SCHEMA} are allowed. To exclude the tool, set `allow` to the names of the other tools."
        )

    def check(text: str, key: str) -> str:
        if key in _TEXT_KEYWORDS:
            return truncate(clean(text), limit)
        if has_invisible(text):
            raise AcornError(
                f"The MCP server `{server}` uses invisible characters in the arguments of `{clean(definition.name)}` "
                f"({shorten(text, 80)!a}). To exclude the tool, set `allow` to the names of the other tools. "
                f"Otherwise, do not use this server."
            )
        return text

    return {check(name, ""): map_texts(item, check, name) for name, item in definition.schema.items()}


# Results

MAX_MEDIA = 20_000_000
"""The maximum size of one image, audio or file, in bytes."""


class ServerError(Exception):
    """A failed tool call. The model receives the message."""


class NotCalledError(ServerError):
    """A tool call that the server did not execute, because it lost the session. acorn can repeat it safely."""


def tool_output(result: types.CallToolResult, definition: Definition, limit: int, redact: Redact) -> object:
    """Convert a result of the MCP SDK to the tool output, or raise `ServerError` if the server reports an error."""
    structured = result.structured_content
    if result.is_error:
        texts = [_part(block) for block in result.content if block.type not in ("image", "audio")]
        message = _join_texts(texts) or ("" if structured is None else to_compact_json(structured))
        raise ServerError(truncate(redact(clean(message)), limit) or "the server reports an error without a message")
    if structured is None:
        parts = [_part(block) for block in result.content]
        if all(isinstance(part, str) for part in parts):
            return truncate(_join_texts(parts), limit)
        return parts[0] if len(parts) == 1 else _limit_texts(parts, limit)
    if definition.is_wrapped and list(structured) == ["result"]:
        structured = structured["result"]
    data = _limit_data(map_texts(structured, lambda text, _: clean(text)), limit)
    others = [_part(block) for block in result.content if block.type != "text"]  # Text repeats the structured data.
    return [data, *_limit_texts(others, limit - len(to_compact_json(data)))] if others else data


def _join_texts(parts: Iterable[str | Media]) -> str:
    return "\n".join(part for part in parts if isinstance(part, str))


def _part(block: types.ContentBlock) -> str | Media:
    """Convert a content block of a result to text without invisible characters, or to an `Image`, `Audio` or `File`."""
    match block.type:
        case "text":
            return clean(block.text)
        case "resource_link":
            return clean(" ".join(filter(None, (block.name, block.uri, block.description))))
        case "resource":
            text: str | None = getattr(block.resource, "text", None)
            blob: str = getattr(block.resource, "blob", "")
            return read_media(blob, block.resource.mime_type) if text is None else clean(text)
        case "image" | "audio":
            return read_media(block.data, block.mime_type)


def read_media(data: str, media_type: str | None) -> Media:
    """Convert base64 data that a server sent to an `Image`, `Audio` or `File`."""
    media_type = clean(media_type or "application/octet-stream").lower()
    kind = {"image": Image, "audio": Audio}.get(media_type.partition("/")[0], File)
    try:
        media = kind.from_url(f"data:{media_type};base64,{data}")
    except ValueError as error:
        raise ServerError(f"the server sent `{media_type}` data that cannot be used: {error}") from error
    if media.size > MAX_MEDIA:
        raise ServerError(f"the server sent {media.size} bytes of `{media_type}`, and the limit is {MAX_MEDIA} bytes")
    return media


def _limit_data(data: object, limit: int) -> object:
    """Return the data unchanged if its JSON text has at most `limit` characters, and otherwise the cut JSON text."""
    if isinstance(data, str):
        return truncate(data, limit)
    text = to_compact_json(data)
    return data if len(text) <= limit else truncate(text, limit)


def _limit_texts(parts: Sequence[str | Media], limit: int) -> list[str | Media]:
    """Shorten the texts in a list of texts and media, so that all texts together have at most `limit` characters."""
    limited: list[str | Media] = []
    for part in parts:
        if isinstance(part, str):
            part = truncate(part, max(limit, 0))
            limit -= len(part)
        limited.append(part)
    return limited
