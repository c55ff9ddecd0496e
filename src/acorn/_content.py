"""From a value to the content of a message: text, or parts where something in it is no text.

A `Part` is what a user puts into an input or returns from a tool beside text. In text a placeholder stands
for it, and the part itself follows.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Protocol, runtime_checkable

from acorn._json import to_text
from acorn.types import Content


@runtime_checkable
class Part(Protocol):
    """Something that travels beside the text of a message."""

    def __acorn_part__(self) -> dict[str, Any]:
        """The content part in OpenAI's format."""
        ...


def content_of(value: Any) -> Content:
    """What a model reads of a value that is no text: JSON, and the parts that were in it behind."""
    return to_text(value)


def with_parts(text: str, parts: Iterable[Part]) -> Content:
    """Text, and behind it the parts that its placeholders stand for."""
    found = [part.__acorn_part__() for part in parts]
    return [{"type": "text", "text": text}, *found] if found else text
