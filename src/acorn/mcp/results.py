"""From what a server answered to what a tool returns: data where there is data, text, pictures and sounds."""

from __future__ import annotations

import base64
import binascii
from dataclasses import dataclass, field
from typing import Any

from acorn._content import Part
from acorn._json import compact
from acorn.mcp.definitions import Definition
from acorn.mcp.texts import clean, cleaned, cut

LARGEST_MEDIA = 20_000_000
"""Bytes of one picture, sound or file."""


class ServerError(Exception):
    """A call that a server answered with an error, or did not answer; the words are for the model."""


@dataclass(frozen=True)
class ServerMedia(Part):
    """A picture, a sound or a file that a server sent, as base64."""

    media_type: str
    data: str = field(repr=False)

    def __acorn_part__(self) -> dict[str, Any]:
        address = f"data:{self.media_type};base64,{self.data}"
        kind, _, form = self.media_type.partition("/")
        if kind == "image":
            return {"type": "image_url", "image_url": {"url": address}}
        if kind == "audio":
            name = {"mpeg": "mp3", "x-wav": "wav", "wave": "wav"}.get(form, form)
            return {"type": "input_audio", "input_audio": {"data": self.data, "format": name}}
        return {"type": "file", "file": {"file_data": address, "filename": f"file.{form or 'bin'}"}}

    def __acorn_label__(self) -> dict[str, str]:
        return {"kind": self.media_type.partition("/")[0] or "file", "type": self.media_type}


def media(data: str, media_type: str | None) -> Any:
    """The one place where a server's bytes become something that a message can carry."""
    media_type = clean(media_type or "application/octet-stream")
    try:
        size = len(base64.b64decode(data, validate=True))
    except (binascii.Error, ValueError) as error:
        raise ServerError(f"the server sent `{media_type}` that is no base64: {error}") from error
    if size > LARGEST_MEDIA:
        raise ServerError(f"the server sent {size} bytes of `{media_type}`; at most {LARGEST_MEDIA} are taken")
    return ServerMedia(media_type, data)


def output_of(result: Any, definition: Definition, limit: int) -> Any:
    """What the tool returns; an error that the server reports is raised."""
    parts = [_part(block) for block in result.content]
    texts = "\n".join(part for part in parts if isinstance(part, str))
    if result.is_error:
        raise ServerError(cut(clean(texts), limit) or "the server reports an error without a word")
    others = [part for part in parts if not isinstance(part, str)]
    structured = result.structured_content
    if structured is None:
        if not others:
            return cut(clean(texts), limit)
        given = _within([clean(part) if isinstance(part, str) else part for part in parts], limit)
        return given[0] if len(given) == 1 else given
    if definition.is_wrapped and isinstance(structured, dict) and list(structured) == ["result"]:
        structured = structured["result"]
    data = _bounded(cleaned(structured), limit)
    return [data, *others] if others else data


def _part(block: Any) -> Any:
    """One block: a text, or something that is none."""
    match block.type:
        case "text":
            return block.text
        case "image" | "audio":
            return media(block.data, block.mime_type)
        case "resource_link":
            return " ".join(each for each in (block.name, block.uri, block.description) if each)
        case "resource":
            inner = block.resource
            return inner.text if hasattr(inner, "text") else media(inner.blob, inner.mime_type)
        case _:
            return f"[{block.type}]"


def _bounded(data: Any, limit: int) -> Any:
    """Data as it is, or as much of its JSON as is allowed."""
    if isinstance(data, str):
        return cut(data, limit)
    text = compact(data)
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
