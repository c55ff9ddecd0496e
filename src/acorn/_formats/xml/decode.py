"""Decoding of a model's XML answer: finding the answer in the reply, and converting it to a validated value.

The parser converts any text to a tree of elements. Models forget closing tags and write `&` and `<` without escaping
them, so a `<` that does not start a tag is ordinary text. The parser replaces only the five predefined XML entities and
character references. It raises `ParseError` for a DTD, for too many nested elements and for a text that is too long.
The parsing time is linear in the length of the text.

A reply may contain prose and code fences around the answer. The answer is the last outermost element with the expected
name. The schema then determines whether an element is a list, an object or text, and whether `5` is a number or a
string. A value that does not fit the schema stays a string, so that Pydantic reports it in a validation error.

The misfit of an element is a number that grows with each difference between the element and a schema. For a union, the
decoder uses the member with the smallest misfit.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Any, NoReturn

from pydantic import BaseModel, ValidationError
from pydantic_core import from_json, to_json

from acorn._formats.json import read_iterators, replace_surrogates, to_compact_json
from acorn._formats.schema.generate import JsonSchema, additional_schema, follow_refs
from acorn._formats.schema.shape import INPUT, Shape
from acorn.errors import ParseError
from acorn.types import JsonObject, JsonValue, is_json_object

MAX_SIZE = 1_000_000
MAX_DEPTH = 64

_OPENING = re.compile(r"<([^\W\d][\w.\-]*)")
_ATTRIBUTE = re.compile(r"""\s+([^\s=<>"'/]+)\s*=\s*("[^"<]*"|'[^'<]*')""")
_OPENING_END = re.compile(r"\s*(/?)>")
_CLOSING = re.compile(r"</([^\W\d][\w.\-]*)\s*>")
_REFERENCE = re.compile(r"&(?:(lt|gt|amp|quot|apos)|#([0-9]{1,7})|#x([0-9a-fA-F]{1,6}));")
_NAMED = {"lt": "<", "gt": ">", "amp": "&", "quot": '"', "apos": "'"}
_LINE_BREAK = re.compile("\r\n?")
# The parser searches no tags inside these sections. A CDATA section is text without escapes.
_CDATA, _COMMENT, _INSTRUCTION = "<![CDATA[", "<!--", "<?"
_ENDS = {_CDATA: "]]>", _COMMENT: "-->", _INSTRUCTION: "?>"}


@dataclass(slots=True)
class Element:
    """A parsed XML element with its attributes, its children and its positions in the source text."""

    name: str
    attributes: dict[str, str]
    start: int
    """The position of the opening tag."""
    content_start: int
    content_end: int = -1
    end: int = -1
    """The position after the closing tag, or -1 if the element is not closed."""
    children: list[Element] = field(default_factory=list["Element"])

    def text(self, source: str) -> str:
        """Return the unescaped content of the element as text, including the tags of its children."""
        return unescape(source[self.content_start : self.content_end])


def raise_too_deep(source: str) -> NoReturn:
    """Raise `ParseError` for an XML answer that nests elements, or JSON inside an element, too deeply."""
    raise ParseError(
        f"The XML is nested more than {MAX_DEPTH} levels deep. Give a flatter answer, and write `<` in text as `&lt;`.",
        raw_output=source[:1000],
    )


def raise_dtd(source: str) -> NoReturn:
    """Raise `ParseError` for a DTD, because its entities could include files or expand without limit."""
    raise ParseError("The XML contains a DTD, which acorn does not read. Leave it out.", raw_output=source[:1000])


def parse_xml(source: str, start: int, stop: int) -> Element:
    """Parse the source text from `start` to `stop`, and return a root element without a name.

    The children of the root element are the outermost elements of the text.
    """
    top = Element("", {}, start, start)
    open_elements = [top]
    for token in _tokens(source, start, stop):
        if isinstance(token, Element):
            if len(open_elements) > MAX_DEPTH:
                raise_too_deep(source)
            open_elements[-1].children.append(token)
            if token.end < 0:
                open_elements.append(token)
        else:
            _close(open_elements, token)
    for element in open_elements:
        element.content_end = stop
    return top


def _close(open_elements: list[Element], token: re.Match[str]) -> None:
    """Close the innermost open element that has the name of a closing tag, and all open elements inside this element.

    If no open element has this name, the closing tag is ordinary text.
    """
    name = token[1]
    for level in range(len(open_elements) - 1, 0, -1):
        if open_elements[level].name == name:
            for element in open_elements[level:]:
                element.content_end = token.start()
            open_elements[level].end = token.end()
            del open_elements[level:]
            return


def _tokens(source: str, at: int, stop: int) -> Iterator[Element | re.Match[str]]:
    # If a section has no end, do not search its end again at each start: the total time would be quadratic.
    unclosed: set[str] = set()
    while (at := source.find("<", at, stop)) >= 0:
        if closing := _CLOSING.match(source, at, stop):
            yield closing
            at = closing.end()
        elif element := _parse_opening(source, at, stop):
            yield element
            at = element.content_start
        else:
            at = _skip(source, at, stop, unclosed)


def _skip(source: str, at: int, stop: int, unclosed: set[str]) -> int:
    """Return the position at which the parser continues after a `<` that does not start a tag.

    The position is after the end of a comment, CDATA section or processing instruction, and otherwise after the `<`.
    """
    for mark, end in _ENDS.items():
        if source.startswith(mark, at) and mark not in unclosed:
            end_position = source.find(end, at + len(mark), stop)
            if end_position >= 0:
                return end_position + len(end)
            unclosed.add(mark)
    head = source[at : at + 9].upper()
    if head.startswith(("<!DOCTYPE", "<!ENTITY")):
        raise_dtd(source)
    return at + 1


def _parse_opening(source: str, at: int, stop: int) -> Element | None:
    head = _OPENING.match(source, at, stop)
    if head is None:
        return None
    attributes: dict[str, str] = {}
    position = head.end()
    while attribute := _ATTRIBUTE.match(source, position, stop):
        attributes[attribute[1]] = unescape(attribute[2][1:-1], sections=False)
        position = attribute.end()
    tail = _OPENING_END.match(source, position, stop)
    if tail is None:
        return None
    element = Element(head[1], attributes, at, tail.end())
    if tail[1]:
        element.content_end = element.end = tail.end()
    return element


def unescape(text: str, *, sections: bool = True) -> str:
    """Replace character references in XML text with characters, and normalize line breaks.

    If `sections` is True, the function also removes comments and replaces CDATA sections with their content.
    """
    if "\r" in text:
        text = _LINE_BREAK.sub("\n", text)
    if sections and ("<!--" in text or _CDATA in text):
        return _unescape_sections(text)
    return _REFERENCE.sub(_character, text) if "&" in text else text


def _unescape_sections(text: str) -> str:
    texts: list[str] = []
    unclosed: set[str] = set()
    done = at = 0
    while (at := text.find("<", at)) >= 0:
        after = _skip(text, at, len(text), unclosed)
        if after == at + 1 or text.startswith(_INSTRUCTION, at):
            at = after
            continue
        texts.append(unescape(text[done:at], sections=False))
        if text.startswith(_CDATA, at):
            texts.append(text[at + len(_CDATA) : after - len(_ENDS[_CDATA])])
        done = at = after
    texts.append(unescape(text[done:], sections=False))
    return "".join(texts)


def _character(reference: re.Match[str]) -> str:
    if reference[1]:
        return _NAMED[reference[1]]
    code = int(reference[2]) if reference[2] else int(reference[3], 16)
    is_allowed = code in (9, 10, 13) or 0x20 <= code < 0xD800 or 0xE000 <= code < 0xFFFE or 0x10000 <= code < 0x110000
    return chr(code) if is_allowed else "\ufffd"


# The position of the answer in a reply.

_FENCE = "```"
_Span = tuple[int, int | None, bool]
"""The start and the end position of an element, and whether a code fence is around it. The end is None if the element
has no closing tag."""
_HALF_TAG = re.compile(r"</[\w.\-]*\s*")


def find_answer(source: str, root: str, *, is_text: bool = False) -> tuple[int, int]:
    """Return the start and the end position of the answer in a reply.

    Models mention `<output>` in the prose before, after and inside their answer. Therefore the search prefers a tag
    with fields to a tag without fields. It prefers a closed element to an element that starts earlier and has no end.
    An element in a code fence is the answer only if no other element is. If `is_text` is True, the answer may be text
    without fields. If the last element has no end, the reply was cut off. The end position is then the end of the
    usable text.
    """
    tags = list(_tags(source, root, is_text=is_text))
    span = _last_outermost_span(tags, only_filled=True, is_text=is_text)
    span = span or _last_outermost_span(tags, only_filled=False, is_text=is_text)
    if span is None:
        raise ParseError(
            f"The response has no <{root}> element. Write the answer inside <{root}>...</{root}>.", raw_output=source
        )
    start, end, _ = span
    return start, _cut_off_end(source, start) if end is None else end


def _tags(source: str, root: str, *, is_text: bool) -> Iterator[re.Match[str]]:
    """Yield the matches of all code fences, and of all tags `root` that are outside of comments and CDATA sections.

    The group `filled` is not None if another tag or JSON follows, or with `is_text` any text except a single backtick.
    After a tag that the prose only mentions, words follow.
    """
    name = re.escape(root)
    filled = r"(?!</)(?:[^\s`]|```)" if is_text else rf"(?!</{name}[\s>])[<{{]"
    pattern = re.compile(
        rf"<(?P<slash>/?){name}(?=[\s/>])[^<>]*>(?=(?P<filled>\s*{filled})?)"
        r"|(?P<comment><!--)|(?P<cdata><!\[CDATA\[)|(?P<dtd>(?i:<!DOCTYPE|<!ENTITY))|(?P<fence>`{3,}|~{3,})"
    )
    last_cdata = source.rfind("]]>")
    skip_until = 0
    for match in pattern.finditer(source):
        start, end = match.span()
        if start < skip_until:
            continue
        if match["comment"]:
            # XML allows a double hyphen only at the end of a comment. If it is elsewhere, `<!--` is prose.
            hyphens = source.find("--", end)
            skip_until = hyphens + 3 if source.startswith("-->", hyphens) else skip_until
        elif match["cdata"]:
            skip_until = source.find("]]>", end) if end <= last_cdata else skip_until
        elif match["dtd"]:
            raise_dtd(source)
        else:
            yield match


def _last_outermost_span(tags: Sequence[re.Match[str]], *, only_filled: bool, is_text: bool) -> _Span | None:
    """Return the last `root` element that is not inside another `root` element, preferably one outside of code fences.

    The result is None if the reply has no such element.
    """
    opened: list[tuple[re.Match[str], bool]] = []
    closed: list[tuple[int, int, bool]] = []
    depth, fence = 0, ""
    for tag in tags:
        if mark := tag["fence"]:
            if not depth:  # A fence inside an element is part of the answer.
                fence = mark if not fence else "" if mark.startswith(fence) else fence
            continue
        is_empty = tag[0].endswith("/>")
        counts = not only_filled or tag["filled"] is not None
        if not tag["slash"] and not is_empty:
            opened.append((tag, bool(fence)))
            depth += counts
            continue
        if tag["slash"] and not opened:
            continue
        first, is_fenced = opened.pop() if tag["slash"] else (tag, bool(fence))
        if only_filled and (is_empty or first["filled"] is None):
            continue
        depth -= bool(tag["slash"])
        while closed and closed[-1][0] > first.start():
            closed.pop()
        start, end, source = first.start(), tag.end(), tag.string
        is_quoted = source[max(0, start - 1) : start] == source[end : end + 1] == "`"  # A single backtick quotes, too.
        closed.append((start, end, is_fenced or is_quoted))
    spans: list[_Span] = [*closed]
    opened = [(tag, is_fenced) for tag, is_fenced in opened if tag["filled"] is not None or not only_filled]
    if opened and (not closed or (opened[-1][0].start() > closed[-1][1] and not is_text)):
        spans.append((opened[-1][0].start(), None, opened[-1][1]))
    outside = [span for span in spans if not span[2]]
    return (outside or spans)[-1] if spans else None


def _cut_off_end(source: str, start: int) -> int:
    """Return the end position of an answer that was cut off before its closing tag.

    A code fence and an incomplete closing tag at the end of the reply do not belong to the answer.
    """
    stop = len(source.rstrip())
    stop = len(source[: stop - len(_FENCE)].rstrip()) if source.endswith(_FENCE, start, stop) else len(source)
    last = source.rfind("<", start, stop)
    return last if _HALF_TAG.fullmatch(source, last, stop) else stop


# Conversion of elements to values.

_INTEGER = re.compile(r"[+-]?[0-9]{1,4000}")
_ANYTHING: JsonSchema = {}

# The misfit is a number that grows with each difference between an element and a schema. A union uses the member with
# the smallest misfit. Readings that fit the schema differ only by millionths, so that the small numbers of a thousand
# strings in a list are less than one real difference.
_PREFERENCE = 1e-6
_MISFIT = 50.0
_MARKUP_IN_TEXT = 30.0
_TEXT_AROUND_TAGS = 40.0
_MISSING = 20.0
_UNKNOWN = 10.0

_Reading = tuple[Any, float]
"""The value of an element for one schema, and the misfit of the element and this schema."""


def decode_xml(source: str, shape: Shape, root: str, *, trims: bool = False) -> BaseModel:
    """Decode the last outermost element named `root` in a model's reply to an instance of the shape's class.

    If `trims` is True, the function removes whitespace around texts, which models add, and reads the text `null` as
    None in fields that may be None. The function raises `ParseError` if the reply has no such element, and
    `ValidationError` if the value is wrong.
    """
    text = to_json(read_xml(source, shape, root, trims=trims), inf_nan_mode="constants")
    try:
        return read_iterators(shape.schema.model_validate_json(text, by_alias=False, by_name=True))
    except ValidationError:
        # The tool schema in the request contains the aliases, so a model may use aliases in its XML answer, too.
        with suppress(ValidationError):
            return read_iterators(shape.schema.model_validate_json(text, by_alias=True, by_name=True))
        raise


def read_xml(source: str, shape: Shape, root: str, *, trims: bool = False) -> Any:
    """Convert the last outermost element named `root` to JSON data, with the types that the shape declares.

    The element of a plain type contains the value itself. In an output, it may also contain an element with the name
    of the field of `shape`.
    """
    if len(source) > MAX_SIZE:
        raise ParseError(
            f"The XML is {len(source):,} characters long. Write at most {MAX_SIZE:,} characters.",
            raw_output=source[:1000],
        )
    source = replace_surrogates(source)
    start, stop = find_answer(source, root, is_text=bool(shape.wrapped))
    elements = parse_xml(source, start, stop).children
    if not elements or elements[0].name != root:
        raise ParseError(f"Cannot read the <{root}> element of the response. Write it as valid XML.", raw_output=source)
    element, schema = elements[0], shape.xml_schema
    reader = _XmlReader(source, schema, trims=trims)
    if shape.wrapped == INPUT:
        return {INPUT: reader.convert(element, schema["properties"][INPUT])[0]}
    data, misfit = reader.convert(element, schema)
    if shape.wrapped and misfit >= 1 and (not trims or element.text(source).strip()):
        value, misfit_of_value = reader.convert(element, schema["properties"][shape.wrapped])
        if misfit_of_value < misfit:
            return {shape.wrapped: value}
    return data


class _XmlReader:
    def __init__(self, source: str, top: JsonSchema, *, trims: bool) -> None:
        self.source = source
        self.top = top
        self.trims = trims
        # A union converts the same element once for each member. Without a cache, the time would be exponential.
        self.readings: dict[tuple[int, int], _Reading] = {}

    def convert(self, element: Element, node: JsonSchema) -> _Reading:
        """Convert an element to a value of the type that a schema node describes, and return (value, misfit).

        The misfit is 0 if the element fits the schema node exactly, and it grows with each difference.
        """
        node = follow_refs(node, self.top)
        key = (id(element), id(node))
        if key not in self.readings:
            self.readings[key] = self._converter(node)(element, node)
        return self.readings[key]

    def _converter(self, node: JsonSchema) -> Callable[[Element, JsonSchema], _Reading]:
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
        """Convert an element with each union member, and return the (value, misfit) that has the smallest misfit."""
        readings = [self.convert(element, member) for member in node.get("anyOf") or node.get("oneOf") or ()]
        return min(readings, key=itemgetter(1), default=None) or (element.text(self.source), _MISFIT)

    def _scalar(self, element: Element, node: JsonSchema) -> _Reading:
        value, misfit = _scalar(element.text(self.source), str(node["type"]), trims=self.trims)
        return value, misfit + (_MARKUP_IN_TEXT if element.children else 0)

    def _one_of(self, element: Element, node: JsonSchema) -> _Reading:
        values = [node["const"]] if "const" in node else node["enum"]
        text = element.text(self.source)
        for candidate, cost in ((text, 0.0), (text.strip(), 3 * _PREFERENCE)):
            for value in values:
                if candidate == (value if isinstance(value, str) else to_compact_json(value)) or (
                    value is None and not candidate
                ):
                    return value, cost
        # A combination of the members of an enum flag is a number that the schema does not list.
        return _scalar(text, str(node.get("type", "string")), trims=self.trims)[0], _MISFIT

    def _object(self, element: Element, node: JsonSchema) -> _Reading:
        if (data := self._inline_json(element, dict)) is not None:
            return data, 1.5 * _PREFERENCE
        properties: JsonSchema = node.get("properties", {})
        additional = additional_schema(node)
        value: JsonObject = {}
        misfit = self._text_misfit(element)
        for child in element.children:
            name = child.attributes.get("key", child.name) if child.name == "entry" else child.name
            schema = properties.get(name, additional)
            item, cost = self.convert(child, schema if is_json_object(schema) else _ANYTHING)
            misfit += cost if schema is not None else _UNKNOWN
            misfit += _UNKNOWN if name in value else 5 * _PREFERENCE if properties and name not in properties else 0
            earlier = value.get(name)
            value[name] = earlier + item if isinstance(earlier, list) and isinstance(item, list) else item
        if list(value) == ["item"] and "item" not in properties:
            misfit += 3 * _PREFERENCE  # An element that contains only `<item>` is more likely a list.
        return value, misfit + self._add_nulls(value, node)

    def _add_nulls(self, value: JsonObject, node: JsonSchema) -> float:
        """Add None for each missing required field that may be None, and return the misfit of the other missing fields.

        A missing field may mean None, because the XML encoder and models omit fields that are None.
        """
        misfit = 0.0
        for name in node.get("required", []):
            if name in value:
                continue
            if _allows_null(node.get("properties", {}).get(name, {}), self.top):
                value[name] = None
                misfit += 0.1 * _PREFERENCE
            else:
                misfit += _MISSING
        return misfit

    def _array(self, element: Element, node: JsonSchema) -> _Reading:
        if (data := self._inline_json(element, list)) is not None:
            return data, 1.5 * _PREFERENCE
        if not element.children and (text := element.text(self.source)).strip():
            return [text.strip() if self.trims else text], _MISFIT
        prefix: list[JsonSchema] = node.get("prefixItems", [])
        value: list[Any] = []
        misfit = self._text_misfit(element)
        if prefix and len(prefix) != len(element.children):
            misfit += _MISSING
        for index, child in enumerate(element.children):
            schema = prefix[index] if index < len(prefix) else node.get("items") or _ANYTHING
            item, cost = self.convert(child, schema)
            value.append(item)
            misfit += cost if child.name == "item" else cost + 2 * _PREFERENCE
        return value, misfit

    def _anything(self, element: Element, node: JsonSchema) -> _Reading:
        """Convert an element without a schema. Its child tags determine whether it is text, a list or an object."""
        if not element.children:
            return _scalar(element.text(self.source), "string", trims=self.trims)
        if all(child.name == "item" for child in element.children):
            return self._array(element, _ANYTHING)
        return self._object(element, {"additionalProperties": _ANYTHING})

    def _text_misfit(self, element: Element) -> float:
        """Return the misfit (the measure of difference) for text between the child elements of a list or object.

        Only whitespace is expected between child elements.
        """
        texts: list[str] = []
        at = element.content_start
        for child in element.children:
            texts.append(self.source[at : child.start])
            at = max(child.end, child.content_end)
        texts.append(self.source[at : element.content_end])
        if any(unescape(text).strip() for text in texts):
            return _TEXT_AROUND_TAGS
        return 1.2 * _PREFERENCE if not element.children and texts[0] else 0.0

    def _inline_json(self, element: Element, kind: type[Any]) -> Any:
        """Return the JSON object or list that the element contains as text, or None if it contains anything else."""
        opening = "{" if kind is dict else "["
        content = self.source[element.content_start : element.content_end]
        if element.children and not content.lstrip().startswith(opening):
            return None  # Return early, because the next step would unescape a large text.
        text = unescape(content).strip()
        if not text.startswith(opening):
            return None
        try:
            data = from_json(text)
        except ValueError:
            return None
        if _is_deep(data, MAX_DEPTH):
            raise_too_deep(self.source)
        return data if isinstance(data, kind) else None


def _is_deep(value: JsonValue, levels: int) -> bool:
    inner: Iterable[Any] = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return levels < 0 or any(_is_deep(item, levels - 1) for item in inner)


def _allows_null(node: JsonSchema, top: JsonSchema) -> bool:
    node = follow_refs(node, top)
    if node.get("type") == "null" or None in node.get("enum", ()):
        return True
    return any(_allows_null(member, top) for member in node.get("anyOf") or node.get("oneOf") or ())


def _scalar(text: str, kind: str, *, trims: bool) -> _Reading:
    """Convert text to a number, boolean, null or string, and return (value, misfit).

    If `trims` is True, whitespace around the text has no meaning, and `null` is None where a field may be None.

    Text that does not fit the type stays a string. The misfits make a union prefer an exact number, boolean or null
    such as `5` to a string. They make it prefer a string to an inexact number, boolean or null such as ` 5 `.
    """
    word = text.strip()
    text = word if trims else text
    exact, string, loose = 0.0, _PREFERENCE, 3 * _PREFERENCE
    if kind == "string":
        return text, string if text else 2 * string
    if kind == "null" and word in ("", "null", "None"):
        return None, exact if trims and word == "null" else loose if word else 1.5 * string
    if kind == "boolean" and word.lower() in ("true", "false"):
        return word.lower() == "true", exact if text in ("true", "false") else loose
    if kind in ("integer", "number") and _INTEGER.fullmatch(word):
        fitting = exact if kind == "integer" else 0.5 * string
        return int(word), fitting if str(int(word)) == text else loose
    if kind == "number":
        with suppress(ValueError):
            number = float(word)
            return number, exact if to_compact_json(number) == text else loose
    return text, _MISFIT
