"""What of a request is no text: pictures, sounds and files, each with the place that it came from.

A provider may lose one without a word, or LiteLLM fetch it from wherever its URL points; an adapter refuses here,
before anything is sent, what its provider does not take.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from acorn._data import Data

_LINE = re.compile(r"Media (\d+) of the result of (`.*`) \(call `.*`\):", re.DOTALL)
_ELEMENT = r'<([^\s<>/]+)(?: key="([^"<>]*)")?[^<>]* media="%d"'
_KINDS = {"image_url": "image", "input_audio": "audio", "file": "file"}
_HOLDERS = {"image_url": ("image_url", "url"), "input_audio": ("input_audio", "data"), "file": ("file", "file_data")}
_WORDS = {"image": "images", "audio": "audio", "file": "files"}
_ONE = {"image": "an image", "audio": "audio", "file": "a file"}
_CLASSES = {"image": "Image", "audio": "Audio", "file": "File"}


class SentMedium(NamedTuple):
    """One part of a message that is no text."""

    kind: str
    """`image`, `audio`, `file`, or what its message calls it."""
    place: str
    """The field or the tool that it came from, for an error."""
    size: int
    """Bytes; of a URL, 0."""
    url: str | None
    """Where it is on the web, if it is not here."""


def media_of(message: Mapping[str, Any]) -> list[SentMedium]:
    """Of one message; most have none."""
    content = message.get("content")
    return _parts(content) if isinstance(content, list) else []


def _parts(content: list[Any]) -> list[SentMedium]:
    found: list[SentMedium] = []
    text, line = "", ""
    for part in content:
        if not isinstance(part, dict):
            continue
        if part.get("type") == "text":
            line = str(part.get("text") or "")
            text = text or line
        else:
            found.append(_medium(part, _place(line, text, len(found) + 1)))
    return found


def _medium(part: dict[str, Any], place: str) -> SentMedium:
    given = str(part.get("type"))
    holder, key = _HOLDERS.get(given, ("", ""))
    inside = part.get(holder)
    held = inside if isinstance(inside, dict) else {key: inside}
    data = held.get(key)
    if isinstance(data, Data):
        return SentMedium(_KINDS[given], place, data.size, None)
    # A URL may stand where data or an id would, and LiteLLM would fetch it.
    url = next(filter(_is_web, (data, *map(held.get, ("url", "file_url", "file_id")))), None)
    size = Data(data).size if isinstance(data, str) and not _is_web(data) else 0
    return SentMedium(_KINDS.get(given, given), place, size, None if size else url)


def _is_web(value: Any) -> bool:
    return isinstance(value, str) and value[:8].lower().startswith(("http://", "https://"))


def _place(line: str, text: str, number: int) -> str:
    if found := _LINE.fullmatch(line):
        return f"the result of {found[2]}"
    if found := re.search(_ELEMENT % number, text):
        return f"`{found[2] or found[1]}`"
    return "a message"


def no_text(medium: SentMedium) -> str:
    """What it is, and where."""
    return f"{_ONE.get(medium.kind, f'a part of type `{medium.kind}`')} in {medium.place}"


def no_kind(medium: SentMedium) -> str:
    """The words for a provider that takes nothing of this kind."""
    what = _WORDS.get(medium.kind, f"`{medium.kind}`")
    return f"It takes no {what}, and there is {no_text(medium)}: leave it out, or use a model that does."


def no_url(medium: SentMedium, why: str = "") -> str:
    """The words for a provider that does not read URLs of this kind."""
    made = f"acorn.{_CLASSES.get(medium.kind, 'Image')}.from_bytes(...)"
    reason = why or f"It takes no URL of {_WORDS.get(medium.kind, medium.kind)}"
    return f"{reason}, and there is one in {medium.place}: fetch it yourself, and give the data by `{made}`."
