"""Encoding of values as XML, with two spaces per level and all user text escaped.

Pydantic first converts a value to JSON data, so that dates, enums and values with custom serializers have the same text
as in JSON. The names of list items and the descriptions of fields come from the classes of the original value. The
first message of a run and the context blocks contain this XML.

The escaping functions process every text from a user or a model before it becomes part of an XML document.

The module also creates two other documents. The skeleton is an empty XML form of an output, for a model that acorn
cannot force to call `__finish__`. The validation document reports validation errors to the model. Requests contain all
of these texts, so a change of a text changes the request.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, fields, is_dataclass
from functools import lru_cache
from typing import Any, Literal, NamedTuple
from xml.parsers import expat

from pydantic import BaseModel, RootModel
from pydantic_core import to_json

from acorn._formats.json import (
    PLACEHOLDER_KEY,
    ContentPart,
    PartCollector,
    field_values,
    is_root_model,
    items_of,
    to_json_data,
)
from acorn._formats.schema.generate import JsonSchema, additional_schema, resolve_ref
from acorn._formats.schema.problems import MAX_PROBLEMS, Problem
from acorn._formats.schema.shape import fields_of
from acorn.errors import AcornError
from acorn.types import JsonObject, JsonValue, is_json_list, is_json_object

# XML 1.0 forbids most control characters, surrogates and two other code points, also as character references.
FORBIDDEN_CHARACTERS = "\x00-\x08\x0b\x0c\x0e-\x1f\ud800-\udfff\ufffe\uffff"
FORBIDDEN_CHARACTER = re.compile(f"[{FORBIDDEN_CHARACTERS}]")
_MARKUP = {"&": "&amp;", "<": "&lt;", ">": "&gt;"}  # `&` must be first, because all references contain this character.
_QUOTE = {'"': "&quot;"}
# XML parsers replace \r with \n in text, and all whitespace with spaces in attributes.
_RETURN = {"\r": "&#13;"}
_WHITESPACE = {**_RETURN, "\n": "&#10;", "\t": "&#9;"}
_IN_TEXT = tuple((_MARKUP | _RETURN).items())
_IN_ATTRIBUTE = tuple((_MARKUP | _QUOTE | _WHITESPACE).items())
_ANYWHERE = tuple((_MARKUP | _QUOTE | {"'": "&apos;"}).items())
_ASCII_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*")
_NO_MARKUP = re.compile(r"[\w.\-]+")


def escape_comment(text: str) -> str:
    """Insert a space into each double hyphen of a text for an XML comment, because comments cannot contain `--`."""
    text = FORBIDDEN_CHARACTER.sub("\ufffd", text).replace("\r", "\n")
    while "--" in text:
        text = text.replace("--", "- -")
    return text


def _escape(text: str, references: tuple[tuple[str, str], ...]) -> str:
    for character, reference in references:
        if character in text:  # A search is faster than `replace`, which most texts do not need.
            text = text.replace(character, reference)
    # XML allows all printable characters, and `isprintable` is faster than the regular expression.
    return text if text.isprintable() else FORBIDDEN_CHARACTER.sub("\ufffd", text)


def escape_text(text: str) -> str:
    """Escape text for use between the tags of an element."""
    return _escape(text, _IN_TEXT)


def escape_attribute(text: str) -> str:
    """Escape text for use as an attribute value in double quotes."""
    return _escape(text, _IN_ATTRIBUTE)


def escape_xml(text: str) -> str:
    """Return a text with `& < > " '` escaped, and with U+FFFD in place of characters that XML forbids."""
    # The result does not protect line breaks in attributes, so the parser must not normalize whitespace.
    return _escape(text, _ANYWHERE)


@lru_cache(maxsize=4096)
def is_xml_name(text: str) -> bool:
    """Return True if every XML parser accepts the text as an element name.

    A name with a colon is not accepted, because parsers treat the colon as the end of a namespace prefix. The editions
    of XML differ for non-ASCII names, so the function tests these names with `expat`, which is a strict parser.
    """
    if _ASCII_NAME.fullmatch(text):
        return True
    if text.isascii() or not _NO_MARKUP.fullmatch(text):
        return False
    try:
        expat.ParserCreate("utf-8").Parse(f"<{text}/>".encode(), True)
    except (expat.ExpatError, UnicodeEncodeError):
        return False
    return True


# Encoding of values.

DescriptionFormat = Literal["attribute", "comment"]

MAX_DEPTH = 128
"""The maximum nesting depth. A deeper value is usually circular, and a model could not use it."""

_JOIN_LINES = 500
"""The number of list lines that are joined to one string at a time. If thousands of small strings existed until the end
of a long document, the allocator would request new memory pages for every message."""


@dataclass(frozen=True)
class XmlStyle:
    """The settings of a module that control the XML of its input."""

    descriptions: bool = True
    description_format: DescriptionFormat = "attribute"
    include_none: bool = False


def encode_xml(
    value: object,
    root: str,
    style: XmlStyle | None = None,
    parts: PartCollector | None = None,
    unserializable: list[object] | None = None,
    field: str = "",
) -> str:
    """Encode a value as one XML element with the name `root`, without a trailing newline.

    If `field` is the name of a field of the value, the element contains only the content of this field.

    The function adds each content part, such as an image, to `parts`. In the XML, an empty element with the number of
    the content part replaces it, such as `<photo media="1" kind="image" />`. The function appends each object that it
    can only represent as a memory address to `unserializable`.
    """
    lines: list[str] = []
    data = to_json_data(value, unserializable, parts or PartCollector(), is_strict=True)
    writer, tag = _XmlWriter(style or XmlStyle(), lines), _name_tag(root)
    if field and is_json_object(data):
        info = fields_of(type(value))[field]
        tag = field_tag(root, info.description, writer.format)
        data, value = data.get(field), field_values(value)[field]
        if data is None:
            data = _special_float(value)
    if tag.comment:
        lines.append(tag.comment)
    writer.write_element(tag.start, tag.end, data, value, 0)
    return "\n".join(lines)


class _ElementTag(NamedTuple):
    """The start tag and the end tag of an element. The start tag is stored without its final `>` or ` />`."""

    start: str
    end: str
    comment: str = ""


class _XmlWriter:
    def __init__(self, style: XmlStyle, lines: list[str]) -> None:
        self.include_none = style.include_none
        self.format: DescriptionFormat | None = style.description_format if style.descriptions else None
        self.lines = lines

    def write_element(self, start: str, end: str, data: JsonValue, source: object, depth: int) -> None:
        """Append the lines of one element. `data` is its JSON data, and `source` is the original object."""
        if isinstance(data, str):
            text = escape_text(data)
        elif isinstance(data, dict | list):
            if data and self._write_nested(start, end, data, source, depth):
                return
            text = ""
        else:
            text = "" if data is None else to_json(data, inf_nan_mode="constants").decode()
        self.lines.append(f"{'  ' * depth}{start}>{text}{end}" if text else f"{'  ' * depth}{start} />")

    def _write_nested(self, start: str, end: str, data: JsonObject | list[Any], source: object, depth: int) -> bool:
        """Append the lines of an element with children and return True, or return False if it has no children.

        Without children, the method appends no lines. Fields that are None do not count as children.
        """
        if depth >= MAX_DEPTH:
            raise AcornError(
                f"A value is nested more than {MAX_DEPTH} levels deep, or contains itself. Pass a flatter value."
            )
        while is_root_model(source):
            source = source.root
        lines, indent = self.lines, "  " * depth
        if isinstance(data, dict) and PLACEHOLDER_KEY in data and isinstance(source, ContentPart):
            attributes = [f' {name}="{escape_attribute(str(value))}"' for name, value in data.items()]
            lines.append(f"{indent}{start}{''.join(attributes)} />")
            return True
        lines.append(f"{indent}{start}>")
        opened = len(lines)
        if isinstance(data, dict):
            self._write_members(data, source, depth + 1)
        else:
            self._write_items(data, source, depth + 1)
        if len(lines) == opened:
            lines.pop()
            return False
        lines.append(indent + end)
        return True

    def _write_members(self, data: JsonObject, source: object, depth: int) -> None:
        """Append the lines of all fields of an object or all entries of a dict."""
        lines, indent = self.lines, "  " * depth
        kind: Any = type(source)
        field_tags = _tags(kind, self.format)
        is_object = field_tags is not None
        tags = field_tags or {}
        originals = field_values(source) if is_object else _originals_by_key(source, data)
        for name, item in data.items():
            start, end, comment = tags.get(name) or _name_tag(name)
            if item is None:
                item = _special_float(originals.get(name))
                if item is None and is_object and not self.include_none:
                    continue
            if comment:
                lines.append(indent + comment)
            if type(item) is str and item:
                lines.append(f"{indent}{start}>{escape_text(item)}{end}")
            else:
                self.write_element(start, end, item, originals.get(name), depth)

    def _write_items(self, data: list[Any], source: object, depth: int) -> None:
        lines, indent = self.lines, "  " * depth
        first = len(lines)
        for item, origin in zip(data, _originals(source, data), strict=True):
            if type(item) is str and item:
                lines.append(f"{indent}<item>{escape_text(item)}</item>")
            else:
                kind: Any = type(origin)
                tag = _item_tag(kind)
                value = _special_float(origin) if item is None else item
                self.write_element(tag.start, tag.end, value, origin, depth)
            if len(lines) - first > _JOIN_LINES:
                lines[first:] = ["\n".join(lines[first:])]
                first += 1


def _special_float(origin: object) -> float | None:
    """Return the original value if it is NaN or infinity, and otherwise None.

    The caller uses this value in place of null, because Pydantic serializes NaN and infinity as null in fields without
    a declared type.
    """
    return origin if type(origin) is float and not math.isfinite(origin) else None


def _originals(source: object, data: list[Any]) -> list[object]:
    """Return the original Python objects of the list items in `data`, or `data` itself if they cannot be determined."""
    originals = source if is_json_list(source) and type(source) is list else items_of(source)
    return data if originals is None or len(originals) != len(data) else originals


_dict_values = dict[str, Any].values  # A subclass of dict may override `values`.


def _originals_by_key(source: object, data: JsonObject) -> JsonObject:
    """Return a dict that maps the JSON keys in `data` to the original Python values of the dict `source`.

    The keys of `source` may differ from the JSON keys, because the number 1 becomes the JSON key "1". Therefore the
    function uses the order of the entries, which is the same in both dicts.
    """
    originals = list(_dict_values(source)) if is_json_object(source) else []
    return dict(zip(data, originals, strict=True)) if len(originals) == len(data) else data


@lru_cache(maxsize=1024)
def _tags(cls: type[Any], format: DescriptionFormat | None) -> dict[str, _ElementTag] | None:
    """Return a dict that maps the field names of a class to XML tags, or None if the class has no fields."""
    if issubclass(cls, RootModel) or not (issubclass(cls, BaseModel) or is_dataclass(cls)):
        return None
    try:
        described: JsonObject = dict(fields_of(cls))
    except NameError:  # A type hint of a dataclass cannot be resolved, but the names of its fields are available.
        described = dict.fromkeys(field.name for field in fields(cls))
    computed = getattr(getattr(cls, "__pydantic_decorators__", None), "computed_fields", {})
    described.update({name: decorator.info for name, decorator in computed.items()})
    return {name: field_tag(name, getattr(field, "description", None), format) for name, field in described.items()}


def field_tag(name: str, description: str | None, format: DescriptionFormat | None) -> _ElementTag:
    """Return the XML tag of a field. `format` adds the description as an attribute or as a comment, or omits it."""
    tag = _name_tag(name)
    if not description or format is None:
        return tag
    if format == "comment":
        return _ElementTag(tag.start, tag.end, f"<!-- {escape_comment(description)} -->")
    return _ElementTag(f'{tag.start} description="{escape_attribute(description)}"', tag.end)


def _name_tag(name: str) -> _ElementTag:
    if is_xml_name(name):
        return _ElementTag(f"<{name}", f"</{name}>")
    return _ElementTag(f'<entry key="{escape_attribute(name)}"', "</entry>")


@lru_cache(maxsize=1024)
def _item_tag(cls: type[Any]) -> _ElementTag:
    is_object = (issubclass(cls, BaseModel) or is_dataclass(cls)) and not issubclass(cls, RootModel)
    name = snake_case(cls.__name__) if is_object else "item"
    return _name_tag(name if is_xml_name(name) else "item")


def snake_case(name: str) -> str:
    """Convert a class name to snake case, such as `WebSource` to `web_source` and `HTTPSource` to `http_source`."""
    name = re.sub(r"([A-Z]+)([A-Z][a-z])", r"\1_\2", name)
    return re.sub(r"([a-z0-9])([A-Z])", r"\1_\2", name).lower()


_MAX_LINES = 2000
"""The number of lines after which the skeleton adds no more levels. Without a limit, the skeleton of classes that
contain each other could become very long."""


def skeleton(schema: JsonSchema, root: str) -> str:
    """Return an empty XML form of an object schema, which a model fills in: one empty element for each field.

    The elements are nested like the fields, and they have the field descriptions as attributes.
    """
    lines: list[str] = []

    def write(tag: _ElementTag, node: JsonSchema, depth: int, seen: tuple[str, ...]) -> None:
        node, seen, is_repeated = _resolve_node(node, schema, seen)
        children = [] if is_repeated or len(lines) > _MAX_LINES else _children(node)
        start = f"{'  ' * depth}{tag.start}>"
        if not children:
            lines.append(start + tag.end)
            return
        lines.append(start)
        for child_tag, child in children:
            write(child_tag, child, depth + 1, seen)
        lines.append("  " * depth + tag.end)

    write(_name_tag(root), schema, 0, ())
    return "\n".join(lines)


def _children(node: JsonSchema) -> list[tuple[_ElementTag, JsonSchema]]:
    """Return the tags and the schemas of the elements inside a list or an object, or [] for any other value."""
    if node.get("type") == "array":
        items: list[JsonSchema] = node.get("prefixItems") or [node.get("items") or {}]
        return [(_name_tag("item"), item) for item in items]
    if properties := node.get("properties"):
        return [(field_tag(name, field.get("description"), "attribute"), field) for name, field in properties.items()]
    values = additional_schema(node)
    return [] if values is None else [(_ElementTag('<entry key="..."', "</entry>"), values)]


def _resolve_node(node: JsonSchema, top: JsonSchema, seen: tuple[str, ...]) -> tuple[JsonSchema, tuple[str, ...], bool]:
    """Follow references and choose union members until the schema node is neither a reference nor a union.

    Return (node, followed references, whether the references are circular). Of a union, the function chooses the first
    member that is not null.
    """
    if "$ref" in node:
        ref: str = node["$ref"]
        if ref in seen:
            return node, seen, True
        return _resolve_node(resolve_ref(ref, top), top, (*seen, ref))
    members: list[JsonSchema] = node.get("anyOf") or node.get("oneOf") or []
    if not members:
        return node, seen, False
    first = next((member for member in members if member.get("type") != "null"), members[0])
    return _resolve_node(first, top, seen)


VALIDATION_ERROR_START = '<error type="validation">'
"""The first line of the validation document. It identifies validation documents in the conversation."""


def error_document(problems: Sequence[Problem], message: str = "Output validation failed") -> str:
    """Return the XML document that reports validation errors to the model.

    The document has one `<field>` element for each of the first problems, with the expected and the received value.
    """
    lines = [VALIDATION_ERROR_START, f"  <message>{escape_text(message)}</message>"]
    if problems:
        lines.append("  <details>")
        for problem in problems[:MAX_PROBLEMS]:
            lines += [
                f'    <field name="{escape_attribute(problem["path"] or "output")}">',
                f"      <expected>{escape_text(problem['expected'])}</expected>",
                f"      <received>{escape_text(problem['received'])}</received>",
                "    </field>",
            ]
        if (others := len(problems) - MAX_PROBLEMS) > 0:
            lines.append(f"    <others>{others:,} more</others>")
        lines.append("  </details>")
    lines += ["  <instruction>Please provide the output again in the correct format.</instruction>", "</error>"]
    return "\n".join(lines)
