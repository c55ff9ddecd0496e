"""Where the answer stands in a reply: the last outermost element of its name, among prose and code fences.

XML back to values: what a model wrote becomes JSON by the schema, and Pydantic judges the rest.

The tree says what stands where; the schema says what it means: whether an element is a list, an object or
text, whether `5` is a number or a word. A value that does not fit is passed on as the text it is, so that
the error names it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, ValidationError
from pydantic_core import from_json, to_json

from acorn._formats.json import replace_surrogates, to_compact_json
from acorn._formats.schema.generate import JsonSchema, follow_refs
from acorn._formats.schema.shape import Shape
from acorn._formats.xml.parse import MAX_DEPTH, Element, check_size, parse_xml, raise_dtd, raise_too_deep, unescape
from acorn.errors import ParseError
from acorn.types import JsonObject

_FENCE = "```"
_HALF_TAG = re.compile(r"</[\w.\-]*\s*")


@dataclass(frozen=True, slots=True)
class _FoundTag:
    begin: int
    end: int
    kind: str
    """`open`, `close` or `empty`."""
    filled: bool
    """A field or JSON comes next; what follows a tag that is only spoken of is words."""


def find_answer(source: str, root: str) -> tuple[int, int]:
    """Where the answer begins, and where it ends at the latest.

    Models speak of `<output>` before, behind and inside their answer. So a tag with fields behind it comes
    before one without, and a closed element before an open one in front of it; an open one behind all
    others is an answer that was cut off.
    """
    tags = list(_tags(source, root))
    found = _outermost(tags, only_filled=True) or _outermost(tags, only_filled=False)
    if found is None:
        raise ParseError(f"The reply holds no <{root}> element.", raw_output=source)
    begin, end = found
    return begin, _cut(source, begin) if end is None else end


def _tags(source: str, root: str) -> Iterator[_FoundTag]:
    """The tags of that name outside comments and CDATA."""
    name = re.escape(root)
    pattern = re.compile(
        rf"<(?P<slash>/?){name}(?=[\s/>])[^<>]*>(?=(?P<filled>\s*(?!</{name}[\s>])[<{{])?)"
        r"|(?P<comment><!--)|(?P<cdata><!\[CDATA\[)|(?P<dtd>(?i:<!DOCTYPE|<!ENTITY))"
    )
    last_cdata = source.rfind("]]>")
    behind = 0
    for found in pattern.finditer(source):
        begin, end = found.span()
        if begin < behind:
            continue
        if found["comment"]:
            # By the standard it ends at its first double hyphen; a `<!--` in prose is none.
            hyphens = source.find("--", end)
            behind = hyphens + 3 if source.startswith("-->", hyphens) else behind
        elif found["cdata"]:
            behind = source.find("]]>", end) if end <= last_cdata else behind
        elif found["dtd"]:
            raise_dtd(source)
        else:
            kind = "close" if found["slash"] else "empty" if found[0].endswith("/>") else "open"
            yield _FoundTag(begin, end, kind, filled=bool(found["filled"]))


def _outermost(tags: Sequence[_FoundTag], *, only_filled: bool) -> tuple[int, int | None] | None:
    """The last element that lies in no other; its end is None where it was never closed."""
    opened: list[_FoundTag] = []
    closed: list[tuple[int, int]] = []
    for tag in tags:
        if tag.kind == "open":
            opened.append(tag)
            continue
        if tag.kind == "close" and not opened:
            continue
        first = opened.pop() if tag.kind == "close" else tag
        if only_filled and (tag.kind == "empty" or not first.filled):
            continue
        while closed and closed[-1][0] > first.begin:
            closed.pop()
        closed.append((first.begin, tag.end))
    opened = [tag for tag in opened if tag.filled or not only_filled]
    if opened and (not closed or opened[-1].begin > closed[-1][1]):
        return opened[-1].begin, None
    return closed[-1] if closed else None


def _cut(source: str, begin: int) -> int:
    """Where an answer ends that has no end: before a closing fence, and before half a closing tag."""
    stop = len(source.rstrip())
    stop = len(source[: stop - len(_FENCE)].rstrip()) if source.endswith(_FENCE, begin, stop) else len(source)
    last = source.rfind("<", begin, stop)
    return last if _HALF_TAG.fullmatch(source, last, stop) else stop


_INTEGER = re.compile(r"[+-]?[0-9]{1,4000}")
_ANYTHING: JsonSchema = {}

# How badly an element fits a schema is a number, and a union takes the member with the smallest. Readings
# that do fit differ by millionths, so that a thousand strings in a list do not outweigh one misfit.
_LIKING = 1e-6
_MISFIT = 50.0
_MARKUP_IN_TEXT = 30.0
_TEXT_AROUND_TAGS = 40.0
_MISSING = 20.0
_UNKNOWN = 10.0

_Reading = tuple[Any, float]


def decode_xml(source: str, shape: Shape, root: str) -> BaseModel:
    """The instance in the last outermost `root` element; a `ValidationError` where it does not fit."""
    text = to_json(read_xml(source, shape.xml_schema, root), inf_nan_mode="constants")
    try:
        return shape.schema.model_validate_json(text, by_alias=False, by_name=True)
    except ValidationError:
        with suppress(ValidationError):  # a model has seen the aliases in the tool's schema
            return shape.schema.model_validate_json(text, by_alias=True, by_name=True)
        raise


def read_xml(source: str, schema: JsonSchema, root: str) -> Any:
    """The last outermost `root` element as JSON data by the schema."""
    check_size(source)
    source = replace_surrogates(source)
    begin, stop = find_answer(source, root)
    found = parse_xml(source, begin, stop).children
    if not found or found[0].name != root:
        raise ParseError(f"The reply's <{root}> element cannot be read.", raw_output=source)
    return _XmlReader(source, schema).convert(found[0], schema)[0]


class _XmlReader:
    def __init__(self, source: str, top: JsonSchema) -> None:
        self.source = source
        self.top = top
        # Unions ask for the same element under many schemas; without a memory that is exponential.
        self.known: dict[tuple[int, int], _Reading] = {}

    def convert(self, element: Element, node: JsonSchema) -> _Reading:
        """The value, and how badly the element fits the schema: 0 is exactly."""
        node = follow_refs(node, self.top)
        key = (id(element), id(node))
        if key not in self.known:
            self.known[key] = self._way(node)(element, node)
        return self.known[key]

    def _way(self, node: JsonSchema) -> Callable[[Element, JsonSchema], _Reading]:
        kind = node.get("type")
        if "anyOf" in node or "oneOf" in node:
            return self._union
        if "const" in node or "enum" in node:
            return self._one_of
        if kind == "object" or "properties" in node:
            return self._object
        if kind == "array":
            return self._array
        return self._anything if kind is None else self._scalar

    def _union(self, element: Element, node: JsonSchema) -> _Reading:
        """The member that fits best; of equals, the first."""
        best: _Reading | None = None
        for member in node.get("anyOf") or node.get("oneOf") or ():
            found = self.convert(element, member)
            if best is None or found[1] < best[1]:
                best = found
        return best or (element.text(self.source), _MISFIT)

    def _scalar(self, element: Element, node: JsonSchema) -> _Reading:
        value, misfit = _scalar(element.text(self.source), str(node["type"]))
        return value, misfit + (_MARKUP_IN_TEXT if element.children else 0)

    def _one_of(self, element: Element, node: JsonSchema) -> _Reading:
        values = [node["const"]] if "const" in node else node["enum"]
        text = element.text(self.source)
        for candidate, cost in ((text, 0.0), (text.strip(), 3 * _LIKING)):
            for value in values:
                if candidate == (value if isinstance(value, str) else "" if value is None else to_compact_json(value)):
                    return value, cost
        return text, _MISFIT

    def _object(self, element: Element, node: JsonSchema) -> _Reading:
        if (found := self._inline_json(element, dict)) is not None:
            return found, 1.5 * _LIKING
        properties: JsonSchema = node.get("properties", {})
        others = additional_schema(node)
        value: JsonObject = {}
        misfit = self._text_around(element)
        for child in element.children:
            name = child.attributes.get("key", child.name) if child.name == "entry" else child.name
            schema = properties.get(name, others)
            found, cost = self.convert(child, schema if isinstance(schema, dict) else _ANYTHING)
            misfit += cost if schema is not None else _UNKNOWN
            misfit += _UNKNOWN if name in value else 5 * _LIKING if properties and name not in properties else 0
            earlier = value.get(name)
            value[name] = earlier + found if isinstance(earlier, list) and isinstance(found, list) else found
        if list(value) == ["item"] and "item" not in properties:
            misfit += 3 * _LIKING  # rather a list
        return value, misfit + self._fill(value, node)

    def _fill(self, value: JsonObject, node: JsonSchema) -> float:
        """Add the required fields that may be None, which is left out in writing; say what the others cost."""
        misfit = 0.0
        for name in node.get("required", []):
            if name in value:
                continue
            if _allows_null(node.get("properties", {}).get(name, {}), self.top):
                value[name] = None
                misfit += 0.1 * _LIKING
            else:
                misfit += _MISSING
        return misfit

    def _array(self, element: Element, node: JsonSchema) -> _Reading:
        if (found := self._inline_json(element, list)) is not None:
            return found, 1.5 * _LIKING
        if not element.children and (text := element.text(self.source)).strip():
            return [text], _MISFIT
        prefix: list[JsonSchema] = node.get("prefixItems", [])
        value: list[Any] = []
        misfit = self._text_around(element)
        if prefix and len(prefix) != len(element.children):
            misfit += _MISSING
        for index, child in enumerate(element.children):
            schema = prefix[index] if index < len(prefix) else node.get("items") or _ANYTHING
            found, cost = self.convert(child, schema)
            value.append(found)
            misfit += cost if child.name == "item" else cost + 2 * _LIKING
        return value, misfit

    def _anything(self, element: Element, node: JsonSchema) -> _Reading:
        """Where the schema says nothing, the tags do."""
        if not element.children:
            return _scalar(element.text(self.source), "string")
        if all(child.name == "item" for child in element.children):
            return self._array(element, _ANYTHING)
        return self._object(element, {"additionalProperties": _ANYTHING})

    def _text_around(self, element: Element) -> float:
        """What text beside the child elements costs: a container has none, but for blanks between them."""
        if not element.children and element.outer > element.inner and not element.text(self.source).strip():
            return 1.2 * _LIKING
        at = element.inner
        for child in element.children:
            if unescape(self.source[at : child.begin]).strip():
                return _TEXT_AROUND_TAGS
            at = max(child.end, child.outer)
        return _TEXT_AROUND_TAGS if unescape(self.source[at : element.outer]).strip() else 0.0

    def _inline_json(self, element: Element, kind: type[Any]) -> Any:
        """A container that the model wrote as JSON inside its tag."""
        opening = "{" if kind is dict else "["
        if element.children and not self.source[element.inner : element.outer].lstrip().startswith(opening):
            return None  # spared the reading of a large text
        text = element.text(self.source).strip()
        if not text.startswith(opening):
            return None
        try:
            found = from_json(text)
        except ValueError:
            return None
        if _is_deep(found, MAX_DEPTH):
            raise_too_deep(self.source)
        return found if isinstance(found, kind) else None


def _is_deep(value: Any, left: int) -> bool:
    inner: Iterable[Any] = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return left < 0 or any(_is_deep(item, left - 1) for item in inner)


def additional_schema(node: JsonSchema) -> JsonSchema | None:
    """The schema of keys that an object's schema does not list, or None where they are not foreseen."""
    found = node.get("additionalProperties", False)
    if found is False:
        found = next(iter(node.get("patternProperties", {}).values()), None)
    return _ANYTHING if found is True else found


def _allows_null(node: JsonSchema, top: JsonSchema) -> bool:
    node = follow_refs(node, top)
    if node.get("type") == "null" or None in node.get("enum", ()):
        return True
    return any(_allows_null(member, top) for member in node.get("anyOf") or node.get("oneOf") or ())


def _scalar(text: str, kind: str) -> _Reading:
    """Text as one of JSON's simple types; what does not fit stays text.

    In a union an exact number, boolean or null comes before text, and text before a loose reading.
    """
    word = text.strip()
    exact, plain, loose = 0.0, _LIKING, 3 * _LIKING
    if kind == "string":
        return text, plain if text else 2 * plain
    if kind == "null":
        if word in ("", "null", "None"):
            return None, loose if word else 1.5 * plain
    elif kind == "boolean":
        if word.lower() in ("true", "false"):
            return word.lower() == "true", exact if text in ("true", "false") else loose
    elif kind == "integer":
        if _INTEGER.fullmatch(word):
            return int(word), exact if str(int(word)) == text else loose
    elif kind == "number":
        if _INTEGER.fullmatch(word):
            return int(word), 0.5 * plain if str(int(word)) == text else loose
        with suppress(ValueError):
            number = float(word)
            return number, exact if to_compact_json(number) == text else loose
    return text, _MISFIT
