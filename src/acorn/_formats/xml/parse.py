"""XML names and escaping, and a lenient XML parser.

Every character from a user or a model passes through the escaping functions on its way into a document.

The parser turns any text into a tree, or raises an error about the limit that the text exceeds. Models forget closing
tags and write bare `&` and `<`, so text that does not look like a tag is text. Only the five entities of XML and
character references are expanded. A DTD, too many levels and too much text are rejected. The work is linear in the
length. `decode.py` gives the tree its meaning.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from typing import NoReturn
from xml.parsers import expat

from acorn.errors import ParseError

# The characters that XML 1.0 forbids even as references: most control characters, surrogates and two non-characters.
FORBIDDEN_CHARACTERS = "\x00-\x08\x0b\x0c\x0e-\x1f\ud800-\udfff\ufffe\uffff"
FORBIDDEN_CHARACTER = re.compile(f"[{FORBIDDEN_CHARACTERS}]")
_MARKUP = {"&": "&amp;", "<": "&lt;", ">": "&gt;"}  # `&` comes first, because the other references contain it.
_QUOTES = {'"': "&quot;", "'": "&apos;"}
# A parser turns a bare \r into \n, and in an attribute all whitespace into spaces.
_RETURN = {"\r": "&#13;"}
_WHITESPACE = {**_RETURN, "\n": "&#10;", "\t": "&#9;"}
_IN_TEXT = tuple((_MARKUP | _RETURN).items())
_IN_ATTRIBUTE = tuple((_MARKUP | _QUOTES | _WHITESPACE).items())
_ANYWHERE = tuple((_MARKUP | _QUOTES).items())
_ASCII_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*")
_NO_MARKUP = re.compile(r"[\w.\-]+")


def escape_text(text: str) -> str:
    """Escape text for the body of an element."""
    return _escape(text, _IN_TEXT)


def escape_attribute(text: str) -> str:
    """Escape text for an attribute in double quotes."""
    return _escape(text, _IN_ATTRIBUTE)


def escape_anywhere(text: str) -> str:
    """Escape text for a body or an attribute of a reader that does not change whitespace."""
    return _escape(text, _ANYWHERE)


def escape_comment(text: str) -> str:
    """Prepare text for a comment, which has no escapes: double hyphens are separated."""
    text = _replace_forbidden(text).replace("\r", "\n")
    while "--" in text:
        text = text.replace("--", "- -")
    return text


def _escape(text: str, references: tuple[tuple[str, str], ...]) -> str:
    for character, reference in references:
        if character in text:  # Searching is cheaper than copying.
            text = text.replace(character, reference)
    return _replace_forbidden(text)


def _replace_forbidden(text: str) -> str:
    # Printable characters are allowed, and `isprintable` is cheaper than a search.
    return text if text.isprintable() else FORBIDDEN_CHARACTER.sub("\ufffd", text)


@lru_cache(maxsize=4096)
def is_xml_name(text: str) -> bool:
    """Return whether every parser accepts the text as the name of an element.

    A colon would be read as a namespace. The editions of XML differ beyond ASCII, so the strict parser `expat` decides.
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
_BREAK = re.compile("\r\n?")
# Sections that are skipped, with their ends. CDATA is text without escapes.
_CDATA, _COMMENT, _INSTRUCTION = "<![CDATA[", "<!--", "<?"
_ENDS = {_CDATA: "]]>", _COMMENT: "-->", _INSTRUCTION: "?>"}


@dataclass(slots=True)
class Element:
    """An element and its positions in the source."""

    name: str
    attributes: dict[str, str]
    start: int
    """The start of the opening tag."""
    content_start: int
    content_end: int = -1
    end: int = -1
    """The position after the closing tag, or -1 if the element is not closed."""
    children: list[Element] = field(default_factory=list["Element"])

    def text(self, source: str) -> str:
        """Return the content as text; markup in it is not changed."""
        return unescape(source[self.content_start : self.content_end])


def check_size(source: str) -> None:
    """Raise `ParseError` if the text is too long to parse."""
    if len(source) > MAX_SIZE:
        raise ParseError(
            f"The XML is {len(source):,} characters long; at most {MAX_SIZE:,} are read.",
            raw_output=source[:1000],
        )


def raise_too_deep(source: str) -> NoReturn:
    """Raise the error for elements, or JSON in them, with too many levels."""
    raise ParseError(
        f"The XML is nested more than {MAX_DEPTH} levels deep; give a flatter answer, and write `<` in text as `&lt;`.",
        raw_output=source[:1000],
    )


def raise_dtd(source: str) -> NoReturn:
    """Raise the error for a DTD, whose entities may read files or expand endlessly."""
    raise ParseError("The XML holds a DTD, which is never read; leave it out.", raw_output=source[:1000])


def parse_xml(source: str, start: int = 0, stop: int | None = None) -> Element:
    """Return a root whose children are the elements between `start` and `stop`."""
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
    """Close the named element and the open elements in it; a tag without an open element is text."""
    name = token[1]
    for level in range(len(open_elements) - 1, 0, -1):
        if open_elements[level].name == name:
            for element in open_elements[level:]:
                element.content_end = token.start()
            open_elements[level].end = token.end()
            del open_elements[level:]
            return


def _tokens(source: str, at: int, stop: int) -> Iterator[Element | re.Match[str]]:
    endless: set[str] = set()  # Sections without an end. Searching again each time would be quadratic.
    while (at := source.find("<", at, stop)) >= 0:
        if closing := _CLOSING.match(source, at, stop):
            yield closing
            at = closing.end()
        elif element := _read_opening(source, at, stop):
            yield element
            at = element.content_start
        else:
            at = _skip(source, at, stop, endless)


def _skip(source: str, at: int, stop: int, endless: set[str]) -> int:
    """Return the position after a `<` that does not open an element."""
    for mark, end in _ENDS.items():
        if source.startswith(mark, at) and mark not in endless:
            found = source.find(end, at + len(mark), stop)
            if found >= 0:
                return found + len(end)
            endless.add(mark)
    head = source[at : at + 9].upper()
    if head.startswith(("<!DOCTYPE", "<!ENTITY")):
        raise_dtd(source)
    return at + 1


def _read_opening(source: str, at: int, stop: int) -> Element | None:
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
    """Replace references, normalize line breaks, remove comments and unwrap CDATA."""
    if "\r" in text:
        text = _BREAK.sub("\n", text)
    if sections and ("<!--" in text or _CDATA in text):
        return _without_sections(text)
    return _REFERENCE.sub(_character, text) if "&" in text else text


def _without_sections(text: str) -> str:
    parts: list[str] = []
    endless: set[str] = set()
    done = at = 0
    while (at := text.find("<", at)) >= 0:
        after = _skip(text, at, len(text), endless)
        if after == at + 1 or text.startswith(_INSTRUCTION, at):
            at = after
            continue
        parts.append(unescape(text[done:at], sections=False))
        if text.startswith(_CDATA, at):
            parts.append(text[at + len(_CDATA) : after - len(_ENDS[_CDATA])])
        done = at = after
    parts.append(unescape(text[done:], sections=False))
    return "".join(parts)


def _character(reference: re.Match[str]) -> str:
    if reference[1]:
        return _NAMED[reference[1]]
    code = int(reference[2]) if reference[2] else int(reference[3], 16)
    is_allowed = code in (9, 10, 13) or 0x20 <= code < 0xD800 or 0xE000 <= code < 0xFFFE or 0x10000 <= code < 0x110000
    return chr(code) if is_allowed else "\ufffd"
