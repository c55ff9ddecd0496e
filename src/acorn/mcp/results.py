"""From what a server answered to what a tool returns: data where there is data, text, pictures and sounds."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable
from typing import Any

from acorn._json import compact
from acorn.errors import AcornError
from acorn.mcp.definitions import Definition
from acorn.mcp.texts import clean, cleaned, cut
from acorn.media import Audio, File, Image, Media

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
        words = _texts(result.content) or ("" if structured is None else compact(structured))
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
    return [data, *_within(others, limit - len(compact(data)))] if others else data


def _is_text(block: Any) -> bool:
    return block.type not in ("image", "audio") and (block.type != "resource" or hasattr(block.resource, "text"))


def _texts(blocks: list[Any]) -> str:
    return "\n".join(_text(block) for block in blocks if _is_text(block))


def _text(block: Any) -> str:
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
        return clean(_text(block))
    if block.type == "resource":
        return media(block.resource.blob, block.resource.mime_type)
    return media(block.data, block.mime_type)


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
