"""Values to XML: two spaces a level, text to the character, nothing a user wrote becomes markup.

Pydantic turns the value into plain data first, so that dates, enums and custom serializers come out as in
JSON; the original beside it gives the names of list items and the descriptions of fields. The loop's
opening message and the context blocks are written here.

The empty form of an output, which a model fills in when it cannot be made to call `__finish__`.

The document that tells a model what was wrong with its output.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, fields, is_dataclass
from functools import lru_cache
from typing import Any, Literal, NamedTuple

from pydantic import BaseModel, RootModel
from pydantic_core import to_json

from acorn._formats.content import PLACEHOLDER_KEY, ContentPart, PartCollector
from acorn._formats.json import field_values, items_of, to_json_data
from acorn._formats.schema.generate import JsonSchema, resolve_ref
from acorn._formats.schema.problems import Problem
from acorn._formats.schema.shape import fields_of
from acorn._formats.xml.decode import additional_schema
from acorn._formats.xml.parse import escape_attribute, escape_comment, escape_text, is_xml_name
from acorn.errors import AcornError
from acorn.types import JsonObject

DescriptionFormat = Literal["attribute", "comment"]

MAX_DEPTH = 128
"""Deeper values are refused: no model reads them, and most of them are circles."""

_NESTED = (dict, list)
_FOLD = 500
"""So many lines of a list are joined at once: kept apart to the end, the small strings of a long document would
be memory that the system hands out anew, page by page, for every message."""


@dataclass(frozen=True)
class XmlStyle:
    """How a module wants its XML."""

    descriptions: bool = True
    description_format: DescriptionFormat = "attribute"
    include_none: bool = False


def encode_xml(
    value: Any,
    root: str,
    style: XmlStyle | None = None,
    parts: PartCollector | None = None,
    strangers: list[object] | None = None,
) -> str:
    """The value as one element named `root`, without a trailing newline.

    A part in it is an empty element with its number, `<photo media="1" kind="image" />`, and is added to `parts`. What
    has nothing to show but its address in memory is added to `strangers`.
    """
    lines: list[str] = []
    with PartCollector() if parts is None else parts:
        plain = to_json_data(value, strangers)
    _XmlWriter(style or XmlStyle(), lines).element(f"<{root}", f"</{root}>", plain, value, 0)
    return "\n".join(lines)


class _ElementTag(NamedTuple):
    """The two ends of an element; the first is open for `>` or ` />`."""

    start: str
    end: str
    comment: str = ""


class _XmlWriter:
    def __init__(self, style: XmlStyle, lines: list[str]) -> None:
        self.include_none = style.include_none
        self.format: DescriptionFormat | None = style.description_format if style.descriptions else None
        self.lines = lines

    def element(self, start: str, end: str, plain: Any, source: Any, depth: int) -> None:
        """One element; `plain` is what is written, `source` the object it came from."""
        if isinstance(plain, str):
            text = escape_text(plain)
        elif isinstance(plain, _NESTED):
            if plain and self._nested(start, end, plain, source, depth):
                return
            text = ""
        else:
            text = "" if plain is None else _scalar(plain)
        self.lines.append(f"{'  ' * depth}{start}>{text}{end}" if text else f"{'  ' * depth}{start} />")

    def _nested(self, start: str, end: str, plain: Any, source: Any, depth: int) -> bool:
        """Write an element with others in it, if there are any: fields that are None may be left out."""
        if depth >= MAX_DEPTH:
            raise AcornError(
                f"A value is nested more than {MAX_DEPTH} levels deep, or contains itself; pass something flatter."
            )
        while isinstance(source, RootModel):
            source = source.root  # pyright: ignore[reportUnknownMemberType]
        lines, indent = self.lines, "  " * depth
        if isinstance(plain, dict) and PLACEHOLDER_KEY in plain and isinstance(source, ContentPart):
            lines.append(f"{indent}{start}{_attributes(plain)} />")
            return True
        lines.append(f"{indent}{start}>")
        opened = len(lines)
        if isinstance(plain, dict):
            self._members(plain, source, depth + 1)
        else:
            self._items(plain, source, depth + 1)
        if len(lines) == opened:
            lines.pop()
            return False
        lines.append(indent + end)
        return True

    def _members(self, plain: JsonObject, source: Any, depth: int) -> None:
        """The fields of an object or the keys of a dict."""
        lines, indent = self.lines, "  " * depth
        kind: Any = type(source)
        known = _tags(kind, self.format)
        is_object = known is not None
        tags = known or {}
        originals = field_values(source) if is_object else _originals_by_key(source, plain)
        for name, item in plain.items():
            start, end, comment = tags.get(name) or _plain_tag(name)
            if item is None:
                item = _number_behind(originals.get(name))
                if item is None and is_object and not self.include_none:
                    continue
            if comment:
                lines.append(indent + comment)
            if type(item) is str and item:
                lines.append(f"{indent}{start}>{escape_text(item)}{end}")
            else:
                self.element(start, end, item, originals.get(name), depth)

    def _items(self, plain: list[Any], source: Any, depth: int) -> None:
        lines, indent = self.lines, "  " * depth
        begun = len(lines)
        for item, origin in zip(plain, _originals(source, plain), strict=True):
            if type(item) is str and item:
                lines.append(f"{indent}<item>{escape_text(item)}</item>")
            else:
                kind: Any = type(origin)
                tag = _item_tag(kind)
                written = _number_behind(origin) if item is None else item
                self.element(tag.start, tag.end, written, origin, depth)
            if len(lines) - begun > _FOLD:
                lines[begun:] = ["\n".join(lines[begun:])]
                begun += 1


def _scalar(value: Any) -> str:
    if value is True:
        return "true"
    if value is False:
        return "false"
    if isinstance(value, float):
        text = repr(value)
        # Python and JSON agree on floats without an exponent.
        return text if "e" not in text and "n" not in text else to_json(value, inf_nan_mode="constants").decode()
    try:
        return str(value)
    except ValueError:  # an integer of thousands of digits, which Python will not print
        return to_json(value).decode()


def _attributes(placeholder: JsonObject) -> str:
    return "".join([f' {name}="{escape_attribute(str(value))}"' for name, value in placeholder.items()])


def _number_behind(origin: Any) -> float | None:
    """NaN or infinity, which Pydantic makes null where a field has no type of its own."""
    return origin if type(origin) is float and not math.isfinite(origin) else None


def _originals(source: Any, plain: list[Any]) -> list[Any]:
    """The objects behind the items, or the items where nobody knows."""
    found = source if type(source) is list else items_of(source)
    return plain if found is None or len(found) != len(plain) else found


def _originals_by_key(source: Any, plain: JsonObject) -> JsonObject:
    """The objects under the keys as they are written (`1` becomes `"1"`), order being kept."""
    found = list(dict.values(source)) if isinstance(source, dict) else []
    return dict(zip(plain, found, strict=True)) if len(found) == len(plain) else plain


@lru_cache(maxsize=1024)
def _tags(cls: type, format: DescriptionFormat | None) -> dict[str, _ElementTag] | None:
    """The elements of a class's fields, or None where the class has no fields."""
    if issubclass(cls, RootModel) or not (issubclass(cls, BaseModel) or is_dataclass(cls)):
        return None
    try:
        described: JsonObject = dict(fields_of(cls))
    except NameError:  # a type hint of a dataclass that cannot be read; its names can
        described = dict.fromkeys(field.name for field in fields(cls))
    computed = getattr(getattr(cls, "__pydantic_decorators__", None), "computed_fields", {})
    described.update({name: decorator.info for name, decorator in computed.items()})
    return {name: field_tag(name, getattr(field, "description", None), format) for name, field in described.items()}


def field_tag(name: str, description: str | None, format: DescriptionFormat | None) -> _ElementTag:
    """The element of a field, with its description in the chosen place."""
    tag = _plain_tag(name)
    if not description or format is None:
        return tag
    if format == "comment":
        return _ElementTag(tag.start, tag.end, f"<!-- {escape_comment(description)} -->")
    return _ElementTag(f'{tag.start} description="{escape_attribute(description)}"', tag.end)


def _plain_tag(name: str) -> _ElementTag:
    if is_xml_name(name):
        return _ElementTag(f"<{name}", f"</{name}>")
    return _ElementTag(f'<entry key="{escape_attribute(name)}"', "</entry>")


@lru_cache(maxsize=1024)
def _item_tag(cls: type) -> _ElementTag:
    is_object = (issubclass(cls, BaseModel) or is_dataclass(cls)) and not issubclass(cls, RootModel)
    name = snake_case(cls.__name__) if is_object else "item"
    return _plain_tag(name if is_xml_name(name) else "item")


def snake_case(name: str) -> str:
    """`WebSource` as `web_source`, `HTTPSource` as `http_source`."""
    name = re.sub(r"([A-Z]+)([A-Z][a-z])", r"\1_\2", name)
    return re.sub(r"([a-z0-9])([A-Z])", r"\1_\2", name).lower()


_MAX_LINES = 2000
"""Beyond this the form goes no deeper: classes that all hold each other would fill books."""


def skeleton(schema: JsonSchema, root: str) -> str:
    """Nested empty elements for every field of an object schema, descriptions as attributes."""
    lines: list[str] = []
    _write(f"<{root}", f"</{root}>", schema, schema, 0, (), lines)
    return "\n".join(lines)


def _write(
    start: str,
    end: str,
    node: JsonSchema,
    top: JsonSchema,
    depth: int,
    seen: tuple[str, ...],
    lines: list[str],
) -> None:
    indent = "  " * depth
    node, seen, again = _followed(node, top, seen)
    properties = node.get("properties", {})
    values = additional_schema(node)
    is_plain = not properties and node.get("type") != "array" and values is None
    if is_plain or again or len(lines) > _MAX_LINES:
        lines.append(f"{indent}{start}>{end}")
        return
    lines.append(f"{indent}{start}>")
    if node.get("type") == "array":
        for item in node.get("prefixItems") or [node.get("items") or {}]:
            _write("<item", "</item>", item, top, depth + 1, seen, lines)
    elif properties:
        for name, field in properties.items():
            tag = field_tag(name, field.get("description"), "attribute")
            _write(tag.start, tag.end, field, top, depth + 1, seen, lines)
    else:
        _write('<entry key="..."', "</entry>", values or {}, top, depth + 1, seen, lines)
    lines.append(f"{indent}{end}")


def _followed(node: JsonSchema, top: JsonSchema, seen: tuple[str, ...]) -> tuple[JsonSchema, tuple[str, ...], bool]:
    """Follow references and take a union's first member that is not null; a circle ends the form."""
    while True:
        if "$ref" in node:
            if node["$ref"] in seen:
                return node, seen, True
            seen = (*seen, node["$ref"])
            node = resolve_ref(node["$ref"], top)
        elif members := node.get("anyOf") or node.get("oneOf"):
            node = next((member for member in members if member.get("type") != "null"), members[0])
        else:
            return node, seen, False


VALIDATION_ERROR_START = '<error type="validation">'
"""How the document begins."""


def error_document(problems: Sequence[Problem], message: str = "Output validation failed") -> str:
    """One `<field>` a problem: where, what was expected, what was received."""
    lines = [VALIDATION_ERROR_START, f"  <message>{escape_text(message)}</message>"]
    if problems:
        lines.append("  <details>")
        for problem in problems:
            lines += [
                f'    <field name="{escape_attribute(problem["path"] or "output")}">',
                f"      <expected>{escape_text(problem['expected'])}</expected>",
                f"      <received>{escape_text(problem['received'])}</received>",
                "    </field>",
            ]
        lines.append("  </details>")
    lines += [
        "  <instruction>Please provide the output again in the correct format.</instruction>",
        "</error>",
    ]
    return "\n".join(lines)
