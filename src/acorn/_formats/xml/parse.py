"""XML names and escaping, and a lenient XML parser.

The escaping functions process every text from a user or a model before it becomes part of an XML document.

The parser converts any text to a tree of elements. Models forget closing tags and write `&` and `<` without escaping
them, so a `<` that does not start a tag is ordinary text. The parser replaces only the five predefined XML entities and
character references. It raises `ParseError` for a DTD, for too many nested elements and for a text that is too long.
The parsing time is linear in the length of the text. `decode.py` converts the tree to a value.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from typing import NoReturn
from xml.parsers import expat

from acorn.errors import ParseError

# XML 1.0 forbids most control characters, surrogates and two other code points, also as character references.
FORBIDDEN_CHARACTERS = "\x00-\x08\x0b\x0c\x0e-\x1f\ud800-\udfff\ufffe\uffff"
FORBIDDEN_CHARACTER = re.compile(f"[{FORBIDDEN_CHARACTERS}]")
_MARKUP = {"&": "&amp;", "<": "&lt;", ">": "&gt;"}  # `&` must be first, because all references contain this character.
_QUOTES = {'"': "&quot;", "'": "&apos;"}
# XML parsers replace \r with \n in text, and all whitespace with spaces in attributes.
_RETURN = {"\r": "&#13;"}
_WHITESPACE = {**_RETURN, "\n": "&#10;", "\t": "&#9;"}
_IN_TEXT = tuple((_MARKUP | _RETURN).items())
_IN_ATTRIBUTE = tuple((_MARKUP | _QUOTES | _WHITESPACE).items())
_ANYWHERE = tuple((_MARKUP | _QUOTES).items())
_ASCII_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*")
_NO_MARKUP = re.compile(r"[\w.\-]+")


def escape_text(text: str) -> str:
    """Escape text for use between the tags of an element."""
    return _escape(text, _IN_TEXT)


def escape_attribute(text: str) -> str:
    """Escape text for use as an attribute value in double quotes."""
    return _escape(text, _IN_ATTRIBUTE)


def escape_anywhere(text: str) -> str:
    """Escape text for use in an element or in an attribute with double quotes.

    The result does not protect line breaks in attributes, so use it only if the parser does not normalize whitespace.
    """
    return _escape(text, _ANYWHERE)


def escape_comment(text: str) -> str:
    """Insert a space into each double hyphen of a text for an XML comment, because comments cannot contain `--`."""
    text = _replace_forbidden(text).replace("\r", "\n")
    while "--" in text:
        text = text.replace("--", "- -")
    return text


def _escape(text: str, references: tuple[tuple[str, str], ...]) -> str:
    for character, reference in references:
        if character in text:  # A search is faster than `replace`, which most texts do not need.
            text = text.replace(character, reference)
    return _replace_forbidden(text)


def _replace_forbidden(text: str) -> str:
    # XML allows all printable characters, and `isprintable` is faster than the regular expression.
    return text if text.isprintable() else FORBIDDEN_CHARACTER.sub("\ufffd", text)


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


def check_size(source: str) -> None:
    """Raise `ParseError` if the text is too long to parse."""
    if len(source) > MAX_SIZE:
        raise ParseError(
            f"The XML is {len(source):,} characters long; at most {MAX_SIZE:,} are read.",
            raw_output=source[:1000],
        )


def raise_too_deep(source: str) -> NoReturn:
    """Raise `ParseError` for an XML answer that nests elements, or JSON inside an element, too deeply."""
    raise ParseError(
        f"The XML is nested more than {MAX_DEPTH} levels deep; give a flatter answer, and write `<` in text as `&lt;`.",
        raw_output=source[:1000],
    )


def raise_dtd(source: str) -> NoReturn:
    """Raise `ParseError` for a DTD, because its entities could include files or expand without limit."""
    raise ParseError("The XML holds a DTD, which is never read; leave it out.", raw_output=source[:1000])


def parse_xml(source: str, start: int = 0, stop: int | None = None) -> Element:
    """Parse the source text from `start` to `stop`, and return a root element without a name.

    The children of the root element are the outermost elements of the text.
    """
    stop = len(source) if stop is None else stop
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
