"""From a value to the content of a message: text, or parts where something in it is no text.

A `Part` is what a user puts into an input, or returns from a tool, beside text: a picture, say. In the text of a
message a placeholder stands for it, and the part itself follows the text:

    <photo media="1" kind="image" />             in the XML of an input
    {"photo": {"media": 1, "kind": "image"}}     in the JSON of a result

Pydantic comes upon the parts as it writes, wherever they stand; a value without any costs next to nothing more.
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
from acorn.types import Content, JsonObject

PLACEHOLDER_KEY = "media"
"""Under which a placeholder has the number of its part."""


def _write(part: ContentPart) -> Any:
    """A placeholder in what the model reads; anywhere else what its class writes."""
    kind: Any = type(part)
    parts = _collecting.get()
    return _adapter(kind).dump_python(part, mode="json") if parts is None else parts.placeholder(part)


@lru_cache(maxsize=64)
def _adapter(kind: type[ContentPart]) -> TypeAdapter[Any]:
    return TypeAdapter(kind)


class ContentPart:
    """Something that travels beside the text of a message: a picture, a sound, a file.

    A subclass is a dataclass, a Pydantic model (`class Photo(Part, BaseModel)`), or a class with a core schema of its
    own, which it passes through `part_schema`. What it writes as JSON, it must be able to read: a run may be saved.
    """

    __slots__ = ()

    # For places without a type, such as what a tool returned.
    __pydantic_serializer__: ClassVar[SchemaSerializer] = SchemaSerializer(
        core_schema.any_schema(serialization=core_schema.plain_serializer_function_ser_schema(_write, when_used="json"))
    )

    def __acorn_part__(self) -> JsonObject:
        """The content part in OpenAI's format, in dicts that nobody else holds."""
        raise NotImplementedError

    def __acorn_label__(self) -> dict[str, str]:
        """What the placeholder says of it: `{"kind": "image"}`, perhaps with a name; each key an XML name."""
        raise NotImplementedError

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> core_schema.CoreSchema:
        return part_schema(cls, handler(source))


def part_schema(kind: type[ContentPart], schema: core_schema.CoreSchema) -> core_schema.CoreSchema:
    """The schema of a class of parts, from one that says how it is validated and, perhaps, written elsewhere."""

    def write(part: Any, handler: Callable[[Any], Any]) -> Any:
        if not isinstance(part, kind):  # Pydantic tries the members of a union one after the other
            raise PydanticSerializationUnexpectedValue(f"no {kind.__name__}")
        parts = _collecting.get()
        return handler(part) if parts is None else parts.placeholder(part)

    changed: Any = dict(schema)
    # A schema may be known by its `ref` only once.
    own: Any = {key: value for key, value in schema.items() if key != "ref"} if "serialization" in schema else None
    changed["serialization"] = core_schema.wrap_serializer_function_ser_schema(write, schema=own, when_used="json")
    found: core_schema.CoreSchema = changed
    return found


class PartCollector:
    """Collects and numbers, in the order of their appearance, the parts of what is written in its block."""

    __slots__ = ("_mark", "_token", "found")

    def __init__(self, mark: str = PLACEHOLDER_KEY) -> None:
        self.found: list[tuple[JsonObject, dict[str, str]]] = []
        """Each as it is sent, and its label."""
        self._mark = mark

    def __enter__(self) -> PartCollector:
        before = _collecting.get()
        try:
            self._token: Token[PartCollector | None] = _collecting.set(self)
            return self
        except BaseException:  # Ctrl-C, which may come when it is set already: nobody would call `__exit__`
            _collecting.set(before)
            raise

    def __exit__(self, *_: object) -> None:
        _collecting.reset(self._token)

    def placeholder(self, part: ContentPart) -> JsonObject:
        """What stands for a part; one that stands in several places has one number, and is sent once."""
        label = part.__acorn_label__()
        made = (part.__acorn_part__(), label)
        if made not in self.found:
            self.found.append(made)
        return {self._mark: self.found.index(made) + 1, **label}

    def content(self, text: str) -> Content:
        """The text, and behind it the parts that its placeholders stand for."""
        if not self.found:
            return text
        return [{"type": "text", "text": text}, *(part for part, _ in self.found)]


_collecting: ContextVar[PartCollector | None] = ContextVar("acorn_parts", default=None)
"""Who collects the parts of what is being written; None where no message is made of it."""


def to_content(value: Any) -> Content:
    """What a model reads of a value that is no text: JSON, and behind it the parts that were in it."""
    with PartCollector() as parts:
        text = to_json_text(value)
    return parts.content(text)


def text_of(content: Any) -> str:
    """The text of a content, also of one in parts."""
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        texts = [part.get("text") if isinstance(part, Mapping) else part for part in content]
        return "\n".join(text for text in texts if isinstance(text, str))
    return "" if content is None else to_json_text(content)


# Values with parts in a saved run


@dataclass(frozen=True)
class SavedPart(ContentPart):
    """A part whose class is not known any more: what a tool returned may have been anything."""

    part: JsonObject
    label: dict[str, str]

    def __acorn_part__(self) -> JsonObject:
        return deepcopy(self.part)

    def __acorn_label__(self) -> dict[str, str]:
        return self.label


def save_parts(value: Any) -> tuple[str, JsonObject | None]:
    """A value as JSON text, and what `restore_parts` needs to put its parts back; None where there are none."""
    with PartCollector() as parts:
        text = to_json_text(value)
    if not parts.found:
        return text, None
    mark = f"__{PLACEHOLDER_KEY}__"
    while mark in text:  # nothing that a tool returned must be taken for a placeholder
        mark += "_"
    with PartCollector(mark) as parts:
        text = to_json_text(value)
    return text, {"mark": mark, "found": parts.found}


def restore_parts(plain: Any, saved: Mapping[str, Any]) -> Any:
    """The value again, each part in its place, so that a model reads the same of it."""
    return _restored(plain, saved["mark"], [SavedPart(*each) for each in saved["found"]])


def _restored(plain: Any, mark: str, parts: list[SavedPart]) -> Any:
    if isinstance(plain, dict):
        if mark in plain:
            return parts[plain[mark] - 1]
        return {key: _restored(item, mark, parts) for key, item in plain.items()}
    return [_restored(item, mark, parts) for item in plain] if isinstance(plain, list) else plain
