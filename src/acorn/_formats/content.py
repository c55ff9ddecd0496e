"""Conversion of values to message content, which is a text or a text with content parts such as images.

A `ContentPart` is a value, such as an image, that a user passes in an input or returns from a tool. The message text
contains a placeholder for the content part, and the content part itself follows the text:

    <photo media="1" kind="image" />             in the XML of an input
    {"photo": {"media": 1, "kind": "image"}}     in the JSON of a tool result

A `PartCollector` collects the content parts of a message. While Pydantic serializes a value, it passes every content
part inside the value to the collector. If a value has no content parts, the conversion costs almost no extra time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextvars import ContextVar
from copy import deepcopy
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar

from pydantic import GetCoreSchemaHandler, TypeAdapter
from pydantic_core import PydanticSerializationUnexpectedValue, SchemaSerializer, core_schema

from acorn._formats.json import Collector, to_json_text
from acorn.types import Content, JsonObject, JsonValue, is_json_list, is_mapping

PLACEHOLDER_KEY = "media"
"""The key of a placeholder whose value is the number of the content part."""


def _serialize(part: ContentPart) -> object:
    """Return the placeholder of a content part while a `PartCollector` is active, and otherwise its JSON data."""
    collector = _active_collector.get()
    kind: Any = type(part)
    return _adapter(kind).dump_python(part, mode="json") if collector is None else collector.placeholder(part)


@lru_cache(maxsize=64)
def _adapter(kind: type[ContentPart]) -> TypeAdapter[Any]:
    return TypeAdapter(kind)


class ContentPart:
    """The base class of images, audio and files, which a request sends in addition to the message text.

    A subclass is a dataclass, a Pydantic class (`class Photo(ContentPart, BaseModel)`), or a class that defines its own
    Pydantic core schema with `part_schema`. Runs are saved as JSON, so a subclass must be able to validate the JSON
    that it serializes to.
    """

    __slots__ = ()

    # Pydantic uses this serializer for values without a declared type, such as a tool result.
    __pydantic_serializer__: ClassVar[SchemaSerializer] = SchemaSerializer(
        core_schema.any_schema(
            serialization=core_schema.plain_serializer_function_ser_schema(_serialize, when_used="json")
        )
    )

    def __acorn_part__(self) -> JsonObject:
        """Return the content part as a new dict, in the message format of OpenAI."""
        raise NotImplementedError

    def __acorn_label__(self) -> dict[str, str]:
        """Return the attributes of the placeholder, such as `{"kind": "image"}`. Each dict key must be an XML name."""
        raise NotImplementedError

    @classmethod
    def __get_pydantic_core_schema__(cls, source: object, handler: GetCoreSchemaHandler) -> core_schema.CoreSchema:
        return part_schema(cls, handler(source))


def part_schema(kind: type[ContentPart], schema: core_schema.CoreSchema) -> core_schema.CoreSchema:
    """Return a copy of a Pydantic core schema that serializes content parts as placeholders inside messages.

    `kind` is the subclass of `ContentPart` that `schema` describes. The copy validates values like `schema`, and
    outside of messages it also serializes them like `schema`.
    """

    def serialize(part: object, handler: Callable[[object], object]) -> object:
        if not isinstance(part, kind):  # Pydantic calls the serializers of a union in turn until one does not raise.
            raise PydanticSerializationUnexpectedValue(f"The value is not an instance of `{kind.__name__}`.")
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


_active_collector: ContextVar[PartCollector | None] = ContextVar("acorn_parts", default=None)
"""The collector for the message that is currently serialized, or None outside of messages."""


class PartCollector(Collector):
    """A collector that numbers the content parts of serialized values."""

    __slots__ = ("_key", "parts")
    active = _active_collector

    def __init__(self, key: str = PLACEHOLDER_KEY) -> None:
        self.parts: list[tuple[JsonObject, dict[str, str]]] = []
        """A list of (content part in the format of OpenAI, placeholder attributes), in the order of appearance."""
        self._key = key

    def placeholder(self, part: ContentPart) -> JsonObject:
        """Collect a content part and return the placeholder for the message text.

        If a content part occurs several times, all its placeholders have the same number, and the request contains it
        once.
        """
        label = part.__acorn_label__()
        entry = (part.__acorn_part__(), label)
        if entry not in self.parts:
            self.parts.append(entry)
        return {self._key: self.parts.index(entry) + 1, **label}

    def content(self, text: str) -> Content:
        """Return message content: only the text, or a list with the text and the collected content parts."""
        if not self.parts:
            return text
        return [{"type": "text", "text": text}, *(part for part, _ in self.parts)]


def to_content(value: object) -> Content:
    """Convert a value to message content: the JSON text of the value, followed by its content parts.

    Do not pass a string, because its JSON text has quotes.
    """
    collector = PartCollector()
    return collector.content(collector.collect(lambda: to_json_text(value)))


def text_of(content: object) -> str:
    """Return the text in message content, without images, audio and files."""
    if isinstance(content, str):
        return content
    if is_json_list(content):
        texts = [part.get("text") if is_mapping(part) else part for part in content]
        return "\n".join(text for text in texts if isinstance(text, str))
    return "" if content is None else to_json_text(content)


# Values with content parts in a saved run.


@dataclass(frozen=True)
class SavedPart(ContentPart):
    """A content part that was loaded from a saved tool result.

    A saved run does not contain the original class of the content part, so this class represents all of them.
    """

    part: JsonObject
    label: dict[str, str]

    def __acorn_part__(self) -> JsonObject:
        return deepcopy(self.part)

    def __acorn_label__(self) -> dict[str, str]:
        return self.label


def save_parts(value: object) -> tuple[str, JsonObject | None]:
    """Return a tuple of the JSON text of a value, and the data that `restore_parts` needs to restore its content parts.

    The second item of the tuple is None if the value has no content parts.
    """
    collector = PartCollector()
    text = collector.collect(lambda: to_json_text(value))
    if not collector.parts:
        return text, None
    key = f"__{PLACEHOLDER_KEY}__"
    while key in text:  # No text in a tool result may look like a placeholder.
        key += "_"
    collector = PartCollector(key)
    return collector.collect(lambda: to_json_text(value)), {"mark": key, "found": collector.parts}


def restore_parts(data: JsonValue, saved: Mapping[str, Any]) -> Any:
    """Return a copy of JSON data with content parts in place of their placeholders; the reverse of `save_parts`.

    If acorn sends the restored value to a model again, the message has the same text as before.
    """
    return _restore(data, saved["mark"], [SavedPart(*entry) for entry in saved["found"]])


def _restore(data: JsonValue, key: str, parts: list[SavedPart]) -> object:
    if isinstance(data, dict):
        if key in data:
            number: int = data[key]
            return parts[number - 1]
        return {name: _restore(item, key, parts) for name, item in data.items()}
    return [_restore(item, key, parts) for item in data] if isinstance(data, list) else data
