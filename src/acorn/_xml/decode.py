"""XML back to values: what a model wrote becomes JSON by the schema, and Pydantic judges the rest.

The tree says what stands where; the schema says what it means: whether an element is a list, an object or
text, whether `5` is a number or a word. A value that does not fit is passed on as the text it is, so that
the error names it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from pydantic import BaseModel
from pydantic_core import from_json, to_json

from acorn._json import compact
from acorn._schema.generate import JsonSchema, resolve
from acorn._schema.shape import Shape
from acorn._xml.tree import Element, check_bounds, parse
from acorn.errors import ParseError

_INTEGER = re.compile(r"[+-]?[0-9]{1,4000}")
_FENCE = re.compile(r"\s*```\s*$")


def decode(source: str, shape: Shape, root: str) -> BaseModel:
    """The instance in the last outermost `root` element; a `ValidationError` where it does not fit."""
    data = read(source, shape.xml_schema, root)
    return shape.schema.model_validate_json(to_json(data, inf_nan_mode="constants"), by_alias=True, by_name=True)


def read(source: str, schema: JsonSchema, root: str) -> Any:
    """The last outermost `root` element as JSON data by the schema."""
    check_bounds(source)
    begin, stop = _find(source, root)
    found = parse(source, begin, stop).children
    if not found or found[0].name != root:
        raise ParseError(f"The reply's <{root}> element cannot be read.", raw_output=source)
    return _Reader(source, schema).convert(found[0], schema)[0]


def _find(source: str, root: str) -> tuple[int, int]:
    """Where the answer stands among prose and code fences.

    A mention of the tag in prose is never closed, so a closed element wins over an open one before it;
    an open one behind all others is an answer that was cut off.
    """
    tag = re.compile(rf"<(/?){re.escape(root)}(?=[\s/>])[^<>]*>")
    opened: list[int] = []
    closed: list[tuple[int, int]] = []
    for found in tag.finditer(source):
        if not found[1] and not found[0].endswith("/>"):
            opened.append(found.start())
            continue
        if found[1] and not opened:
            continue
        begin = opened.pop() if found[1] else found.start()
        while closed and closed[-1][0] > begin:  # what lies inside is not outermost
            closed.pop()
        closed.append((begin, found.end()))
    if opened and (not closed or opened[-1] > closed[-1][1]):
        fence = _FENCE.search(source)
        return opened[-1], fence.start() if fence else len(source)
    if not closed:
        raise ParseError(f"The reply holds no <{root}> element.", raw_output=source)
    return closed[-1]


class _Reader:
    def __init__(self, source: str, top: JsonSchema) -> None:
        self.source = source
        self.top = top
        # Unions ask for the same element under many schemas; without a memory that is exponential.
        self.known: dict[tuple[int, int], tuple[Any, float]] = {}

    def convert(self, element: Element, node: JsonSchema) -> tuple[Any, float]:
        """The value, and how badly the element fits the schema: 0 is exactly."""
        while "$ref" in node:
            node = resolve(node["$ref"], self.top)
        key = (id(element), id(node))
        if key not in self.known:
            self.known[key] = self._convert(element, node)
        return self.known[key]

    def _convert(self, element: Element, node: JsonSchema) -> tuple[Any, float]:
        if members := node.get("anyOf") or node.get("oneOf"):
            return self._union(element, members)
        if "const" in node:
            return self._one_of(element, [node["const"]])
        if "enum" in node:
            return self._one_of(element, node["enum"])
        kind = node.get("type")
        if kind == "object" or "properties" in node:
            return self._object(element, node)
        if kind == "array":
            return self._array(element, node)
        if kind is None:
            return self._anything(element, node)
        return _scalar(element.text(self.source), str(kind))

    def _union(self, element: Element, members: list[JsonSchema]) -> tuple[Any, float]:
        """The member that fits best; of equals, the first."""
        return min((self.convert(element, member) for member in members), key=lambda found: found[1])

    def _one_of(self, element: Element, values: list[Any]) -> tuple[Any, float]:
        text = element.text(self.source)
        for candidate in (text, text.strip()):
            for value in values:
                if candidate == (value if isinstance(value, str) else compact(value)):
                    return value, 0
        return text, 50

    def _object(self, element: Element, node: JsonSchema) -> tuple[Any, float]:
        if not element.children and (found := self._inline_json(element, dict)) is not None:
            return found, 1
        properties: JsonSchema = node.get("properties", {})
        others = _others(node)
        value: dict[str, Any] = {}
        misfit = 0.0 if element.children or not element.text(self.source).strip() else 50.0
        for child in element.children:
            name = child.attributes.get("key", child.name) if child.name == "entry" else child.name
            schema = properties.get(name, others)
            found, cost = self.convert(child, schema if isinstance(schema, dict) else {})
            misfit += cost
            if name not in properties and schema is None:
                misfit += 10
            earlier = value.get(name)
            value[name] = earlier + found if isinstance(earlier, list) and isinstance(found, list) else found
        for name in node.get("required", []):
            if name not in value:
                if _allows_null(properties.get(name, {}), self.top):
                    value[name] = None  # None is left out when it is written
                else:
                    misfit += 20
        return value, misfit

    def _array(self, element: Element, node: JsonSchema) -> tuple[Any, float]:
        prefix: list[JsonSchema] = node.get("prefixItems", [])
        if not element.children:
            text = element.text(self.source)
            if not text.strip():
                return [], 20 if prefix else 0
            found = self._inline_json(element, list)
            return (found, 1) if found is not None else ([text], 30)
        value: list[Any] = []
        misfit = 0.0 if len(prefix) in (0, len(element.children)) else 20.0
        for index, child in enumerate(element.children):
            schema = prefix[index] if index < len(prefix) else node.get("items") or {}
            found, cost = self.convert(child, schema)
            value.append(found)
            misfit += cost
        return value, misfit

    def _anything(self, element: Element, node: JsonSchema) -> tuple[Any, float]:
        """Where the schema says nothing, the tags do."""
        if not element.children:
            return element.text(self.source), 1
        if all(child.name == "item" for child in element.children):
            return self._array(element, {})
        return self._object(element, {"additionalProperties": {}})

    def _inline_json(self, element: Element, kind: type[Any]) -> Any:
        """A container that the model wrote as JSON inside its tag."""
        text = element.text(self.source).strip()
        if not text.startswith("{" if kind is dict else "["):
            return None
        try:
            found = from_json(text)
        except ValueError:
            return None
        return found if isinstance(found, kind) else None


def _others(node: JsonSchema) -> Any:
    """The schema of keys that are not listed, or None where they are not foreseen."""
    values = node.get("additionalProperties")
    if isinstance(values, dict) or values is True:
        return values if isinstance(values, dict) else {}
    patterns: Iterable[Any] = node.get("patternProperties", {}).values()
    return next(iter(patterns), None)


def _allows_null(node: JsonSchema, top: JsonSchema) -> bool:
    while "$ref" in node:
        node = resolve(node["$ref"], top)
    return node.get("type") == "null" or any(_allows_null(member, top) for member in node.get("anyOf", []))


def _scalar(text: str, kind: str) -> tuple[Any, float]:
    """Text as one of JSON's simple types; what does not fit stays text.

    In a union an exact number, boolean or null comes before text, and text before a loose reading.
    """
    word = text.strip()
    if kind == "string":
        return text, 1 if text else 2
    if kind == "null":
        return (None, 1.5) if not word else (None, 3) if word in ("null", "None") else (text, 50)
    if kind == "boolean":
        if word.lower() in ("true", "false"):
            return word.lower() == "true", 0 if word == text else 2
    elif kind == "integer":
        if _INTEGER.fullmatch(word):
            return int(word), 0 if str(int(word)) == text else 2
    elif kind == "number":
        try:
            number = float(word)
        except ValueError:
            return text, 50
        if _INTEGER.fullmatch(word) and word == text:
            return int(word), 0.5
        return number, 0 if compact(number) == text else 2
    return text, 50
