"""Conversion of values to message content: text, or text with content parts such as images.

A `ContentPart` is a value that a user puts into an input, or returns from a tool, beside text. In the text of a
message, a placeholder stands for it. The part itself follows the text:

    <photo media="1" kind="image" />             in the XML of an input
    {"photo": {"media": 1, "kind": "image"}}     in the JSON of a result

Pydantic finds the parts while it serializes a value, wherever they are. A value without parts costs almost nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextvars import ContextVar, Token
from copy import deepcopy
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar

from pydantic import GetCoreSchemaHandler, TypeAdapter
from pydantic_core import PydanticSerializationUnexpectedValue, SchemaSerializer, core_schema

from acorn._formats.json import to_json_text
from acorn.types import Content, JsonObject, JsonValue, is_json_list, is_mapping

PLACEHOLDER_KEY = "media"
"""The key of a placeholder that holds the number of its part."""


def _serialize(part: ContentPart) -> object:
    """Return a placeholder while a message is written, and otherwise the JSON data of the part."""
    collector = _active_collector.get()
    kind: Any = type(part)
    return _adapter(kind).dump_python(part, mode="json") if collector is None else collector.placeholder(part)


@lru_cache(maxsize=64)
def _adapter(kind: type[ContentPart]) -> TypeAdapter[Any]:
    return TypeAdapter(kind)


class ContentPart:
    """A value that is sent beside the text of a message: an image, audio or a file.

    A subclass is a dataclass, a Pydantic model (`class Photo(ContentPart, BaseModel)`), or a class with its own core
    schema, which it passes through `part_schema`. It must be able to read the JSON that it writes, because runs are
    saved.
    """

    __slots__ = ()

    # For places without a type, such as the result of a tool.
    __pydantic_serializer__: ClassVar[SchemaSerializer] = SchemaSerializer(
        core_schema.any_schema(
            serialization=core_schema.plain_serializer_function_ser_schema(_serialize, when_used="json")
        )
    )

    def __acorn_part__(self) -> JsonObject:
        """Return a new content part in the format of OpenAI."""
        raise NotImplementedError

    def __acorn_label__(self) -> dict[str, str]:
        """Return the attributes of the placeholder, such as `{"kind": "image"}`; each key must be an XML name."""
        raise NotImplementedError

    @classmethod
    def __get_pydantic_core_schema__(cls, source: object, handler: GetCoreSchemaHandler) -> core_schema.CoreSchema:
        return part_schema(cls, handler(source))


def part_schema(kind: type[ContentPart], schema: core_schema.CoreSchema) -> core_schema.CoreSchema:
    """Return the schema of a class of parts, given one for validation and for serialization outside of messages."""

    def serialize(part: object, handler: Callable[[object], object]) -> object:
        if not isinstance(part, kind):  # Pydantic tries the members of a union one after the other.
            raise PydanticSerializationUnexpectedValue(f"no {kind.__name__}")
        collector = _active_collector.get()
        return handler(part) if collector is None else collector.placeholder(part)

    changed: Any = dict(schema)
    # A `ref` may occur only once in a schema.
    inner: Any = {key: value for key, value in schema.items() if key != "ref"} if "serialization" in schema else None
    changed["serialization"] = core_schema.wrap_serializer_function_ser_schema(
        serialize, schema=inner, when_used="json"
    )
    result: core_schema.CoreSchema = changed
    return result


class PartCollector:
    """Context manager that collects and numbers the parts of the values that are serialized in its block."""

    __slots__ = ("_key", "_token", "parts")

    def __init__(self, key: str = PLACEHOLDER_KEY) -> None:
        self.parts: list[tuple[JsonObject, dict[str, str]]] = []
        """Each part as it is sent, with its label, in the order of appearance."""
        self._key = key

    def __enter__(self) -> PartCollector:
        outer = _active_collector.get()
        try:
            self._token: Token[PartCollector | None] = _active_collector.set(self)
            return self
        except BaseException:  # Ctrl-C may arrive after the variable is set. Python would not call `__exit__`.
            _active_collector.set(outer)
            raise

    def __exit__(self, *_: object) -> None:
        _active_collector.reset(self._token)

    def placeholder(self, part: ContentPart) -> JsonObject:
        """Return the placeholder of a part; a part that occurs several times has one number and is sent once."""
        label = part.__acorn_label__()
        entry = (part.__acorn_part__(), label)
        if entry not in self.parts:
            self.parts.append(entry)
        return {self._key: self.parts.index(entry) + 1, **label}

    def content(self, text: str) -> Content:
        """Return the text, followed by the parts of its placeholders."""
        if not self.parts:
            return text
        return [{"type": "text", "text": text}, *(part for part, _ in self.parts)]


_active_collector: ContextVar[PartCollector | None] = ContextVar("acorn_parts", default=None)
"""The collector of the message that is being written, or None."""


def to_content(value: object) -> Content:
    """Convert a value other than text to message content: JSON, followed by its parts."""
    with PartCollector() as collector:
        text = to_json_text(value)
    return collector.content(text)


def text_of(content: object) -> str:
    """Return the text of message content, also of content in parts."""
    if isinstance(content, str):
        return content
    if is_json_list(content):
        texts = [part.get("text") if is_mapping(part) else part for part in content]
        return "\n".join(text for text in texts if isinstance(text, str))
    return "" if content is None else to_json_text(content)


# Values with parts in a saved run.


@dataclass(frozen=True)
class SavedPart(ContentPart):
    """A part of a saved run whose class is not known: a tool may return any class."""

    part: JsonObject
    label: dict[str, str]

    def __acorn_part__(self) -> JsonObject:
        return deepcopy(self.part)

    def __acorn_label__(self) -> dict[str, str]:
        return self.label


def save_parts(value: object) -> tuple[str, JsonObject | None]:
    """Return a value as JSON text, and the data that `restore_parts` needs, or None if it has no parts."""
    with PartCollector() as collector:
        text = to_json_text(value)
    if not collector.parts:
        return text, None
    key = f"__{PLACEHOLDER_KEY}__"
    while key in text:  # The result of a tool must not be mistaken for a placeholder.
        key += "_"
    with PartCollector(key) as collector:
        text = to_json_text(value)
    return text, {"mark": key, "found": collector.parts}


def restore_parts(data: JsonValue, saved: Mapping[str, Any]) -> Any:
    """Return the value with each part in its place, so that a model reads the same text again."""
    return _restore(data, saved["mark"], [SavedPart(*entry) for entry in saved["found"]])


def _restore(data: JsonValue, key: str, parts: list[SavedPart]) -> object:
    if isinstance(data, dict):
        if key in data:
            number: int = data[key]
            return parts[number - 1]
        return {name: _restore(item, key, parts) for name, item in data.items()}
    return [_restore(item, key, parts) for item in data] if isinstance(data, list) else data
