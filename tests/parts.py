"""Content parts for tests, one for each way to define a class."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, GetCoreSchemaHandler
from pydantic_core import core_schema

from acorn._formats.json import ContentPart, part_schema


def image(url: str) -> dict[str, Any]:
    """A content part in OpenAI's form."""
    return {"type": "image_url", "image_url": {"url": url}}


@dataclass(frozen=True)
class Photo(ContentPart):
    """A dataclass."""

    url: str

    def __acorn_part__(self) -> dict[str, Any]:
        return image(self.url)

    def __acorn_label__(self) -> dict[str, str]:
        return {"kind": "image"}


class Sketch(ContentPart, BaseModel):
    """A Pydantic model with a name in its label."""

    url: str
    name: str

    def __acorn_part__(self) -> dict[str, Any]:
        return image(self.url)

    def __acorn_label__(self) -> dict[str, str]:
        return {"kind": "image", "name": self.name}


class Sound(ContentPart):
    """A class with its own validation from text and serialization to text."""

    def __init__(self, data: str) -> None:
        self.data = data

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sound) and other.data == self.data

    def __hash__(self) -> int:
        return hash(self.data)

    def __acorn_part__(self) -> dict[str, Any]:
        return {"type": "input_audio", "input_audio": {"data": self.data, "format": "wav"}}

    def __acorn_label__(self) -> dict[str, str]:
        return {"kind": "audio"}

    @classmethod
    def _read(cls, value: object) -> Sound:
        if isinstance(value, Sound):
            return value
        if isinstance(value, str) and value.startswith("wav:"):
            return cls(value)
        raise ValueError("no sound")

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> core_schema.CoreSchema:
        return part_schema(
            cls,
            core_schema.no_info_plain_validator_function(
                cls._read,
                json_schema_input_schema=core_schema.str_schema(),
                serialization=core_schema.plain_serializer_function_ser_schema(lambda sound: sound.data),
            ),
        )
